#include "bonfire/comm/torch_store.h"

#include <sys/socket.h>

#include <cstring>

#include "bonfire/base/error.h"
#include "bonfire/base/interrupted.h"
#include "bonfire/comm/network.h"

namespace bonfire::comm {

namespace {

using Clock = std::chrono::steady_clock;

// Questions of its protocol begin with one of these bytes; numbers are as this processor has them.
constexpr char kValidate = 0, kCompareAndSet = 2;
constexpr uint32_t kMagic = 0x3C85F7CE;  // that a connection begins with
constexpr uint64_t kLongestValue = 1024;
constexpr std::chrono::seconds kAnswer{10};  // it never lets wait for this; somebody else may

template <class Number>
std::string bytes_of(Number number) {
  std::string bytes(sizeof number, 0);
  std::memcpy(bytes.data(), &number, sizeof number);
  return bytes;
}

std::string counted(const std::string& text) { return bytes_of(static_cast<uint64_t>(text.size())) + text; }

bool send_all(int socket, const std::string& bytes, Clock::time_point deadline) {
  for (size_t sent = 0; sent < bytes.size();) {
    pollfd question{socket, POLLOUT, 0};
    if (base::poll_until({&question, 1}, deadline) <= 0) return false;
    const ssize_t count =
        base::uninterrupted([&] { return ::send(socket, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL); });
    if (count <= 0) return false;
    sent += static_cast<size_t>(count);
  }
  return true;
}

std::optional<std::string> receive(int socket, size_t bytes, Clock::time_point deadline) {
  std::string text(bytes, 0);
  for (size_t received = 0; received < bytes;) {
    pollfd question{socket, POLLIN, 0};
    if (base::poll_until({&question, 1}, deadline) <= 0) return std::nullopt;
    const ssize_t count =
        base::uninterrupted([&] { return ::recv(socket, text.data() + received, bytes - received, 0); });
    if (count <= 0) return std::nullopt;
    received += static_cast<size_t>(count);
  }
  return text;
}

}  // namespace

std::optional<std::string> first_in_torch_store(const TorchStore& store, const std::string& key,
                                                const std::string& offered) {
  const std::string address = reach(store.host, store.port, store.timeout).remote;
  const Clock::time_point deadline = Clock::now() + kAnswer;
  const FileDescriptor socket = call(address, store.port, deadline);
  const std::string nothing;  // what is expected to be there
  const std::string question = std::string(1, kValidate) + bytes_of(kMagic) + kCompareAndSet + counted(key) +
                               counted(nothing) + counted(offered);
  if (socket.get() < 0 || !send_all(socket.get(), question, deadline)) return std::nullopt;
  const std::optional<std::string> count = receive(socket.get(), sizeof(uint64_t), deadline);
  uint64_t bytes = 0;
  if (count) std::memcpy(&bytes, count->data(), sizeof bytes);
  if (bytes == 0 || bytes > kLongestValue) return std::nullopt;
  return receive(socket.get(), bytes, deadline);
}

}  // namespace bonfire::comm
