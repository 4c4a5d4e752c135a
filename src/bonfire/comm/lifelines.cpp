#include "bonfire/comm/lifelines.h"

#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "bonfire/base/error.h"
#include "bonfire/base/interrupted.h"
#include "bonfire/comm/shm/mesh.h"

namespace bonfire::comm {

namespace {

using namespace std::chrono_literals;

constexpr int kMostProbes = 100;  // Linux takes up to 127
constexpr auto kSlice = 500ms;    // of waiting for the store
constexpr timeval kHandshake{3, 0};
const std::string kNotListening = "none";  // said in place of a secret, so that nobody waits for one

struct Hello {
  char secret[32];  // which the store has told: no stranger's connection is taken for a host's
  int32_t rank;
};

std::string key_of(int rank) { return fmt::format("lifeline/{}", rank); }

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

// Calls body(socket, address) for a literal; an empty one when that is none.
template <class Body>
FileDescriptor with_address(const std::string& literal, int port, const Body& body) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_flags = AI_NUMERICHOST;
  hints.ai_socktype = SOCK_STREAM;
  if (::getaddrinfo(literal.c_str(), std::to_string(port).c_str(), &hints, &found) != 0) return {};
  FileDescriptor socket(::socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  set(socket.get(), SOL_SOCKET, SO_SNDTIMEO, kHandshake);
  bool done = body(socket.get(), *found);
  ::freeaddrinfo(found);
  return done ? std::move(socket) : FileDescriptor{};
}

FileDescriptor listen_on(const std::string& literal) {
  return with_address(literal, 0, [](int socket, const addrinfo& address) {
    return ::bind(socket, address.ai_addr, address.ai_addrlen) == 0 && ::listen(socket, 16) == 0;
  });
}

// A call that a signal interrupts goes on by itself.
bool connected(int socket, const addrinfo& address) {
  if (::connect(socket, address.ai_addr, address.ai_addrlen) == 0) return true;
  if (errno != EINTR) return false;
  pollfd question{socket, POLLOUT, 0};
  int error = ETIMEDOUT;
  socklen_t length = sizeof error;
  return base::poll_until({&question, 1}, std::chrono::steady_clock::now() + std::chrono::seconds(kHandshake.tv_sec)) >
             0 &&
         ::getsockopt(socket, SOL_SOCKET, SO_ERROR, &error, &length) == 0 && error == 0;
}

// All of it, in as many pieces as it comes.
bool received(int socket, Hello& hello) {
  auto* at = reinterpret_cast<char*>(&hello);
  for (size_t done = 0; done < sizeof hello;) {
    ssize_t count = base::uninterrupted([&] { return ::recv(socket, at + done, sizeof hello - done, MSG_WAITALL); });
    if (count <= 0) return false;
    done += static_cast<size_t>(count);
  }
  return true;
}

int port_of(const FileDescriptor& listener) {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  ::getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address), &length);
  return ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(address).sin6_port
                                             : reinterpret_cast<sockaddr_in&>(address).sin_port);
}

std::string fresh_secret() {
  uint64_t random[2] = {};
  if (::getrandom(random, sizeof random, 0) != sizeof random) throw_error<CommError>("[lifelines] no random numbers");
  return fmt::format("{:016x}{:016x}", random[0], random[1]);
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

class Lifelines::Watch {
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

  // Each calls those before it, and is called by those behind.
  void run(const std::stop_token& stop) try {
    FileDescriptor listener = listen_on(self_->address);
    secret_ = fresh_secret();
    store_->set(key_of(self_->rank),
                listener.get() < 0 ? kNotListening : fmt::format("{} {}", secret_, port_of(listener)));
    for (const auto& [rank, other] : others_)
      if (rank < self_->rank) call(other, stop);
    while (!stop.stop_requested()) look(listener);
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

  void call(const Peer& other, const std::stop_token& stop) {
    const std::string told = word_of(other, stop);
    Hello hello{.secret = {}, .rank = self_->rank};
    if (told.size() < sizeof hello.secret + 2) return;
    std::memcpy(hello.secret, told.data(), sizeof hello.secret);
    int port = std::atoi(told.c_str() + sizeof hello.secret);
    FileDescriptor made = with_address(other.address, port, [&](int socket, const addrinfo& address) {
      return connected(socket, address) &&
             base::uninterrupted([&] { return ::send(socket, &hello, sizeof hello, MSG_NOSIGNAL); }) == sizeof hello;
    });
    if (made.get() >= 0) hold(other.rank, std::move(made));
  }

  void answer(const FileDescriptor& listener) {
    FileDescriptor made(base::uninterrupted([&] { return ::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC); }));
    if (made.get() < 0) return;
    set(made.get(), SOL_SOCKET, SO_RCVTIMEO, kHandshake);
    Hello hello{};
    if (!received(made.get(), hello) || std::memcmp(hello.secret, secret_.data(), sizeof hello.secret) != 0 ||
        !others_.contains(hello.rank))
      return;
    hold(hello.rank, std::move(made));
  }

  void hold(int rank, FileDescriptor socket) {
    keep_alive(socket.get(), timeout_);
    lines_[rank] = std::move(socket);
  }

  void look(const FileDescriptor& listener) {
    std::vector<pollfd> sources{{wake_.get(), POLLIN, 0}, {listener.get(), POLLIN, 0}};
    std::vector<int> ranks;
    for (const auto& [rank, line] : lines_) {
      sources.push_back({line.get(), POLLIN | POLLRDHUP, 0});
      ranks.push_back(rank);
    }
    if (::poll(sources.data(), sources.size(), -1) <= 0) return;
    if (sources[1].revents != 0) answer(listener);
    for (size_t i = 2; i < sources.size(); ++i)
      if (sources[i].revents != 0) lose(ranks[i - 2]);
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
  std::map<int, Peer> others_;  // by rank
  std::string secret_;
  std::map<int, FileDescriptor> lines_;  // by rank
};

Lifelines::Lifelines(const Rendezvous& job, Alarm alarm) : watch_(std::make_unique<Watch>(job, std::move(alarm))) {
  if (watch_->needed()) thread_ = std::jthread([this](const std::stop_token& stop) { watch_->run(stop); });
}

Lifelines::~Lifelines() {
  thread_.request_stop();
  watch_->wake();
  if (thread_.joinable()) thread_.join();
}

}  // namespace bonfire::comm
