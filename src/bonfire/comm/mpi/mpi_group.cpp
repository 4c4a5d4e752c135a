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
#include "bonfire/comm/group_backend.h"
#include "bonfire/comm/message_group.h"
#include "bonfire/comm/rendezvous.h"
#include "bonfire/comm/wait_notice.h"

namespace bonfire::comm {
namespace {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

constexpr size_t kPiece = 1 << 30;     // bytes; MPI counts in int
constexpr size_t kReasonBytes = 1000;  // of a stop message
constexpr size_t kNameBytes = 96;

// All groups share one communicator, since MPI has no way to make another that ends by a timeout. A group has tags of
// its own: those from its number times kTags.
constexpr int kTags = 8;
constexpr int kStopTag = 3, kWaitingTag = 4, kSplitTag = 5;  // messages use 0, 1 and 2

// `what` is called where it failed: "a message to rank 1 (node0, process 4711)".
template <class What>
void check(int code, const What& what) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  MPI_Error_string(code, text, &length);
  throw_error<CommError>("{} failed: {}", what(), text);
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
    check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &level), [] { return "MPI_Init"; });
    if (level != MPI_THREAD_MULTIPLE)
      throw_error<ConfigError>("[mpi] this MPI cannot be used by several threads (MPI_THREAD_MULTIPLE)");
    std::atexit([] {
      if (!failed) MPI_Finalize();
    });
  });
}

// Polls: at first as fast as it can, lending the core to whoever wants it; after a millisecond at leisure. `look` is
// called now and then with how long it has waited, and may throw.
template <class What, class Look>
void poll_until_done(MPI_Request& request, const What& what, const Look& look) {
  auto begun = Clock::now();
  for (int polls = 0;; ++polls) {
    int done = 0;
    check(MPI_Test(&request, &done, MPI_STATUS_IGNORE), what);
    if (done != 0) return;
    if (polls % 16 != 15) continue;
    const Clock::duration waited = Clock::now() - begun;
    look(waited);
    if (waited < 1ms)
      std::this_thread::yield();
    else
      std::this_thread::sleep_for(50us);
  }
}

// The first number of a group that this process has not used.
std::atomic<int> next_number = 0;

int tags_from(int number) {
  int* most = nullptr;
  int known = 0;
  MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, static_cast<void*>(&most), &known);
  const int limit = known != 0 ? *most : 32767;
  if (number >= limit / kTags - 1)
    throw_error<CommError>("[mpi] {} groups were made; this MPI has no tags left", number);
  return number * kTags;
}

class MpiMessenger : public Messenger {
 public:
  // `members`: by rank here, the rank in the communicator. A number that none of them has used.
  MpiMessenger(MPI_Comm communicator, int number, std::vector<int> members, std::vector<std::string> names)
      : communicator_(communicator), tags_(tags_from(number)), members_(std::move(members)), names_(std::move(names)) {
    int self = 0;
    MPI_Comm_rank(communicator_, &self);
    rank_ = static_cast<int>(std::find(members_.begin(), members_.end(), self) - members_.begin());
    next_number = std::max(next_number.load(), number + 1);
  }
  ~MpiMessenger() override {
    // A rank that made no call since its peers have stopped learns it here, and does not wait for them at the end of
    // MPI.
    int over = 0;
    MPI_Finalized(&over);
    if (over == 0) stop_reason();
  }

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(members_.size()); }
  std::string name(int rank) const override { return names_[static_cast<size_t>(rank)]; }
  std::unique_ptr<Transfer> send(std::span<const std::byte> message, int to, int tag) override;
  std::unique_ptr<Transfer> receive(std::span<std::byte> message, int from, int tag) override;
  void wait(MPI_Request& request, int peer, Clock::time_point deadline);
  std::vector<int> silent_ranks() override;
  std::unique_ptr<Messenger> split(std::span<const int> members, const std::string& key,
                                   Clock::time_point deadline) override;

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
    MPI_Iprobe(MPI_ANY_SOURCE, tags_ + kStopTag, communicator_, &there, &status);
    if (there == 0) return "";
    char text[kReasonBytes] = "";
    MPI_Recv(text, kReasonBytes, MPI_BYTE, status.MPI_SOURCE, tags_ + kStopTag, communicator_, MPI_STATUS_IGNORE);
    failed = true;
    return reason_ = text;
  }

 private:
  int place_of(int rank) const { return members_[static_cast<size_t>(rank)]; }  // in the communicator

  void tell_all(const char* text, int bytes, int tag) {
    for (int peer = 0; peer < size(); ++peer) {
      if (peer == rank_) continue;
      MPI_Request request = MPI_REQUEST_NULL;
      MPI_Isend(text, bytes, MPI_BYTE, place_of(peer), tags_ + tag, communicator_, &request);
      if (request != MPI_REQUEST_NULL) MPI_Request_free(&request);
    }
  }

  MPI_Comm communicator_;
  int tags_;
  int rank_ = 0;
  std::vector<int> members_;
  std::vector<std::string> names_;
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
    for (MPI_Request& request : requests) messenger_.wait(request, peer_, deadline);
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
    check(MPI_Isend(piece.data(), static_cast<int>(piece.size()), MPI_BYTE, place_of(to), tags_ + tag, communicator_,
                    &transfer->requests.emplace_back(MPI_REQUEST_NULL)),
          [&] { return "a message to " + name(to); });
  }
  return transfer;
}

