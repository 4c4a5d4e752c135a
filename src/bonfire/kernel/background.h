#pragma once
// Background: steps that wait for other ranks run here, beside the queue, which goes on with steps that do not touch
// their operands. Each line has a thread of its own. Work that is posted belongs to no program: nobody waits for it.

#include <condition_variable>
#include <exception>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "bonfire/kernel/accesses.h"

namespace bonfire {

class Background {
 public:
  Background() = default;
  ~Background();  // waits for what has begun, and for what was posted
  Background(const Background&) = delete;
  Background& operator=(const Background&) = delete;

  // `agrees`: no collective of the line's axis that is started after it begins before it is done.
  void start(const Line& line, Accesses accesses, std::function<void()> body, bool agrees = false);
  void post(const Line& line, std::function<void()> body, const std::shared_ptr<StepGroups>& of = nullptr);

  // Of what was started:
  bool idle();
  // Until everything started that a step with these accesses must wait for is done. Throws what a body threw first; no
  // other begins after that, but those of other lines that have begun already may still be running.
  void wait_for(const Accesses& accesses);
  void wait_for_all();
  void finish_after_failure();  // until nothing runs any more; what else fails meanwhile is not told

  // What work that was posted for the same job has thrown first since the last call; null: nothing. A job that came
  // before on this device has ended with its own failures.
  std::exception_ptr take_late_failure(const std::shared_ptr<StepGroups>& of = nullptr);

 private:
  struct Work {
    Line line;
    Accesses accesses;
    std::function<void()> body;
    bool agrees = false, posted = false, running = false;
    std::weak_ptr<StepGroups> of = {};
  };
  struct LateFailure {
    std::exception_ptr error;
    std::weak_ptr<StepGroups> of;
  };
  void add(Work work);
  void serve(const Line& line);
  Work* next_in(const Line& line);
  bool all_done() const;
  template <class Condition>
  void wait_until(Condition condition);

  std::mutex mutex_;
  std::condition_variable changed_;
  std::list<Work> work_;  // not done yet, in the order in which it came
  std::exception_ptr error_;
  LateFailure late_;
  bool stop_ = false;
  std::map<Line, std::thread> threads_;  // each begins with the line's first work
};

// The outbox of one step of one submission, which a job with these groups made. `where` begins the message of what
// fails: "[send] failed on cpu:0".
class StepOutbox final : public Outbox {
 public:
  StepOutbox(Background& background, std::shared_ptr<StepGroups> groups, std::string where, FailureCalls after_failure)
      : background_(background),
        groups_(std::move(groups)),
        where_(std::move(where)),
        after_failure_(std::move(after_failure)) {}
  void post(const Line& line, std::function<void()> work) override;

 private:
  Background& background_;
  std::shared_ptr<StepGroups> groups_;
  std::string where_;
  FailureCalls after_failure_;
};

}  // namespace bonfire
