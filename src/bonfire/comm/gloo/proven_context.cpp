#include "bonfire/comm/gloo/proven_context.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <gloo/transport/context.h>
#include <gloo/transport/pair.h>
#include <gloo/transport/tcp/address.h>
#include <gloo/transport/tcp/loop.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <sys/socket.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>

#include "bonfire/base/error.h"
#include "bonfire/base/interrupted.h"
#include "bonfire/base/scheduling.h"
#include "bonfire/comm/network.h"

namespace bonfire::comm {

namespace {

namespace tcp = gloo::transport::tcp;

sockaddr_in end_of(int socket, int (*which)(int, sockaddr*, socklen_t*)) {
  sockaddr_in address{};
  socklen_t length = sizeof address;
  if (which(socket, reinterpret_cast<sockaddr*>(&address), &length) != 0 || address.sin_family != AF_INET) return {};
  return address;
}

bool same_end(const sockaddr_in& one, const sockaddr_in& other) {
  return one.sin_family == AF_INET && other.sin_family == AF_INET && one.sin_port == other.sin_port &&
         one.sin_addr.s_addr == other.sin_addr.s_addr;
}

// This process's descriptor of a connection that comes from there; -1: it is another's.
int descriptor_of(const sockaddr_in& end) {
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    const std::string name = entry.path().filename();
    int number = -1;
    std::from_chars(name.data(), name.data() + name.size(), number);
    if (same_end(end_of(number, ::getsockname), end)) return number;
  }
  return -1;
}

// Any of the loopback device's addresses but the first: nobody finds it by trying ports in a row.
std::string hidden_address() {
  uint8_t part[3] = {};
  if (::getrandom(part, sizeof part, 0) != sizeof part) throw_error<CommError>("[gloo] no random numbers");
  return fmt::format("127.{}.{}.{}", part[0], part[1], 2 + part[2] % 250);
}

}  // namespace

std::shared_ptr<tcp::Device> gloo_device() {
  tcp::attr attributes;
  attributes.hostname = hidden_address();
  const base::InterruptsNobody quiet;  // nor does Gloo's thread, which is started here and moves what ranks send
  try {
    return std::dynamic_pointer_cast<tcp::Device>(tcp::CreateDevice(attributes));
  } catch (const std::exception& error) {
    throw_error<CommError>("[gloo] the loopback device of this host cannot be used: {}", error.what());
  }
}

ProvenContext::ProvenContext(int rank, std::vector<FileDescriptor> sockets, std::shared_ptr<tcp::Device> device,
                             std::chrono::milliseconds timeout)
    : gloo::Context(rank, static_cast<int>(sockets.size())) {
  setTimeout(timeout);
  transportContext_ = device->createContext(rank, size);
  transportContext_->setTimeout(timeout);
  for (int peer = 0; peer < size; ++peer)
    if (peer != rank) run_over(peer, sockets[static_cast<size_t>(peer)], *device);
  device_ = std::move(device);
}

void ProvenContext::run_over(int peer, const FileDescriptor& socket, tcp::Device& device) {
  const int on = 1;
  ::setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  const FileDescriptor listener = listen_on(kMeetingPoint, 0);
  sockaddr_storage here{};
  socklen_t length = sizeof here;
  ::getsockname(listener.get(), reinterpret_cast<sockaddr*>(&here), &length);
  auto& pair = transportContext_->createPair(peer);
  pair->connect(tcp::Address(here, 0).bytes());

  // Others may have called too.
  FileDescriptor made;
  int descriptor = -1;
  while (descriptor < 0) {
    made =
        FileDescriptor(base::uninterrupted([&] { return ::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC); }));
    if (made.get() < 0) break;
    descriptor = descriptor_of(end_of(made.get(), ::getpeername));
  }
  auto* handler = dynamic_cast<tcp::Handler*>(pair.get());
  if (descriptor < 0 || handler == nullptr || ::dup3(socket.get(), descriptor, O_CLOEXEC) < 0)
    throw_error<CommError>("[gloo] the connection with rank {} cannot be handed to Gloo: {}", peer,
                           std::strerror(errno));
  device.registerDescriptor(descriptor, EPOLLIN, handler);  // the one before has gone with its connection
}

}  // namespace bonfire::comm
