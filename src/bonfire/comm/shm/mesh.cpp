#include "bonfire/comm/shm/mesh.h"

#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <utility>

#include "bonfire/base/error.h"
#include "bonfire/base/interrupted.h"

namespace bonfire::comm {
namespace {

constexpr uint64_t kMagic = 0x626f6e6669726531;  // "bonfire1"

constexpr std::chrono::milliseconds kIdle{5};  // between two calls of `idle`

struct Hello {
  uint64_t magic = kMagic;
  int32_t rank = 0, size = 0;
};

[[noreturn]] void fail(const char* what) { throw_error<CommError>("[shm] {}: {}", what, std::strerror(errno)); }

FileDescriptor new_socket() {
  FileDescriptor made(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (made.get() < 0) fail("cannot make a Unix socket");
  return made;
}

// A name in the kernel: 0, then text, and no 0 at its end.
std::pair<sockaddr_un, socklen_t> address_of(const std::string& name) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (name.size() + 1 > sizeof address.sun_path)
    throw_error<CommError>("[shm] '{}' in the store is not the name of a socket", name);
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  return {address, static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size())};
}

std::string fresh_name() {
  uint64_t random[2];
  if (::getrandom(random, sizeof random, 0) != sizeof random) fail("no random numbers");
  return fmt::format("bonfire-{:016x}{:016x}", random[0], random[1]);
}

bool same_user(const FileDescriptor& socket, uid_t& other) {
  ucred credentials{};
  socklen_t length = sizeof credentials;
  if (::getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &credentials, &length) != 0) fail("cannot ask who a peer is");
  other = credentials.uid;
  return credentials.uid == ::geteuid();
}

using Clock = WaitNotice::Clock;

bool readable(int socket, Clock::time_point deadline) {
  pollfd question{socket, POLLIN, 0};
  return base::poll_until({&question, 1}, deadline) > 0;
}

// A message of a number with room for a descriptor beside it.
struct DescriptorMessage {
  explicit DescriptorMessage(uint64_t& number) : payload{&number, sizeof number} {
    message.msg_iov = &payload;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
  }
  DescriptorMessage(const DescriptorMessage&) = delete;
  DescriptorMessage& operator=(const DescriptorMessage&) = delete;

  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  iovec payload;
  msghdr message{};
};

std::string key_of(const Membership& membership, int rank) { return fmt::format("{}/{}", membership.name, rank); }

}  // namespace

// Each rank connects to those below it and is called by those above.
Mesh::Mesh(const Membership& membership) : rank_(membership.rank), sockets_(static_cast<size_t>(membership.size)) {
  const Clock::time_point deadline = Clock::now() + membership.timeout;
  WaitNotice notice(fmt::format("rank {}", rank_));
  FileDescriptor listener = new_socket();
  std::string name = fresh_name();
  auto [address, length] = address_of(name);
  if (::bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0 ||
      ::listen(listener.get(), membership.size) != 0)
    fail("cannot listen on a Unix socket");
  membership.store->set(key_of(membership, rank_), name);
  for (int peer = 0; peer < rank_; ++peer) connect_to(peer, address_in_store(peer, membership, notice, deadline));
  accept_all(listener, membership, notice, deadline);
}

std::string Mesh::address_in_store(int peer, const Membership& membership, WaitNotice& notice,
                                   Clock::time_point deadline) const {
  try {
    return get_with_notice(*membership.store, key_of(membership, peer), deadline, notice,
                           [&] { return fmt::format("rank {} to join the group {}", peer, membership.name); });
  } catch (const TimeoutError&) {
    never_came(peer, membership);
  }
}

void Mesh::never_came(int peer, const Membership& membership) const {
  throw_error<TimeoutError>("[shm] rank {} waited {} s for rank {}, which never came", rank_,
                            static_cast<double>(membership.timeout.count()) / 1000, peer);
}

