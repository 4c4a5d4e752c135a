#pragma once
// Background: steps that wait for other ranks run here, beside the queue, which goes on with steps that do not touch
// their operands. Steps of one line run in order, on a thread of that line; those of two lines run side by side.

#include <condition_variable>
#include <exception>
#include <functional>
#include <list>
#include <mutex>
#include <thread>
#include <vector>

#include "bonfire/kernel/accesses.h"

namespace bonfire::cpu {

class Background {
 public:
  Background() = default;
  ~Background();  // waits for what has begun
  Background(const Background&) = delete;
  Background& operator=(const Background&) = delete;

  // In line 0, 1, …, or ProgramStep::kBeforeAllLines: nothing that is started behind it begins before it is done.
  void start(int line, Accesses accesses, std::function<void()> body);
  bool idle();
  // Until everything started that a step with these accesses must wait for is done. Throws what a body threw first; no
  // other begins after that, but those of other lines that have begun already may still be running.
  void wait_for(const Accesses& accesses);
  void wait_for_all();
  void finish_after_failure();  // until nothing runs any more; what else fails meanwhile is not told

 private:
  struct Work {
    int line;
    Accesses accesses;
    std::function<void()> body;
    bool running = false;
  };
  void serve(int line);
  Work* next_in(int line);
  template <class Condition>
  void wait_until(Condition condition);

  std::mutex mutex_;
  std::condition_variable changed_;
  std::list<Work> work_;  // not done yet, in the order in which it was started
  std::exception_ptr error_;
  bool stop_ = false;
  std::vector<std::thread> threads_;  // by line; each begins with the first start() there
};

}  // namespace bonfire::cpu
