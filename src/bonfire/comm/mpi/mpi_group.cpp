#include "bonfire/comm/mpi/mpi_group.h"

#include <mpi.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <thread>
#include <utility>

#include "bonfire/base/error.h"
#include "bonfire/comm/message_group.h"
#include "bonfire/comm/rendezvous.h"

namespace bonfire::comm {
namespace {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

constexpr size_t kPiece = 1 << 30;            // bytes; MPI counts in int
constexpr int kStopTag = 2, kWaitingTag = 3;  // messages use 0 and 1
constexpr size_t kReasonBytes = 1000;         // of a stop message
constexpr size_t kNameBytes = 96;

void check(int code, const char* what) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  MPI_Error_string(code, text, &length);
  throw_error<CommError>("{} failed: {}", what, text);
}

std::atomic<bool> failed = false;  // a group died: peers may never come to the end of MPI

// Started by MPI's launcher? Outside it MPI_Init makes a world of one, or ends the process.
void check_launcher() {
  for (const char* variable : {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"})
    if (std::getenv(variable) != nullptr) return;
  throw_error<ConfigError>(
      "[mpi] this process was not started by MPI: start it with mpirun (Debian's openmpi-bin) or srun --mpi=pmix, or "
      "choose the backend gloo");
}

void start_mpi() {
  static std::once_flag once;
  std::call_once(once, [] {
    int level = MPI_THREAD_SINGLE;
    check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &level), "MPI_Init");
    if (level != MPI_THREAD_MULTIPLE)
      throw_error<ConfigError>("[mpi] this MPI cannot be used by several threads (MPI_THREAD_MULTIPLE)");
    std::atexit([] {
      if (!failed) MPI_Finalize();
    });
  });
}

class MpiMessenger : public Messenger {
 public:
  // "" names this rank by its place in the communicator.
  MpiMessenger(MPI_Comm communicator, Clock::time_point deadline, const std::string& name)
      : communicator_(communicator) {
    MPI_Comm_set_errhandler(communicator_, MPI_ERRORS_RETURN);
    MPI_Comm_rank(communicator_, &rank_);
    MPI_Comm_size(communicator_, &size_);
    char mine[kNameBytes] = "";
    std::strncpy(mine, (name.empty() ? process_name(rank_) : name).c_str(), kNameBytes - 1);
    names_.resize(static_cast<size_t>(size_) * kNameBytes);
    MPI_Request request = MPI_REQUEST_NULL;
    check(MPI_Iallgather(mine, kNameBytes, MPI_BYTE, names_.data(), kNameBytes, MPI_BYTE, communicator_, &request),
          "MPI_Iallgather");
    wait(request, "all ranks", deadline);
  }
  ~MpiMessenger() override {
    // Freeing is a collective call, of no use when MPI is at its end, and in vain when peers have stopped: one that
    // made no call since then learns it here, and does not wait for them at the end of MPI either.
    int over = 0;
    MPI_Finalized(&over);
    if (over == 0 && stop_reason().empty() && !failed) MPI_Comm_free(&communicator_);
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::string name(int rank) const override { return names_.data() + static_cast<size_t>(rank) * kNameBytes; }
  std::unique_ptr<Transfer> send(std::span<const std::byte> message, int to, int tag) override;
  std::unique_ptr<Transfer> receive(std::span<std::byte> message, int from, int tag) override;
  void wait(MPI_Request& request, const std::string& peer, Clock::time_point deadline);
  std::vector<int> silent_ranks() override;

  void stop(const std::string& reason) override {
    failed = true;
    {
      std::lock_guard lock(mutex_);
      if (!reason_.empty()) return;
      reason_ = reason;
    }
    stopped_ = true;
    // Lives on: peers may read it late.
    auto* text = new char[kReasonBytes]();
    std::strncpy(text, reason.c_str(), kReasonBytes - 1);
    tell_all(text, kReasonBytes, kStopTag);
  }

  std::string stop_reason() override {
    std::lock_guard lock(mutex_);
    if (!reason_.empty()) return reason_;
    int there = 0;
    MPI_Status status;
    MPI_Iprobe(MPI_ANY_SOURCE, kStopTag, communicator_, &there, &status);
    if (there == 0) return "";
    char text[kReasonBytes] = "";
    MPI_Recv(text, kReasonBytes, MPI_BYTE, status.MPI_SOURCE, kStopTag, communicator_, MPI_STATUS_IGNORE);
    failed = true;
    return reason_ = text;
  }

  std::unique_ptr<Messenger> split(int colour, std::span<const int>, const std::string&) override {
    MPI_Comm part = MPI_COMM_NULL;
    // Any integer is a colour of ours, only those from 0 are MPI's.
    std::vector<int> colours(static_cast<size_t>(size_));
    check(MPI_Allgather(&colour, 1, MPI_INT, colours.data(), 1, MPI_INT, communicator_), "MPI_Allgather");
    auto first = std::find(colours.begin(), colours.end(), colour) - colours.begin();
    check(MPI_Comm_split(communicator_, static_cast<int>(first), rank_, &part), "MPI_Comm_split");
    return std::make_unique<MpiMessenger>(part, Clock::now() + 60s, name(rank_));
  }

 private:
  void tell_all(const char* text, int bytes, int tag) {
    for (int peer = 0; peer < size_; ++peer) {
      if (peer == rank_) continue;
      MPI_Request request = MPI_REQUEST_NULL;
      MPI_Isend(text, bytes, MPI_BYTE, peer, tag, communicator_, &request);
      if (request != MPI_REQUEST_NULL) MPI_Request_free(&request);
    }
  }

  MPI_Comm communicator_;
  int rank_ = 0, size_ = 1;
  std::vector<char> names_;  // [size, kNameBytes]
  std::atomic<bool> stopped_ = false;
  std::mutex mutex_;
  std::string reason_;
};

class MpiTransfer : public Transfer {
 public:
  MpiTransfer(MpiMessenger& messenger, int peer) : messenger_(messenger), peer_(peer) {}
  // Only a group that has died leaves a message under way.
  ~MpiTransfer() override {
    for (MPI_Request& request : requests) {
      if (request == MPI_REQUEST_NULL) continue;
      MPI_Cancel(&request);
      MPI_Request_free(&request);
    }
  }
  MpiTransfer(const MpiTransfer&) = delete;
  MpiTransfer& operator=(const MpiTransfer&) = delete;

