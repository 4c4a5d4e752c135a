#include "bonfire/comm/gloo/gloo_group.h"

#include <gloo/transport/unbound_buffer.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "bonfire/base/error.h"
#include "bonfire/comm/arguments.h"
#include "bonfire/comm/gloo/peer_sockets.h"
#include "bonfire/comm/gloo/proven_context.h"
#include "bonfire/comm/group_backend.h"
#include "bonfire/comm/message_group.h"
#include "bonfire/comm/network.h"
#include "bonfire/comm/rendezvous.h"
#include "bonfire/comm/wait_notice.h"

namespace bonfire::comm {
namespace {

using Clock = std::chrono::steady_clock;
using Device = std::shared_ptr<gloo::transport::tcp::Device>;
using namespace std::chrono_literals;

constexpr auto kLookUp = 50ms;       // of a wait between two looks at the deadline and the peer
constexpr auto kAskTheStore = 1s;    // of a wait between two questions whether the group was stopped
constexpr uint64_t kProbeSlot = 99;  // messages use 0, 1 and 2

// Gloo writes to connections whose other end may be closed; without this that ends the process.
void ignore_broken_pipes() {
  struct sigaction now {};
  if (::sigaction(SIGPIPE, nullptr, &now) == 0 && now.sa_handler == SIG_DFL) ::signal(SIGPIPE, SIG_IGN);
}

// "" where the name means nothing.
std::string literal_of(const std::string& address) {
  try {
    return address.empty() ? "" : resolve(address);
  } catch (const CommError&) {
    return "";
  }
}

// The literal of this host's that is meant.
std::string address_of(const GlooOptions& options) {
  if (options.interface.empty() == options.address.empty())
    throw_error<ConfigError>("[gloo] name either an interface or an address to listen on; this host has {}",
                             list_of(interfaces()));
  std::vector<Interface> all = interfaces();
  auto wanted = std::find_if(all.begin(), all.end(), [&, literal = literal_of(options.address)](const Interface& one) {
    return options.address.empty() ? one.name == options.interface : one.address == literal;
  });
  if (wanted == all.end())
    throw_error<ConfigError>("[gloo] cannot listen on {} {}; this host has {}",
                             options.interface.empty() ? "address" : "interface", options.interface + options.address,
                             list_of(all));
  return wanted->address;
}

// Gloo's waits end by success, by an error on the connection, or by a timeout that kills the whole context; and a
// message that is half written when its connection breaks is forgotten. So each wait is woken every few milliseconds
// to look for itself.
class Waits {
 public:
  Waits() : thread_([this](const std::stop_token& stop) { nudge(stop); }) {}

  // Returns whether the operation is done; false at the latest after two looks. From any thread.
  bool once(gloo::transport::UnboundBuffer& buffer, bool sending) {
    {
      std::lock_guard lock(mutex_);
      waiting_.push_back({&buffer, sending});
    }
    try {
      bool done = sending ? buffer.waitSend(1h) : buffer.waitRecv(1h);
      forget(buffer);
      return done;
    } catch (...) {
      forget(buffer);
      throw;
    }
  }

 private:
  struct Waiting {
    gloo::transport::UnboundBuffer* buffer;
    bool sending;
  };

  void forget(const gloo::transport::UnboundBuffer& buffer) {
    std::lock_guard lock(mutex_);
    std::erase_if(waiting_, [&](const Waiting& one) { return one.buffer == &buffer; });
  }
  void nudge(const std::stop_token& stop) {
    std::unique_lock lock(mutex_);
    while (!changed_.wait_for(lock, stop, kLookUp, [&] { return stop.stop_requested(); })) {
      for (const Waiting& one : waiting_) one.sending ? one.buffer->abortWaitSend() : one.buffer->abortWaitRecv();
    }
  }

  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::vector<Waiting> waiting_;
  std::jthread thread_;
};

class GlooMessenger : public Messenger {
 public:
  // `address`: to listen on until all peers have come.
  GlooMessenger(Membership membership, Device device, std::string address, const std::string& name)
      : membership_(std::move(membership)), device_(std::move(device)), address_(std::move(address)) {
    exchange_names(name);
    if (size() == 1) return;
    try {
      context_ =
          std::make_shared<ProvenContext>(rank(), connect_peers(membership_, address_), device_, membership_.timeout);
    } catch (const Error&) {
      throw;
    } catch (const std::exception& error) {
      throw_error<CommError>("[gloo] {} cannot reach all its peers: {}", name, error.what());
    }
  }

