#pragma once
// A signal that interrupts a system call is no failure, and no time-out: the call is made again.
//
//   ssize_t count = base::uninterrupted([&] { return ::recv(socket, data, bytes, 0); });
//   if (base::poll_until({&question, 1}, deadline) == 0) ...   // the time is over, whatever signals have come

#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <climits>
#include <span>

namespace bonfire::base {

// What the call returns in the end: -1 and errno, but never EINTR.
template <class Call>
auto uninterrupted(const Call& call) {
  for (;;)
    if (auto result = call(); result != -1 || errno != EINTR) return result;
}

// How many are ready; 0: none until the deadline.
inline int poll_until(std::span<pollfd> sources, std::chrono::steady_clock::time_point deadline) {
  return uninterrupted([&] {
    auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now()).count();
    return ::poll(sources.data(), sources.size(), static_cast<int>(std::clamp<int64_t>(left, 0, INT_MAX)));
  });
}

}  // namespace bonfire::base