  void wait(Clock::time_point deadline) override {
    for (MPI_Request& request : requests) messenger_.wait(request, messenger_.name(peer_), deadline);
  }

  std::vector<MPI_Request> requests;

 private:
  MpiMessenger& messenger_;
  int peer_;
};

std::unique_ptr<Transfer> MpiMessenger::send(std::span<const std::byte> message, int to, int tag) {
  auto transfer = std::make_unique<MpiTransfer>(*this, to);
  for (size_t begin = 0; begin < message.size(); begin += kPiece) {
    auto piece = message.subspan(begin, std::min(kPiece, message.size() - begin));
    check(MPI_Isend(piece.data(), static_cast<int>(piece.size()), MPI_BYTE, to, tag, communicator_,
                    &transfer->requests.emplace_back(MPI_REQUEST_NULL)),
          "MPI_Isend");
  }
  return transfer;
}

std::unique_ptr<Transfer> MpiMessenger::receive(std::span<std::byte> message, int from, int tag) {
  auto transfer = std::make_unique<MpiTransfer>(*this, from);
  for (size_t begin = 0; begin < message.size(); begin += kPiece) {
    auto piece = message.subspan(begin, std::min(kPiece, message.size() - begin));
    check(MPI_Irecv(piece.data(), static_cast<int>(piece.size()), MPI_BYTE, from, tag, communicator_,
                    &transfer->requests.emplace_back(MPI_REQUEST_NULL)),
          "MPI_Irecv");
  }
  return transfer;
}

// Polls: at first as fast as it can, lending the core to whoever wants it; after a millisecond at leisure.
void MpiMessenger::wait(MPI_Request& request, const std::string& peer, Clock::time_point deadline) {
  auto begun = Clock::now();
  for (int polls = 0;; ++polls) {
    int done = 0;
    check(MPI_Test(&request, &done, MPI_STATUS_IGNORE), "a message");
    if (done != 0) return;
    if (polls % 16 != 15) continue;
    auto now = Clock::now();
    if (stopped_ || !stop_reason().empty()) throw_error<CommError>("the group was stopped");
    if (now > deadline)
      throw_error<TimeoutError>("waited {:.1f} s for {}", std::chrono::duration<double>(now - begun).count(), peer);
    if (now - begun < 1ms)
      std::this_thread::yield();
    else
      std::this_thread::sleep_for(50us);
  }
}

std::vector<int> MpiMessenger::silent_ranks() {
  static const char waiting = 1;
  tell_all(&waiting, 1, kWaitingTag);
  std::vector<bool> heard(static_cast<size_t>(size_));
  heard[static_cast<size_t>(rank_)] = true;
  auto until = Clock::now() + 500ms;
  while (Clock::now() < until && std::find(heard.begin(), heard.end(), false) != heard.end()) {
    int there = 0;
    MPI_Status status;
    MPI_Iprobe(MPI_ANY_SOURCE, kWaitingTag, communicator_, &there, &status);
    if (there == 0) {
      std::this_thread::sleep_for(50us);
      continue;
    }
    char text = 0;
    MPI_Recv(&text, 1, MPI_BYTE, status.MPI_SOURCE, kWaitingTag, communicator_, MPI_STATUS_IGNORE);
    heard[static_cast<size_t>(status.MPI_SOURCE)] = true;
  }
  std::vector<int> silent;
  for (int peer = 0; peer < size_; ++peer)
    if (!heard[static_cast<size_t>(peer)]) silent.push_back(peer);
  return silent;
}

}  // namespace

std::shared_ptr<Group> mpi_group(const MpiOptions& options) {
  check_launcher();
  start_mpi();
  MPI_Comm world = MPI_COMM_NULL;
  check(MPI_Comm_dup(MPI_COMM_WORLD, &world), "MPI_Comm_dup");
  auto messenger = std::make_unique<MpiMessenger>(world, Clock::now() + options.timeout, "");
  return std::make_shared<MessageGroup>(std::move(messenger), MessageGroup::Options{options.timeout, options.store});
}

bool has_mpi() { return true; }

}  // namespace bonfire::comm