  int rank() const override { return membership_.rank; }
  int size() const override { return membership_.size; }
  std::string name(int rank) const override { return names_[static_cast<size_t>(rank)]; }
  std::unique_ptr<Transfer> send(std::span<const std::byte> message, int to, int tag) override;
  std::unique_ptr<Transfer> receive(std::span<std::byte> message, int from, int tag) override;
  void wait(gloo::transport::UnboundBuffer& buffer, bool sending, int peer, Clock::time_point deadline);

  // The first reason in the store is everyone's; connections are closed behind it, so that peers look there.
  void stop(const std::string& reason) override {
    if (stopping_.exchange(true)) return;
    try {
      if (membership_.store->add(key("stopped"), 1) == 1) membership_.store->set(key("reason"), reason);
    } catch (const Error&) {
      std::lock_guard lock(mutex_);  // the store is gone; closed connections must do
      if (reason_.empty()) reason_ = reason;
    }
    stopped_ = true;
    if (context_) context_->closeConnections();
  }

  std::string stop_reason() override {
    std::lock_guard lock(mutex_);
    if (!reason_.empty()) return reason_;
    try {
      if (membership_.store->add(key("stopped"), 0) > 0) reason_ = membership_.store->get(key("reason"), 1s);
    } catch (const Error&) {
      return "";
    }
    return reason_;
  }

  std::vector<int> silent_ranks() override {
    std::vector<int> silent;
    try {
      membership_.store->set(key(fmt::format("waiting/{}", rank())), "");
      auto until = Clock::now() + 500ms;
      for (int peer = 0; peer < size(); ++peer) {
        auto left = std::chrono::duration_cast<std::chrono::milliseconds>(until - Clock::now());
        try {
          membership_.store->wait({key(fmt::format("waiting/{}", peer))}, std::max(left, 1ms));
        } catch (const TimeoutError&) {
          silent.push_back(peer);
        }
      }
    } catch (const Error&) {
      return {};
    }
    return silent;
  }

  std::unique_ptr<Messenger> split(std::span<const int> members, const std::string& split_key,
                                   Clock::time_point) override {  // which is that of the membership's timeout
    Membership part = membership_;
    part.rank = static_cast<int>(std::find(members.begin(), members.end(), rank()) - members.begin());
    part.size = static_cast<int>(members.size());
    part.name = membership_.name + "/" + split_key;
    return std::make_unique<GlooMessenger>(part, device_, address_, name(rank()));
  }

 private:
  std::string key(const std::string& what) const { return membership_.name + "/" + what; }

  void exchange_names(const std::string& name) {
    membership_.store->set(key(fmt::format("name/{}", rank())), name);
    const auto deadline = Clock::now() + membership_.timeout;
    WaitNotice notice(name);
    for (int peer = 0; peer < size(); ++peer) {
      try {
        names_.push_back(get_with_notice(*membership_.store, key(fmt::format("name/{}", peer)), deadline, notice, [&] {
          return fmt::format("rank {} to join the group {}", peer, membership_.name);
        }));
      } catch (const TimeoutError&) {
        throw_error<TimeoutError>("[gloo] rank {} waited {} s for rank {}, which never came", rank(),
                                  static_cast<double>(membership_.timeout.count()) / 1000, peer);
      }
    }
  }

  Membership membership_;
  Device device_;
  std::string address_;
  std::vector<std::string> names_;
  std::shared_ptr<ProvenContext> context_;
  Waits waits_;
  std::atomic<bool> stopping_ = false, stopped_ = false;
  std::mutex mutex_;
  std::string reason_;
};

class GlooTransfer : public Transfer {
 public:
  GlooTransfer(GlooMessenger& messenger, std::unique_ptr<gloo::transport::UnboundBuffer> buffer, bool sending, int peer)
      : messenger_(messenger), buffer_(std::move(buffer)), sending_(sending), peer_(peer) {}
  void wait(Clock::time_point deadline) override { messenger_.wait(*buffer_, sending_, peer_, deadline); }

