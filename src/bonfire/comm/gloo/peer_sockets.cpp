#include "bonfire/comm/gloo/peer_sockets.h"

#include <fmt/format.h>
#include <poll.h>

#include <charconv>
#include <nlohmann/json.hpp>

#include "bonfire/base/error.h"
#include "bonfire/base/interrupted.h"
#include "bonfire/comm/gate.h"
#include "bonfire/comm/network.h"
#include "bonfire/comm/secret.h"
#include "bonfire/comm/wait_notice.h"

namespace bonfire::comm {

namespace {

using Clock = WaitNotice::Clock;

class Meeting {
 public:
  Meeting(const Membership& membership, const std::string& address)
      : membership_(membership), sockets_(static_cast<size_t>(membership.size)), pass_(random_secret()) {
    const size_t others = sockets_.size();  // may all come at once, before this rank looks
    Gate gate({.address = address, .pass = pass_, .strangers = 64 + others});
    membership_.store->set(key_of(membership_.rank),
                           nlohmann::json{{"address", address}, {"port", gate.port()}, {"pass", pass_}}.dump());
    for (int peer = 0; peer < membership_.rank; ++peer) call_on(peer);
    while (!missing().empty()) answer(gate);
  }

  std::vector<FileDescriptor> sockets() { return std::move(sockets_); }

 private:
  std::string key_of(int rank) const { return fmt::format("{}/peers/{}", membership_.name, rank); }

  FileDescriptor& socket_of(int rank) { return sockets_[static_cast<size_t>(rank)]; }

  std::vector<int> missing() {
    std::vector<int> ranks;
    for (int rank = membership_.rank + 1; rank < membership_.size; ++rank)
      if (socket_of(rank).get() < 0) ranks.push_back(rank);
    return ranks;
  }

  [[noreturn]] void never_came(int peer) const {
    throw_error<TimeoutError>("[gloo] rank {} waited {} s for rank {}, which never came", membership_.rank,
                              static_cast<double>(membership_.timeout.count()) / 1000, peer);
  }

  std::string word_of(int peer) {
    try {
      return get_with_notice(*membership_.store, key_of(peer), deadline_, notice_,
                             [&] { return fmt::format("rank {} to join the group {}", peer, membership_.name); });
    } catch (const TimeoutError&) {
      never_came(peer);
    }
  }

  void call_on(int peer) {
    const auto word = nlohmann::json::parse(word_of(peer));
    const std::string address = word.at("address");
    const int port = word.at("port");
    Answer answer = knock(address, port, std::to_string(membership_.rank), word.at("pass"), deadline_);
    if (answer.kind != Answer::Kind::welcome)
      throw_error<CommError>(
          "[gloo] rank {} cannot reach rank {} at {}: {}", membership_.rank, peer, host_and_port(address, port),
          answer.kind == Answer::Kind::refused ? "it refuses this one"
                                               : "nobody answers; is it gone, or a firewall between?");
    socket_of(peer) = std::move(answer.socket);
  }

  void answer(Gate& gate) {
    pollfd question{gate.descriptor(), POLLIN, 0};
    if (base::poll_until({&question, 1}, std::min(deadline_, notice_.next())) <= 0) {
      if (Clock::now() >= deadline_) never_came(missing()[0]);
      notice_.look([&] { return fmt::format("{} to join the group {}", list_of_ranks(missing()), membership_.name); });
    }
    for (Gate::Caller& caller : gate.take()) {
      int rank = -1;
      std::from_chars(caller.name.data(), caller.name.data() + caller.name.size(), rank);
      if (rank <= membership_.rank || rank >= membership_.size || socket_of(rank).get() >= 0) continue;
      socket_of(rank) = std::move(caller.socket);
    }
  }

  const Membership& membership_;
  const Clock::time_point deadline_ = Clock::now() + membership_.timeout;
  WaitNotice notice_{fmt::format("rank {}", membership_.rank)};
  std::vector<FileDescriptor> sockets_;  // by rank
  const std::string pass_;
};

}  // namespace

std::vector<FileDescriptor> connect_peers(const Membership& membership, const std::string& address) {
  return Meeting(membership, address).sockets();
}

}  // namespace bonfire::comm
