#pragma once
// Who times what, so that all ranks of a job choose the same kernels. Private to runtime and whoever joins a job.
//
// If every rank went by its own clock, each would choose other kernels, and a run would end with other bits each time.
// So a candidate is timed once, by one rank, and its time is everyone's. But ranks plan when they like: one has a batch
// of another size, one finds its plan in its cache, one evaluates alone. A collective call while planning could wait
// for ever. Instead, every node has a list in the job's store, which only grows:
//
// - A rank that lacks times of a node's candidates takes the entry after those that it has read. Whoever takes it first
//   measures what all entries before it lack, and sets it. The others wait for it, read it, and look again.
// - So all ranks read the same entries in the same order, and no candidate is ever in two of them.
// - Ranks that plan the same step at the same time share the work out: each first goes through all nodes of the step
//   and measures those whose entry nobody has taken (share_out_timing in runtime/tuning.h), and waits only then.
//
// No rank waits for one that waits: the queue of a device is empty before an entry is taken, so whoever has one only
// runs kernels, and it has one at a time. One that fails to measure sets an empty entry, and the next one tries. A rank
// that dies or freezes is noticed by the heartbeat, which calls end(); and every wait has a time-out.
//
// Names of nodes say what processor they run on, and names of lists which build made them. So ranks with other
// processors, or of other builds, share nothing, and each kind of rank has times of its own.

#include <chrono>
#include <memory>
#include <mutex>
#include <string>

#include "bonfire/comm/store.h"
#include "bonfire/runtime/tuning_record.h"

namespace bonfire::runtime {

// The lists. Entries are called by the name of the list and their number.
class TimingPeers {
 public:
  TimingPeers(std::shared_ptr<comm::Store> store, std::chrono::milliseconds timeout)
      : store_(std::move(store)), timeout_(timeout) {}

  bool take(const std::string& entry);  // true: nobody has it, and this rank must set it
  void set(const std::string& entry, const Times& times);
  // Until somebody has set it. TimeoutError, or CommError with the reason given to end().
  Times wait(const std::string& entry);
  void end(const std::string& why);  // from any thread: waits fail, now and later

 private:
  void require_going_on();

  std::shared_ptr<comm::Store> store_;
  std::chrono::milliseconds timeout_;
  std::mutex mutex_;
  std::string ended_;  // why; "": it has not
};

}  // namespace bonfire::runtime
