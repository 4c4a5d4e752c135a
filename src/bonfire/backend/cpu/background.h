#pragma once
// Background: steps that wait for other ranks run here, in order, on a thread of their own, while the queue goes on
// with steps that do not touch their operands.

#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>

#include "bonfire/kernel/accesses.h"

namespace bonfire::cpu {

class Background {
 public:
  Background() = default;
  ~Background();  // waits for what has begun
  Background(const Background&) = delete;
  Background& operator=(const Background&) = delete;

  void start(Accesses accesses, std::function<void()> body);
  bool idle();
  // Until everything started that a step with these accesses must wait for is done. Throws what a body threw; then
  // nothing is left: bodies behind a failed one do not run.
  void wait_for(const Accesses& accesses);
  void wait_for_all();

 private:
  struct Work {
    Accesses accesses;
    std::function<void()> body;
  };
  void serve();
  template <class Condition>
  void wait_until(Condition condition);

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Work> work_;  // the first one is running
  std::exception_ptr error_;
  bool stop_ = false;
  std::thread thread_;  // begins with the first start()
};

}  // namespace bonfire::cpu
