// A program with a thread of its own that runs something guarded: that prints "ready", waits for a request to stop,
// prints "asked to stop" and ends with 5.

#include <poll.h>
#include <signal.h>

#include <chrono>
#include <cstdio>
#include <latch>
#include <thread>

#include "bonfire/launch/guard.h"

int main() {
  std::latch started(1);  // a thread that is just starting may hold what a forked child needs
  std::thread([&] {
    started.count_down();
    for (;;) std::this_thread::sleep_for(std::chrono::seconds(60));
  }).detach();
  started.wait();
  auto body = [](int pipe) {
    std::puts("ready");
    std::fflush(stdout);
    sigset_t requests;
    sigemptyset(&requests);
    for (int number : {SIGINT, SIGTERM}) sigaddset(&requests, number);
    const timespec moment{0, 10'000'000};
    for (pollfd program{pipe, POLLIN, 0}; ::poll(&program, 1, 0) == 0;)
      if (::sigtimedwait(&requests, nullptr, &moment) > 0) {
        std::puts("asked to stop");
        return 5;
      }
    return 6;  // the program is dead
  };
  return bonfire::launch::run_guarded(body, std::chrono::seconds(8));
}
