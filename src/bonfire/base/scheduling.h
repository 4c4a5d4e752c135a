#pragma once
// Threads that move data in the background. The scheduler lets who wakes up interrupt who computes, and a socket wakes
// its thread with every few packets: a step that communicates would be interrupted hundreds of times. Such a thread may
// as well wait for the end of a time slice, and find more to move; where a processor is idle it does not wait at all.
// Not for threads that answer each other: every answer would come a time slice late.

namespace bonfire::base {

// Of the calling thread while this lives, and of threads that it starts meanwhile for good. Does nothing in a thread
// that has been given another policy.
class InterruptsNobody {
 public:
  InterruptsNobody();
  ~InterruptsNobody();
  InterruptsNobody(const InterruptsNobody&) = delete;
  InterruptsNobody& operator=(const InterruptsNobody&) = delete;

 private:
  bool changed_;
};

}  // namespace bonfire::base