void Mesh::connect_to(int peer, const std::string& name) {
  auto [address, length] = address_of(name);
  FileDescriptor made = new_socket();
  if (base::uninterrupted([&] { return ::connect(made.get(), reinterpret_cast<const sockaddr*>(&address), length); }) !=
      0)
    throw_error<CommError>(
        "[shm] rank {} cannot reach rank {} through a Unix socket: {}; ranks that share memory must run on one host "
        "in one network namespace",
        rank_, peer, std::strerror(errno));
  uid_t other = 0;
  if (!same_user(made, other))
    throw_error<CommError>("[shm] rank {} runs as user {}, rank {} as user {}; memory is shared within one user only",
                           rank_, ::geteuid(), peer, other);
  Hello hello{.rank = rank_, .size = static_cast<int32_t>(sockets_.size())};
  if (base::uninterrupted([&] { return ::send(made.get(), &hello, sizeof hello, MSG_NOSIGNAL); }) != sizeof hello)
    throw_error<CommError>("[shm] rank {} hung up while rank {} joined: {}", peer, rank_, std::strerror(errno));
  sockets_[static_cast<size_t>(peer)] = std::move(made);
}

// Whoever runs as another user or does not say a fitting hello is sent away.
void Mesh::accept_all(const FileDescriptor& listener, const Membership& membership, WaitNotice& notice,
                      Clock::time_point deadline) {
  auto missing = [&] {
    std::vector<int> ranks;
    for (int rank = rank_ + 1; rank < membership.size; ++rank)
      if (sockets_[static_cast<size_t>(rank)].get() < 0) ranks.push_back(rank);
    return ranks;
  };
  while (!missing().empty()) {
    if (!readable(listener.get(), std::min(deadline, notice.next()))) {
      if (Clock::now() >= deadline) never_came(missing()[0], membership);
      notice.look([&] { return fmt::format("{} to join the group {}", list_of_ranks(missing()), membership.name); });
      continue;
    }
    FileDescriptor made(base::uninterrupted([&] { return ::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC); }));
    if (made.get() < 0) fail("cannot take a peer's call");  // it would be refused again at once, and for ever
    uid_t other = 0;
    if (!same_user(made, other)) continue;
    Hello hello;
    if (!readable(made.get(), deadline) ||
        base::uninterrupted([&] { return ::recv(made.get(), &hello, sizeof hello, 0); }) != sizeof hello)
      continue;
    if (hello.magic != kMagic || hello.size != membership.size || hello.rank <= rank_ || hello.rank >= hello.size)
      continue;
    FileDescriptor& place = sockets_[static_cast<size_t>(hello.rank)];
    if (place.get() >= 0) continue;
    place = std::move(made);
  }
}

bool Mesh::gone(int rank) const {
  pollfd question{sockets_[static_cast<size_t>(rank)].get(), POLLRDHUP, 0};
  return base::poll_until({&question, 1}, Clock::now()) > 0 &&
         (question.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
}

void Mesh::give(int rank, const FileDescriptor& memory, uint64_t number) const {
  DescriptorMessage one(number);
  cmsghdr* header = CMSG_FIRSTHDR(&one.message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  int descriptor = memory.get();
  std::memcpy(CMSG_DATA(header), &descriptor, sizeof descriptor);
  const int socket = sockets_[static_cast<size_t>(rank)].get();
  if (base::uninterrupted([&] { return ::sendmsg(socket, &one.message, MSG_NOSIGNAL); }) != sizeof number)
    throw_error<CommError>("[shm] rank {} cannot hand memory to rank {}: {}", rank_, rank, std::strerror(errno));
}

FileDescriptor Mesh::take(int rank, uint64_t& number, const std::function<void()>& idle) const {
  int socket = sockets_[static_cast<size_t>(rank)].get();
  while (!readable(socket, Clock::now() + kIdle)) idle();
  DescriptorMessage one(number);
  ssize_t got = base::uninterrupted([&] { return ::recvmsg(socket, &one.message, MSG_CMSG_CLOEXEC); });
  cmsghdr* header = CMSG_FIRSTHDR(&one.message);
  if (got != sizeof number || header == nullptr || header->cmsg_type != SCM_RIGHTS)
    throw_error<CommError>("[shm] rank {} hung up where it should hand over memory", rank);
  int descriptor = -1;
  std::memcpy(&descriptor, CMSG_DATA(header), sizeof descriptor);
  return FileDescriptor(descriptor);
}

}  // namespace bonfire::comm