std::unique_ptr<Transfer> MpiMessenger::receive(std::span<std::byte> message, int from, int tag) {
  auto transfer = std::make_unique<MpiTransfer>(*this, from);
  for (size_t begin = 0; begin < message.size(); begin += kPiece) {
    auto piece = message.subspan(begin, std::min(kPiece, message.size() - begin));
    check(MPI_Irecv(piece.data(), static_cast<int>(piece.size()), MPI_BYTE, place_of(from), tags_ + tag, communicator_,
                    &transfer->requests.emplace_back(MPI_REQUEST_NULL)),
          [&] { return "a message from " + name(from); });
  }
  return transfer;
}

void MpiMessenger::wait(MPI_Request& request, int peer, Clock::time_point deadline) {
  auto look = [&](Clock::duration waited) {
    if (stopped_ || !stop_reason().empty()) throw_error<CommError>("the group was stopped");
    if (Clock::now() > deadline)
      throw_error<TimeoutError>("waited {:.1f} s for {}", std::chrono::duration<double>(waited).count(), name(peer));
  };
  poll_until_done(
      request, [&] { return "a message of " + name(peer); }, look);
}

// All ranks tell each other the first number that they have not used: the greatest of them is the part's, and may be
// another part's too, which has other members.
std::unique_ptr<Messenger> MpiMessenger::split(std::span<const int> members, const std::string&,
                                               Clock::time_point deadline) {
  const int mine = next_number;
  std::vector<int> numbers(members_.size(), mine);
  std::vector<std::unique_ptr<Transfer>> transfers;
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank_) continue;
    transfers.push_back(
        receive(std::as_writable_bytes(std::span(&numbers[static_cast<size_t>(peer)], 1)), peer, kSplitTag));
    transfers.push_back(send(std::as_bytes(std::span(&mine, 1)), peer, kSplitTag));
  }
  for (const auto& transfer : transfers) transfer->wait(deadline);
  std::vector<int> places;
  std::vector<std::string> names;
  for (int member : members) {
    places.push_back(place_of(member));
    names.push_back(name(member));
  }
  return std::make_unique<MpiMessenger>(communicator_, *std::max_element(numbers.begin(), numbers.end()),
                                        std::move(places), std::move(names));
}

std::vector<int> MpiMessenger::silent_ranks() {
  static const char waiting = 1;
  tell_all(&waiting, 1, kWaitingTag);
  std::vector<bool> heard(members_.size());
  heard[static_cast<size_t>(rank_)] = true;
  auto until = Clock::now() + 500ms;
  while (Clock::now() < until && std::find(heard.begin(), heard.end(), false) != heard.end()) {
    int there = 0;
    MPI_Status status;
    MPI_Iprobe(MPI_ANY_SOURCE, tags_ + kWaitingTag, communicator_, &there, &status);
    if (there == 0) {
      std::this_thread::sleep_for(50us);
      continue;
    }
    char text = 0;
    MPI_Recv(&text, 1, MPI_BYTE, status.MPI_SOURCE, tags_ + kWaitingTag, communicator_, MPI_STATUS_IGNORE);
    heard[static_cast<size_t>(std::find(members_.begin(), members_.end(), status.MPI_SOURCE) - members_.begin())] =
        true;
  }
  std::vector<int> silent;
  for (int peer = 0; peer < size(); ++peer)
    if (!heard[static_cast<size_t>(peer)]) silent.push_back(peer);
  return silent;
}

// What a rank that makes the group of all tells the others.
struct Introduction {
  char name[kNameBytes] = "";
  int next_number = 0;
};

// Messages between all processes that MPI has started, before there is a group. What is under way when it fails lives
// on: MPI may still read and write it.
class Introductions {
 public:
  explicit Introductions(const Introduction& mine) {
    MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
    MPI_Comm_size(MPI_COMM_WORLD, &size_);
    all_->assign(static_cast<size_t>(size_), mine);
    requests_.assign(2 * static_cast<size_t>(size_), MPI_REQUEST_NULL);
    constexpr int kTag = 29500;
    for (int peer = 0; peer < size_; ++peer) {
      if (peer == rank_) continue;
      auto place = static_cast<size_t>(peer);
      check(MPI_Irecv(&(*all_)[place], sizeof mine, MPI_BYTE, peer, kTag, MPI_COMM_WORLD, &requests_[2 * place]),
            [&] { return fmt::format("a message from rank {}", peer); });
      check(MPI_Isend(&(*all_)[static_cast<size_t>(rank_)], sizeof mine, MPI_BYTE, peer, kTag, MPI_COMM_WORLD,
                      &requests_[2 * place + 1]),
            [&] { return fmt::format("a message to rank {}", peer); });
    }
  }

