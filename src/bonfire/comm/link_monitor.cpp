#include "bonfire/comm/link_monitor.h"

#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "bonfire/base/error.h"
#include "bonfire/comm/gate.h"
#include "bonfire/comm/secret.h"

namespace bonfire::comm {

namespace {

using namespace std::chrono_literals;

constexpr int kMostProbes = 100;  // Linux takes up to 127
constexpr auto kSlice = 500ms;    // of waiting for the store
constexpr auto kHandshake = 3s;
const std::string kNotListening = "none";  // said in place of a secret, so that nobody waits for one

std::string key_of(int rank) { return fmt::format("link/{}", rank); }

template <class T>
void set(int socket, int level, int option, const T& value) {
  ::setsockopt(socket, level, option, &value, sizeof value);
}

// A link that answers none of several questions, a second apart, after a second of silence, is cut: when the time-out
// is over.
void keep_alive(int socket, std::chrono::milliseconds timeout) {
  const auto seconds = static_cast<int>(std::max<int64_t>(2, std::chrono::ceil<std::chrono::seconds>(timeout).count()));
  const int between = (seconds - 2) / kMostProbes + 1;
  set(socket, SOL_SOCKET, SO_KEEPALIVE, 1);
  set(socket, IPPROTO_TCP, TCP_KEEPIDLE, 1);
  set(socket, IPPROTO_TCP, TCP_KEEPINTVL, between);
  set(socket, IPPROTO_TCP, TCP_KEEPCNT, (seconds - 1 + between - 1) / between);
}

// Seconds since something came through it.
double silence_of(int socket) {
  tcp_info info{};
  socklen_t length = sizeof info;
  ::getsockopt(socket, IPPROTO_TCP, TCP_INFO, &info, &length);
  return static_cast<double>(info.tcpi_last_ack_recv) / 1000;
}

// The first rank of each host, by its machine.
std::vector<Peer> first_ranks(const std::vector<Peer>& peers) {
  std::vector<Peer> firsts;
  std::set<std::string> seen;
  for (const Peer& peer : peers)
    if (seen.insert(peer.machine).second) firsts.push_back(peer);
  return firsts;
}

}  // namespace

class LinkMonitor::Watch {
 public:
  Watch(const Rendezvous& job, Alarm alarm)
      : store_(job.store),
        alarm_(std::move(alarm)),
        timeout_(job.environment.node_timeout),
        wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    for (const Peer& first : first_ranks(job.peers)) {
      if (first.rank == job.environment.rank)
        self_ = first;
      else
        others_.emplace(first.rank, first);
    }
  }

  bool needed() const { return self_ && !others_.empty(); }
  void wake() const { ::eventfd_write(wake_.get(), 1); }

  // Each calls those before it, and is called by those after.
  void run(const std::stop_token& stop) try {
    const std::string pass = random_secret();
    open_gate(pass);
    store_->set(key_of(self_->rank), gate_ ? fmt::format("{} {}", pass, gate_->port()) : kNotListening);
    for (const auto& [rank, other] : others_)
      if (rank < self_->rank) call_on(other, stop);
    while (!stop.stop_requested()) look();
  } catch (const Error&) {  // the store is gone; others say so
  }

 private:
  // What the other has told the store: its secret and port, or kNotListening. "" when this is stopped first.
  std::string word_of(const Peer& other, const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      try {
        return store_->get(key_of(other.rank), kSlice);
      } catch (const TimeoutError&) {  // not yet
      }
    }
    return "";
  }

  void open_gate(const std::string& pass) try {
    gate_.emplace(GateOptions{.address = self_->address, .pass = pass, .strangers = 16});
  } catch (const CommError&) {  // others are told
  }

  void call_on(const Peer& other, const std::stop_token& stop) {
    const std::string told = word_of(other, stop);
    const size_t blank = told.find(' ');
    if (blank == std::string::npos) return;
    FileDescriptor made = knock_only(other.address, std::atoi(told.c_str() + blank), std::to_string(self_->rank),
                                     told.substr(0, blank), std::chrono::steady_clock::now() + kHandshake);
    if (made.get() >= 0) hold(other.rank, std::move(made));
  }

  void answer() {
    for (Gate::Caller& caller : gate_->take()) {
      const int rank = std::atoi(caller.name.c_str());
      if (others_.contains(rank)) hold(rank, std::move(caller.socket));
    }
  }

  void hold(int rank, FileDescriptor socket) {
    keep_alive(socket.get(), timeout_);
    lines_[rank] = std::move(socket);
  }

  void look() {
    std::vector<pollfd> sources{{wake_.get(), POLLIN, 0}, {gate_ ? gate_->descriptor() : -1, POLLIN, 0}};
    std::vector<int> ranks;
    for (const auto& [rank, line] : lines_) {
      sources.push_back({line.get(), POLLIN | POLLRDHUP, 0});
      ranks.push_back(rank);
    }
    if (::poll(sources.data(), sources.size(), -1) <= 0) return;
    if (sources[1].revents != 0) answer();
    for (size_t i = 2; i < sources.size(); ++i)
      if (sources[i].revents != 0 && !(sources[i].revents == POLLIN && says_something(sources[i].fd)))
        lose(ranks[i - 2]);
  }

  // The gate's answer; nothing else is ever sent.
  static bool says_something(int socket) {
    char bytes[256];
    return ::recv(socket, bytes, sizeof bytes, MSG_DONTWAIT) > 0;
  }

  // A process that has ended closes its end; an error of the link's is one.
  void lose(int rank) {
    int error = 0;
    socklen_t length = sizeof error;
    ::getsockopt(lines_[rank].get(), SOL_SOCKET, SO_ERROR, &error, &length);
    const double silent = silence_of(lines_[rank].get());
    lines_.erase(rank);
    if (error != ETIMEDOUT && error != EHOSTUNREACH && error != ENETUNREACH && error != ENETDOWN) return;
    const Peer& other = others_.at(rank);
    alarm_(fmt::format("the hosts {} ({}) and {} ({}) have lost each other: nothing came through for {:.1f} s",
                       self_->host, self_->address, other.host, other.address, silent));
  }

  std::shared_ptr<Store> store_;
  Alarm alarm_;
  std::chrono::milliseconds timeout_;
  FileDescriptor wake_;
  std::optional<Peer> self_;
  std::map<int, Peer> others_;           // by rank
  std::optional<Gate> gate_;             // whose pass the store tells: no stranger's connection is taken for a host's
  std::map<int, FileDescriptor> lines_;  // by rank
};

LinkMonitor::LinkMonitor(const Rendezvous& job, Alarm alarm) : watch_(std::make_unique<Watch>(job, std::move(alarm))) {
  if (watch_->needed()) thread_ = std::jthread([this](const std::stop_token& stop) { watch_->run(stop); });
}

LinkMonitor::~LinkMonitor() {
  thread_.request_stop();
  watch_->wake();
  if (thread_.joinable()) thread_.join();
}

}  // namespace bonfire::comm
