#pragma once
// A process that is slowed down.

#include <atomic>
#include <chrono>
#include <csignal>
#include <thread>

namespace bonfire::testing {

// While one lives, the process runs for 2 ms and stands still for as long as is said, in turn: what a CPU quota does to
// it, but without the right to set one.
class Quota {
 public:
  explicit Quota(int process, std::chrono::milliseconds stopped = std::chrono::milliseconds(6))
      : thread_([this, process, stopped] {
          while (!stop_) {
            ::kill(process, SIGSTOP);
            std::this_thread::sleep_for(stopped);
            ::kill(process, SIGCONT);
            std::this_thread::sleep_for(std::chrono::milliseconds(2));
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
