#include "bonfire/comm/gate.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/timerfd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <string_view>
#include <thread>
#include <utility>

#include "bonfire/base/error.h"
#include "bonfire/base/interrupted.h"
#include "bonfire/comm/network.h"
#include "bonfire/comm/secret.h"

namespace bonfire::comm {

namespace {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

constexpr size_t kLongestWord = 1024;  // bytes of a question, and of an answer
constexpr size_t kAtOnce = 16;         // calls taken between two looks at those who are here
constexpr std::string_view kEnd = "\r\n\r\n";
constexpr std::string_view kVerb = "CONNECT ";
constexpr const char* kMannerHeader = "bonfire-manner";

// Of a line "NAME: value" after the first; "" where there is none.
std::string_view header(std::string_view text, std::string_view name) {
  const std::string begin = fmt::format("\r\n{}: ", name);
  const size_t at = text.find(begin);
  if (at == std::string_view::npos) return {};
  text.remove_prefix(at + begin.size());
  return text.substr(0, text.find("\r\n"));
}

void send_word(int socket, const std::string& word) {
  ::send(socket, word.data(), word.size(), MSG_NOSIGNAL);  // a few bytes, the first ones: there is room for them
}

in6_addr host_of(const sockaddr_storage& address) {
  if (address.ss_family == AF_INET6) return reinterpret_cast<const sockaddr_in6&>(address).sin6_addr;
  in6_addr mapped{};
  mapped.s6_addr[10] = mapped.s6_addr[11] = 0xff;
  std::memcpy(mapped.s6_addr + 12, &reinterpret_cast<const sockaddr_in&>(address).sin_addr, 4);
  return mapped;
}

FileDescriptor spare_descriptor() { return FileDescriptor(::open("/dev/null", O_RDONLY | O_CLOEXEC)); }

// An eighth of what this process may have at most.
size_t bounded(size_t strangers) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return strangers;
  return std::clamp<size_t>(limit.rlim_cur / 8, 1, strangers);
}

}  // namespace

Gate::Gate(GateOptions options)
    : options_(std::move(options)),
      listener_(listen_on(options_.address, options_.port)),
      events_(::epoll_create1(EPOLL_CLOEXEC)),
      clock_(::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK)),
      spare_(spare_descriptor()) {
  options_.strangers = bounded(options_.strangers);
  if (!watch(listener_.get()) || !watch(clock_.get()))
    throw_error<CommError>("[gate] cannot watch port {}: {}", port(), std::strerror(errno));
}

int Gate::port() const { return port_of(listener_); }

bool Gate::watch(int descriptor) {
  epoll_event wanted{};
  wanted.events = EPOLLIN;
  wanted.data.fd = descriptor;
  return ::epoll_ctl(events_.get(), EPOLL_CTL_ADD, descriptor, &wanted) == 0;
}

// Those who have said something come first: they may be on their way in.
std::vector<Gate::Caller> Gate::take() {
  epoll_event ready[2 * kAtOnce];
  const int count = base::uninterrupted([&] { return ::epoll_wait(events_.get(), ready, std::size(ready), 0); });
  bool more = false;
  for (int i = 0; i < count; ++i) {
    if (ready[i].data.fd == listener_.get()) more = true;
    auto stranger = std::find_if(strangers_.begin(), strangers_.end(),
                                 [&](const Stranger& one) { return one.socket.get() == ready[i].data.fd; });
    if (stranger != strangers_.end() && !hear(*stranger)) strangers_.erase(stranger);
  }
  if (more) let_some_in_sight();
  drop_the_late();
  return std::exchange(callers_, {});
}

void Gate::let_some_in_sight() {
  for (size_t i = 0; i < kAtOnce; ++i) {
    sockaddr_storage address{};
    socklen_t length = sizeof address;
    auto accept = [&] {
      return FileDescriptor(base::uninterrupted([&] {
        return ::accept4(listener_.get(), reinterpret_cast<sockaddr*>(&address), &length, SOCK_CLOEXEC | SOCK_NONBLOCK);
      }));
    };
    FileDescriptor socket = accept();
    if (socket.get() < 0 && (errno == EMFILE || errno == ENFILE)) {
      spare_ = {};
      accept();
      spare_ = spare_descriptor();
      return;
    }
    if (socket.get() < 0) return;
    if (strangers_.size() >= options_.strangers) make_room();
    const int on = 1;
    ::setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (!watch(socket.get())) continue;
    strangers_.push_back({std::move(socket), host_of(address), Clock::now() + options_.patience});
  }
}

