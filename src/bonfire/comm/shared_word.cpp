#include "bonfire/comm/shared_word.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <climits>

namespace bonfire::comm {
namespace {

constexpr long kLookUp = 5'000'000;  // nanoseconds of sleep between two looks at the peers

void pause_processor() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

long futex(SharedWord& word, int operation, uint32_t value, const timespec* timeout) {
  static_assert(sizeof(word.value) == sizeof(uint32_t));
  return syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word.value), operation, value, timeout, nullptr, 0);
}

}  // namespace

// A sleeper counts itself, then the kernel compares the word with what it saw; here the word is stored, then the count
// is read. Whichever comes first in the one order of these operations, no sleeper is missed.
void change_word(SharedWord& word, uint32_t value) {
  word.value.store(value, std::memory_order_seq_cst);
  if (word.sleepers.load(std::memory_order_seq_cst) != 0) futex(word, FUTEX_WAKE, INT_MAX, nullptr);
}

// Counts on a failure; helped() takes that back.
std::chrono::nanoseconds Patience::spin() {
  if (waits_left_-- > 0) return std::chrono::nanoseconds(0);
  waits_between_ = std::clamp(waits_between_ * 2, 1, 64);
  waits_left_ = waits_between_;
  return most_;
}

uint32_t wait_for_change(SharedWord& word, uint32_t seen, Patience& patience, const Watch& watch) {
  uint32_t value = read_word(word);
  if (value != seen) return value;
  std::chrono::nanoseconds spin = patience.spin();
  for (auto until = std::chrono::steady_clock::now() + spin; spin.count() > 0;) {
    for (int i = 0; i < 32; ++i) {
      value = read_word(word);
      if (value != seen) {
        patience.helped();
        return value;
      }
      pause_processor();
    }
    if (std::chrono::steady_clock::now() >= until) break;
  }
  for (;;) {
    const timespec look_up{0, kLookUp};
    word.sleepers.fetch_add(1, std::memory_order_seq_cst);
    if (read_word(word) == seen) futex(word, FUTEX_WAIT, seen, &look_up);
    word.sleepers.fetch_sub(1, std::memory_order_relaxed);
    value = read_word(word);
    if (value != seen) return value;
    std::exception_ptr trouble = watch();
    value = read_word(word);  // a peer may have answered and left between the two
    if (value != seen) return value;
    if (trouble) std::rethrow_exception(trouble);
  }
}

}  // namespace bonfire::comm
