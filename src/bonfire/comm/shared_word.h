#pragma once
// A number in memory that threads or processes share, on which others can sleep until it changes.
//
// Waiting spins for a moment where that has helped of late, then sleeps on the kernel's futex (the form that processes
// can share), looking up every few milliseconds: whoever waits is told in `watch` and can give up there. Stores release
// and loads acquire, so what was written before a change is seen after it, on aarch64 too.

#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>

namespace bonfire::comm {

struct alignas(64) SharedWord {  // zeros at first, by the memory it lies in
  std::atomic<uint32_t> value;
  std::atomic<uint32_t> sleepers;
  std::atomic<uint32_t> processor;  // that changed it last, plus one
};
static_assert(std::atomic<uint32_t>::is_always_lock_free);

// Says why waiting is in vain; null: wait on.
using Watch = std::function<std::exception_ptr()>;

inline uint32_t read_word(const SharedWord& word) { return word.value.load(std::memory_order_acquire); }

// How long to spin before sleeping, learnt by one waiting thread. Spinning helps when the peer runs on another core and
// answers at once; where it comes late, each moment of it is lost. So after a spin in vain only the second, fourth,
// ... 64th wait tries again. Where the peer shares this core, which the kernel likes for two who wake each other in
// turn, the thread moves to another one.
class Patience {
 public:
  explicit Patience(std::chrono::nanoseconds most) : most_(most) {}
  std::chrono::nanoseconds spin();  // of the next wait
  void helped() { waits_between_ = waits_left_ = 0; }

 private:
  std::chrono::nanoseconds most_;
  int waits_between_ = 0, waits_left_ = 0;
};

// Stores the value and wakes those who sleep on it.
void change_word(SharedWord& word, uint32_t value);

// Returns the value once it is no longer `seen`; throws what `watch` says, unless the value has changed meanwhile.
uint32_t wait_for_change(SharedWord& word, uint32_t seen, Patience& patience, const Watch& watch);

}  // namespace bonfire::comm
