#include "bonfire/comm/network.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <thread>
#include <utility>

#include "bonfire/base/error.h"
#include "bonfire/base/interrupted.h"

namespace bonfire::comm {

namespace {

using Clock = std::chrono::steady_clock;
using AddressList = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

FileDescriptor new_socket(int family) {
  return FileDescriptor(::socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

std::string literal_of(const sockaddr* address) {
  char text[NI_MAXHOST] = "";
  socklen_t size = address->sa_family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
  ::getnameinfo(address, size, text, sizeof text, nullptr, 0, NI_NUMERICHOST);
  return text;
}

// What getaddrinfo says, or why it says nothing.
std::pair<AddressList, std::string> look_up(const std::string& host, int port) {
  std::string bare = host.starts_with('[') && host.ends_with(']') ? host.substr(1, host.size() - 2) : host;
  addrinfo wanted{};
  wanted.ai_socktype = SOCK_STREAM;
  wanted.ai_flags = AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const std::string service = std::to_string(port);
  int error = ::getaddrinfo(bare.c_str(), service.c_str(), &wanted, &found);
  // A bare system may have no file that says what localhost is; no name at all means the same.
  if (error != 0 && bare == "localhost") error = ::getaddrinfo(nullptr, service.c_str(), &wanted, &found);
  return {AddressList(error == 0 ? found : nullptr, &freeaddrinfo), error == 0 ? "" : ::gai_strerror(error)};
}

// 0, or an errno.
int bind_to(int socket, const std::string& literal) {
  auto [found, error] = look_up(literal, 0);
  if (!found) return EADDRNOTAVAIL;
  return ::bind(socket, found->ai_addr, found->ai_addrlen) == 0 ? 0 : errno;
}

// 0, or the errno that connecting ends with.
int connect_within(int socket, const addrinfo& address, std::chrono::milliseconds timeout) {
  if (::connect(socket, address.ai_addr, address.ai_addrlen) == 0) return 0;
  if (errno != EINPROGRESS && errno != EINTR) return errno;  // interrupted, it goes on by itself
  pollfd wait{socket, POLLOUT, 0};
  if (base::poll_until({&wait, 1}, Clock::now() + timeout) <= 0) return ETIMEDOUT;
  int error = 0;
  socklen_t size = sizeof error;
  ::getsockopt(socket, SOL_SOCKET, SO_ERROR, &error, &size);
  return error;
}

std::string local_end(int socket) {
  sockaddr_storage own{};
  socklen_t size = sizeof own;
  ::getsockname(socket, reinterpret_cast<sockaddr*>(&own), &size);
  return literal_of(reinterpret_cast<const sockaddr*>(&own));
}

}  // namespace

std::vector<Interface> interfaces() {
  std::vector<Interface> all;
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return all;
  for (int family : {AF_INET, AF_INET6})
    for (const ifaddrs* one = list; one != nullptr; one = one->ifa_next)
      if (one->ifa_addr != nullptr && one->ifa_addr->sa_family == family && (one->ifa_flags & IFF_UP) != 0)
        all.push_back({one->ifa_name, literal_of(one->ifa_addr), (one->ifa_flags & IFF_LOOPBACK) != 0});
  ::freeifaddrs(list);
  return all;
}

std::string list_of(const std::vector<Interface>& interfaces) {
  std::vector<std::string> words;
  for (const Interface& one : interfaces) words.push_back(one.name + " " + one.address);
  return fmt::format("{}", fmt::join(words, ", "));
}

std::string resolve(const std::string& host) {
  auto [found, error] = look_up(host, 0);
  if (!found) throw_error<CommError>("[network] the host '{}' is not known here: {}", host, error);
  return literal_of(found->ai_addr);
}

bool is_loopback(const std::string& literal) { return literal.starts_with("127.") || literal == "::1"; }

std::string host_and_port(const std::string& host, int port) {
  bool bare_v6 = host.find(':') != std::string::npos && !host.starts_with('[');
  return bare_v6 ? fmt::format("[{}]:{}", host, port) : fmt::format("{}:{}", host, port);
}

Route reach(const std::string& host, int port, std::chrono::milliseconds timeout, const std::string& from,
            const std::function<void(const std::string&)>& waiting) {
  constexpr std::chrono::milliseconds kLongestTry{3000}, kPause{50};
  const Clock::time_point end = Clock::now() + timeout;
  for (;;) {
    auto [found, reasons] = look_up(host, port);
    for (const addrinfo* one = found.get(); one != nullptr; one = one->ai_next) {
      auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - Clock::now());
      FileDescriptor socket = new_socket(one->ai_family);
      int error = socket.get() < 0 ? errno : from.empty() ? 0 : bind_to(socket.get(), from);
      if (error == 0) error = connect_within(socket.get(), *one, std::clamp(left, kPause, kLongestTry));
      if (error == 0) return {literal_of(one->ai_addr), local_end(socket.get())};
      reasons += fmt::format("{}{}: {}", reasons.empty() ? "" : ", ", literal_of(one->ai_addr), std::strerror(error));
    }
    if (Clock::now() + kPause >= end)
      throw_error<CommError>(
          "[network] {} cannot be reached{} within {} s ({}); is the job's first host up, is this its address and "
          "port, "
          "and does no firewall stand between? This host has {}",
          host_and_port(host, port), from.empty() ? "" : " from " + from, static_cast<double>(timeout.count()) / 1000,
          reasons, list_of(interfaces()));
    if (waiting) waiting(reasons);
    std::this_thread::sleep_for(kPause);  // nothing tells us when a port of another host opens
  }
}

bool is_refused(const std::string& literal, int port, std::chrono::milliseconds timeout) {
  auto [found, error] = look_up(literal, port);
  if (!found) return false;
  FileDescriptor socket = new_socket(found->ai_family);
  return socket.get() >= 0 && connect_within(socket.get(), *found, timeout) == ECONNREFUSED;
}

std::string choose_address(const std::string& choice, const std::vector<Interface>& all) {
  bool exclude = choice.starts_with('^'), exact = choice.starts_with('=');
  std::vector<std::string> names;
  for (size_t begin = exclude || exact ? 1 : 0; begin <= choice.size();) {
    size_t end = std::min(choice.find(',', begin), choice.size());
    if (end > begin) names.push_back(choice.substr(begin, end - begin));
    begin = end + 1;
  }
  auto named = [&](const Interface& one, bool whole) {
    return std::any_of(names.begin(), names.end(),
                       [&](const std::string& name) { return whole ? one.name == name : one.name.starts_with(name); });
  };
  for (bool whole : {true, false})  // eth1 before eth10
    for (const Interface& one : all) {
      if (exclude ? !one.loopback && !named(one, exact) : named(one, whole || exact)) return one.address;
    }
  throw_error<ConfigError>("[network] no interface of this host fits '{}'; it has {}", choice, list_of(all));
}

FileDescriptor listen_on(const std::string& literal, int port) {
  auto [found, unknown] = look_up(literal, port);
  if (!found) throw_error<CommError>("[network] the host '{}' is not known here: {}", literal, unknown);
  FileDescriptor socket = new_socket(found->ai_family);
  int on = 1;
  if (socket.get() >= 0) ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (socket.get() >= 0 && ::bind(socket.get(), found->ai_addr, found->ai_addrlen) == 0 &&
      ::listen(socket.get(), SOMAXCONN) == 0)
    return socket;
  int error = errno;
  if (error == EADDRINUSE)
    throw_error<CommError>(
        "[network] port {} of {} is in use by another program; choose another port, or 0 for a "
        "free one",
        port, literal);
  if (error == EADDRNOTAVAIL)
    throw_error<CommError>("[network] {} is not an address of this host, which has {}", literal, list_of(interfaces()));
  throw_error<CommError>("[network] cannot listen on {}: {}", host_and_port(literal, port), std::strerror(error));
}

int port_of(const FileDescriptor& socket) {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  ::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &length);
  return ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(address).sin6_port
                                             : reinterpret_cast<sockaddr_in&>(address).sin_port);
}

FileDescriptor call(const std::string& literal, int port, Clock::time_point deadline) {
  auto [found, unknown] = look_up(literal, port);
  if (!found) return {};
  FileDescriptor socket = new_socket(found->ai_family);
  if (socket.get() < 0) return {};
  auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
  return connect_within(socket.get(), *found, left) == 0 ? std::move(socket) : FileDescriptor{};
}

}  // namespace bonfire::comm