 private:
  GlooMessenger& messenger_;
  std::unique_ptr<gloo::transport::UnboundBuffer> buffer_;
  bool sending_;
  int peer_;
};

// Gloo names the address where it was handed the connection, which says nothing of the peer.
std::string words_of(const std::exception& error) {
  std::string text = error.what();
  const std::string address = fmt::format(" [{}]:", kMeetingPoint);
  if (const size_t at = text.find(address); at != std::string::npos)
    text.erase(at, std::min(text.find_first_not_of("0123456789", at + address.size()), text.size()) - at);
  return text;
}

// Runs a call of Gloo; its errors become ours and name the rank.
template <class Call>
auto with_peer(const std::string& peer, const Call& call) {
  try {
    return call();
  } catch (const std::bad_alloc&) {  // which is no peer's fault
    throw;
  } catch (const std::exception& error) {
    throw_error<CommError>("{} is gone: {}", peer, words_of(error));
  }
}

std::unique_ptr<Transfer> GlooMessenger::send(std::span<const std::byte> message, int to, int tag) {
  return with_peer(name(to), [&] {
    auto buffer = context_->createUnboundBuffer(const_cast<std::byte*>(message.data()), message.size());
    buffer->send(to, static_cast<uint64_t>(tag));
    return std::make_unique<GlooTransfer>(*this, std::move(buffer), true, to);
  });
}

std::unique_ptr<Transfer> GlooMessenger::receive(std::span<std::byte> message, int from, int tag) {
  return with_peer(name(from), [&] {
    auto buffer = context_->createUnboundBuffer(message.data(), message.size());
    buffer->recv(from, static_cast<uint64_t>(tag));
    return std::make_unique<GlooTransfer>(*this, std::move(buffer), false, from);
  });
}

void GlooMessenger::wait(gloo::transport::UnboundBuffer& buffer, bool sending, int peer, Clock::time_point deadline) {
  auto begun = Clock::now(), asked = begun, probe = begun;
  auto between_probes = kLookUp;
  while (!with_peer(name(peer), [&] { return waits_.once(buffer, sending); })) {
    auto now = Clock::now();
    if (stopped_) throw_error<CommError>("the group was stopped");
    if (now > deadline)
      throw_error<TimeoutError>("waited {:.1f} s for {}", std::chrono::duration<double>(now - begun).count(),
                                name(peer));
    if (now < probe) continue;
    probe = now + between_probes;
    between_probes = std::min(between_probes * 2, 800ms);
    // A broken connection refuses even an empty receive; what came before it broke still counts.
    try {
      context_->createUnboundBuffer(nullptr, 0)->recv(peer, kProbeSlot);
    } catch (const std::exception& error) {
      if (with_peer(name(peer), [&] { return waits_.once(buffer, sending); })) return;
      throw_error<CommError>("{} is gone: {}", name(peer), words_of(error));
    }
    if (now - asked < kAskTheStore) continue;
    asked = now;
    if (!stop_reason().empty()) throw_error<CommError>("the group was stopped");
  }
}

}  // namespace

std::shared_ptr<Group> gloo_group(const Membership& membership, const GlooOptions& options) {
  check_membership("gloo", membership.rank, membership.size);
  ignore_broken_pipes();
  auto messenger =
      std::make_unique<GlooMessenger>(membership, gloo_device(), address_of(options), process_name(membership.rank));
  return std::make_shared<MessageGroup>(std::move(messenger),
                                        MessageGroup::Options{membership.timeout, membership.store});
}

bool has_gloo() { return true; }

namespace {
const bool gloo_registered = register_group_backend(
    "gloo", [](const GroupRequest& request) { return gloo_group(request.membership, {.address = request.address}); });
}  // namespace

}  // namespace bonfire::comm