void Gate::make_room() {
  auto key = [](const Stranger& one) {
    return std::string_view(reinterpret_cast<const char*>(&one.from), sizeof one.from);
  };
  std::map<std::string_view, int> count;
  for (const Stranger& one : strangers_) ++count[key(one)];
  strangers_.erase(std::max_element(strangers_.begin(), strangers_.end(), [&](const Stranger& a, const Stranger& b) {
    return count[key(a)] < count[key(b)];
  }));
}

bool Gate::hear(Stranger& stranger) {
  char bytes[kLongestWord];
  const size_t room = kLongestWord - stranger.said.size();
  const ssize_t count = base::uninterrupted([&] { return ::recv(stranger.socket.get(), bytes, room, 0); });
  if (count < 0) return errno == EAGAIN || errno == EWOULDBLOCK;
  if (count == 0) return false;
  stranger.said.append(bytes, static_cast<size_t>(count));
  const std::string_view said = stranger.said;
  if (!said.starts_with(kVerb.substr(0, said.size()))) return false;
  if (!said.ends_with(kEnd)) return said.size() < kLongestWord && said.find(kEnd) == std::string_view::npos;
  const size_t name_end = said.find(' ', kVerb.size());
  if (name_end == std::string_view::npos || !same_secret(header(said, kPassHeader), options_.pass)) {
    send_word(stranger.socket.get(), "HTTP/1.0 403 Forbidden\r\n\r\n");
    return false;
  }
  send_word(stranger.socket.get(), fmt::format("HTTP/1.0 200 OK\r\n{}: {}\r\n\r\n", kMannerHeader, options_.manner));
  ::epoll_ctl(events_.get(), EPOLL_CTL_DEL, stranger.socket.get(), nullptr);
  callers_.push_back({std::string(said.substr(kVerb.size(), name_end - kVerb.size())), std::move(stranger.socket)});
  return false;
}

// Sets the clock for the next one, too.
void Gate::drop_the_late() {
  const Clock::time_point now = Clock::now();
  while (!strangers_.empty() && strangers_.front().until <= now) strangers_.pop_front();
  itimerspec next{};  // none
  if (!strangers_.empty()) {
    const auto left = std::chrono::nanoseconds(strangers_.front().until - now).count();
    next.it_value = {.tv_sec = left / 1'000'000'000, .tv_nsec = left % 1'000'000'000};
  }
  ::timerfd_settime(clock_.get(), 0, &next, nullptr);
}

namespace {

// What comes up to the end of an answer; less where the other end says no more, or not in time.
std::string read_answer(int socket, Clock::time_point deadline) {
  std::string answer;
  while (!answer.ends_with(kEnd) && answer.size() < kLongestWord) {
    pollfd question{socket, POLLIN, 0};
    if (base::poll_until({&question, 1}, deadline) <= 0) break;
    char byte = 0;  // no more than the answer: what follows it is another's
    if (base::uninterrupted([&] { return ::recv(socket, &byte, 1, 0); }) != 1) break;
    answer += byte;
  }
  return answer;
}

}  // namespace

FileDescriptor knock_only(const std::string& literal, int port, const std::string& name, const std::string& pass,
                          Clock::time_point deadline) {
  FileDescriptor socket = call(literal, port, deadline);
  if (socket.get() >= 0)
    send_word(socket.get(), fmt::format("{}{} HTTP/1.0\r\n{}: {}{}", kVerb, name, kPassHeader, pass, kEnd));
  return socket;
}

Answer knock(const std::string& literal, int port, const std::string& name, const std::string& pass,
             Clock::time_point deadline) {
  constexpr auto kPause = 50ms, kAbsence = 3'000ms;
  for (auto there = Clock::now(); Clock::now() - there < kAbsence;) {
    FileDescriptor socket = knock_only(literal, port, name, pass, deadline);
    if (socket.get() >= 0) {
      const std::string answer = read_answer(socket.get(), deadline);
      const std::string_view status = std::string_view(answer).substr(0, 12);
      if (status == "HTTP/1.0 403") return {.kind = Answer::Kind::refused};
      if (const std::string_view manner = header(answer, kMannerHeader); status == "HTTP/1.0 200" && !manner.empty())
        return {.kind = Answer::Kind::welcome, .socket = std::move(socket), .manner = std::string(manner)};
      there = Clock::now();
    }
    if (Clock::now() + kPause >= deadline) break;
    std::this_thread::sleep_for(kPause);  // nothing tells when there is room at the gate
  }
  return {};
}

}  // namespace bonfire::comm