  std::vector<Introduction> all(std::chrono::milliseconds timeout) {
    const Clock::time_point deadline = Clock::now() + timeout;
    WaitNotice notice(fmt::format("rank {}", rank_));
    auto look = [&](Clock::duration) {
      notice.look([&] { return list_of_ranks(missing()) + " to join the group of all"; });
      if (Clock::now() <= deadline) return;
      failed = true;
      throw_error<TimeoutError>("[mpi] rank {} waited {} s for {}, which never came", rank_,
                                static_cast<double>(timeout.count()) / 1000, list_of_ranks(missing()));
    };
    for (MPI_Request& request : requests_)
      poll_until_done(
          request, [] { return "a message"; }, look);
    std::vector<Introduction> heard = std::move(*all_);
    delete all_;
    return heard;
  }

 private:
  std::vector<int> missing() {
    std::vector<int> ranks;
    for (int peer = 0; peer < size_; ++peer) {
      int done = 0;
      MPI_Test(&requests_[2 * static_cast<size_t>(peer)], &done, MPI_STATUS_IGNORE);
      if (done == 0) ranks.push_back(peer);
    }
    return ranks;
  }

  int rank_ = 0, size_ = 1;
  std::vector<Introduction>* all_ = new std::vector<Introduction>;
  std::vector<MPI_Request> requests_;  // [size, receive and send]
};

// One that no other part of the program uses. All ranks are known to be about to call this.
MPI_Comm own_communicator(int rank, std::chrono::milliseconds timeout) {
  static MPI_Comm communicator = MPI_COMM_NULL;
  if (communicator != MPI_COMM_NULL) return communicator;
  MPI_Comm made = MPI_COMM_NULL;
  MPI_Request request = MPI_REQUEST_NULL;
  auto what = [] { return "MPI_Comm_idup"; };
  check(MPI_Comm_idup(MPI_COMM_WORLD, &made, &request), what);
  poll_until_done(request, what, [&](Clock::duration waited) {
    if (waited <= timeout) return;
    failed = true;
    throw_error<TimeoutError>("[mpi] rank {} waited {} s for all ranks to make a communicator", rank,
                              static_cast<double>(timeout.count()) / 1000);
  });
  MPI_Comm_set_errhandler(made, MPI_ERRORS_RETURN);
  return communicator = made;
}

}  // namespace

std::shared_ptr<Group> mpi_group(const MpiOptions& options) {
  check_launcher();
  start_mpi();
  Introduction mine{.next_number = next_number};
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  std::strncpy(mine.name, process_name(rank).c_str(), kNameBytes - 1);
  int number = 0;
  std::vector<int> members;
  std::vector<std::string> names;
  for (const Introduction& one : Introductions(mine).all(options.timeout)) {
    number = std::max(number, one.next_number);
    members.push_back(static_cast<int>(members.size()));
    names.emplace_back(one.name);
  }
  auto messenger = std::make_unique<MpiMessenger>(own_communicator(rank, options.timeout), number, std::move(members),
                                                  std::move(names));
  return std::make_shared<MessageGroup>(std::move(messenger), MessageGroup::Options{options.timeout, options.store});
}

bool has_mpi() { return true; }

std::string text_over_mpi(const std::string& own, std::chrono::milliseconds timeout) {
  check_launcher();
  start_mpi();
  const auto what = [] { return "MPI_Ibcast"; };
  const Clock::time_point deadline = Clock::now() + timeout;
  const auto share = [&](void* bytes, int count) {
    MPI_Request request = MPI_REQUEST_NULL;
    check(MPI_Ibcast(bytes, count, MPI_BYTE, 0, MPI_COMM_WORLD, &request), what);
    poll_until_done(request, what, [&](Clock::duration) {
      if (Clock::now() <= deadline) return;
      failed = true;  // so MPI is not asked for anything any more, and does not write here
      throw_error<TimeoutError>(
          "[mpi] waited {} s for rank 0's token, which never came; ranks that have BONFIRE_TOKEN share none: give it "
          "to "
          "all of them, or to none",
          static_cast<double>(timeout.count()) / 1000);
    });
  };
  std::string text = own;
  auto length = static_cast<int>(text.size());
  share(&length, sizeof length);
  text.resize(static_cast<size_t>(length));
  share(text.data(), length);
  return text;
}

namespace {
const bool mpi_registered = register_group_backend("mpi", [](const GroupRequest& request) {
  return mpi_group({.timeout = request.membership.timeout, .store = request.membership.store});
});
}  // namespace

}  // namespace bonfire::comm
