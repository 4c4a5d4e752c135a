#pragma once
// A port of 127.0.0.1 that nothing listens at, for a program that is started later. It is below those that systems hand
// out by themselves (from 32768 on), and processes look for theirs at places apart: tests that run beside each other do
// not take it meanwhile.

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>

namespace bonfire::testing {

inline int free_port() {
  constexpr int kFirst = 12'000, kPorts = 20'000, kApart = 37;
  static std::atomic<int> calls{0};
  for (int tried = 0;; ++tried) {
    const int port = kFirst + (::getpid() * kApart + calls++) % kPorts;
    const int listener = ::socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    const bool is_free = ::bind(listener, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
    ::close(listener);
    if (is_free || tried == kPorts) return port;
  }
}

}  // namespace bonfire::testing
