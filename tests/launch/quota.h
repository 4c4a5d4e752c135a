#pragma once
// A process that is slowed down.

#include <atomic>
#include <chrono>
#include <csignal>
#include <thread>

namespace bonfire::testing {

// While one lives, the process runs for 2 ms of every 8: what a CPU quota does to it, but without the right to set one.
class Quota {
 public:
  explicit Quota(int process)
      : thread_([this, process] {
          using std::chrono::milliseconds;
          while (!stop_) {
            ::kill(process, SIGSTOP);
            std::this_thread::sleep_for(milliseconds(6));
            ::kill(process, SIGCONT);
            std::this_thread::sleep_for(milliseconds(2));
          }
        }) {}
  ~Quota() {
    stop_ = true;
    thread_.join();
  }
  Quota(const Quota&) = delete;
  Quota& operator=(const Quota&) = delete;

 private:
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace bonfire::testing
