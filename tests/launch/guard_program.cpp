// A program with a thread of its own that runs something guarded: that prints "ready", waits for a request to stop,
// prints "asked to stop" and ends with 5.

#include <csignal>
#include <cstdio>
#include <thread>

#include "bonfire/launch/guard.h"

int main() {
  std::thread([] {
    for (;;) std::this_thread::sleep_for(std::chrono::seconds(60));
  }).detach();
  return bonfire::launch::run_guarded([](int) {
    std::puts("ready");
    std::fflush(stdout);
    sigset_t requests;
    sigemptyset(&requests);
    for (int number : {SIGINT, SIGTERM}) sigaddset(&requests, number);
    int number = 0;
    sigwait(&requests, &number);
    std::puts("asked to stop");
    return 5;
  });
}
