#pragma once
// Threads that mostly wait. The scheduler lets who wakes up interrupt who computes, and a socket wakes its thread with
// every few packets: a step that communicates would be interrupted hundreds of times. These threads do not mind to wait
// for the end of a time slice instead, and lose nothing where a processor is idle.

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
