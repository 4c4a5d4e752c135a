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

namespace bonfire::comm {
namespace {

constexpr uint64_t kMagic = 0x626f6e6669726531;  // "bonfire1"

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

int milliseconds_until(std::chrono::steady_clock::time_point deadline) {
  auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
  return static_cast<int>(std::max<int64_t>(0, left.count()));
}

bool readable(int socket, int milliseconds) {
  pollfd question{socket, POLLIN, 0};
  return ::poll(&question, 1, milliseconds) > 0;
}

// A message of a number with room for a descriptor beside it.
struct Letter {
  explicit Letter(uint64_t& number) : payload{&number, sizeof number} {
    message.msg_iov = &payload;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
  }
  Letter(const Letter&) = delete;
  Letter& operator=(const Letter&) = delete;

  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  iovec payload;
  msghdr message{};
};

std::string key_of(const Membership& membership, int rank) { return fmt::format("{}/{}", membership.name, rank); }

}  // namespace

FileDescriptor& FileDescriptor::operator=(FileDescriptor&& other) noexcept {
  std::swap(number_, other.number_);
  return *this;
}

FileDescriptor::~FileDescriptor() {
  if (number_ >= 0) ::close(number_);
}

// Each rank connects to those below it and is called by those above.
Mesh::Mesh(const Membership& membership) : rank_(membership.rank), sockets_(static_cast<size_t>(membership.size)) {
  auto deadline = std::chrono::steady_clock::now() + membership.timeout;
  FileDescriptor listener = new_socket();
  std::string name = fresh_name();
  auto [address, length] = address_of(name);
  if (::bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0 ||
      ::listen(listener.get(), membership.size) != 0)
    fail("cannot listen on a Unix socket");
  membership.store->set(key_of(membership, rank_), name);
  for (int peer = 0; peer < rank_; ++peer) connect_to(peer, membership);
  accept_all(listener, membership, deadline);
}

void Mesh::connect_to(int peer, const Membership& membership) {
  auto [address, length] = address_of(membership.store->get(key_of(membership, peer), membership.timeout));
  FileDescriptor made = new_socket();
  if (::connect(made.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0)
    throw_error<CommError>(
        "[shm] rank {} cannot reach rank {} through a Unix socket: {}; ranks that share memory must run on one host "
        "in one network namespace",
        rank_, peer, std::strerror(errno));
  uid_t other = 0;
  if (!same_user(made, other))
    throw_error<CommError>("[shm] rank {} runs as user {}, rank {} as user {}; memory is shared within one user only",
                           rank_, ::geteuid(), peer, other);
  Hello hello{.rank = rank_, .size = membership.size};
  if (::send(made.get(), &hello, sizeof hello, MSG_NOSIGNAL) != sizeof hello) fail("a peer hung up");
  sockets_[static_cast<size_t>(peer)] = std::move(made);
}

// Whoever runs as another user or does not say a fitting hello is sent away.
void Mesh::accept_all(const FileDescriptor& listener, const Membership& membership,
                      std::chrono::steady_clock::time_point deadline) {
  for (int expected = membership.size - 1 - rank_; expected > 0;) {
    if (!readable(listener.get(), milliseconds_until(deadline))) {
      int missing = rank_ + 1;
      while (sockets_[static_cast<size_t>(missing)].get() >= 0) ++missing;
      throw_error<TimeoutError>("[shm] rank {} waited {} s for rank {}, which never came", rank_,
                                static_cast<double>(membership.timeout.count()) / 1000, missing);
    }
    FileDescriptor made(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    uid_t other = 0;
    if (made.get() < 0 || !same_user(made, other)) continue;
    Hello hello;
    if (!readable(made.get(), milliseconds_until(deadline)) ||
        ::recv(made.get(), &hello, sizeof hello, 0) != sizeof hello)
      continue;
    if (hello.magic != kMagic || hello.size != membership.size || hello.rank <= rank_ || hello.rank >= hello.size)
      continue;
    FileDescriptor& place = sockets_[static_cast<size_t>(hello.rank)];
    if (place.get() >= 0) continue;
    place = std::move(made);
    --expected;
  }
}

bool Mesh::gone(int rank) const {
  pollfd question{sockets_[static_cast<size_t>(rank)].get(), POLLRDHUP, 0};
  return ::poll(&question, 1, 0) > 0 && (question.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
}

void Mesh::give(int rank, const FileDescriptor& memory, uint64_t number) const {
  Letter letter(number);
  cmsghdr* header = CMSG_FIRSTHDR(&letter.message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  int descriptor = memory.get();
  std::memcpy(CMSG_DATA(header), &descriptor, sizeof descriptor);
  if (::sendmsg(sockets_[static_cast<size_t>(rank)].get(), &letter.message, MSG_NOSIGNAL) != sizeof number)
    fail("cannot hand memory to a peer");
}

FileDescriptor Mesh::take(int rank, uint64_t& number, const std::function<void()>& idle) const {
  int socket = sockets_[static_cast<size_t>(rank)].get();
  while (!readable(socket, 5)) idle();
  Letter letter(number);
  ssize_t got = ::recvmsg(socket, &letter.message, MSG_CMSG_CLOEXEC);
  cmsghdr* header = CMSG_FIRSTHDR(&letter.message);
  if (got != sizeof number || header == nullptr || header->cmsg_type != SCM_RIGHTS)
    throw_error<CommError>("[shm] rank {} hung up where it should hand over memory", rank);
  int descriptor = -1;
  std::memcpy(&descriptor, CMSG_DATA(header), sizeof descriptor);
  return FileDescriptor(descriptor);
}

}  // namespace bonfire::comm
