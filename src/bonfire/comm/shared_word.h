#pragma once
// A number in memory that threads or processes share, on which others can sleep until it changes.
//
// Waiting spins for a moment, then sleeps on the kernel's futex (the form that processes can share), looking up every
// few milliseconds: whoever waits is told in `watch` and can give up there. Stores release and loads acquire, so what
// was written before a change is seen behind it, on aarch64 too.

#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>

namespace bonfire::comm {

struct alignas(64) SharedWord {  // zeros at first, by the memory it lies in
  std::atomic<uint32_t> value;
  std::atomic<uint32_t> sleepers;
};
static_assert(std::atomic<uint32_t>::is_always_lock_free);

// Says why waiting is in vain; null: wait on.
using Watch = std::function<std::exception_ptr()>;

inline uint32_t read_word(const SharedWord& word) { return word.value.load(std::memory_order_acquire); }

// Stores the value and wakes those who sleep on it.
void change_word(SharedWord& word, uint32_t value);

// Returns the value once it is no longer `seen`; throws what `watch` says, unless the value has changed meanwhile.
uint32_t wait_for_change(SharedWord& word, uint32_t seen, std::chrono::nanoseconds spin, const Watch& watch);

}  // namespace bonfire::comm
