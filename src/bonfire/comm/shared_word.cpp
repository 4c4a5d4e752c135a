#include "bonfire/comm/shared_word.h"

#include <linux/futex.h>
#include <sched.h>
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

uint32_t this_processor() {
  const int processor = ::sched_getcpu();
  return processor < 0 ? 0 : static_cast<uint32_t>(processor) + 1;
}

// To another processor that this thread may use; it may come back later. False: there is none.
bool leave_processor() {
  cpu_set_t allowed;
  const int here = ::sched_getcpu();
  if (here < 0 || ::sched_getaffinity(0, sizeof allowed, &allowed) != 0) return false;
  cpu_set_t others = allowed;
  CPU_CLR(static_cast<size_t>(here), &others);
  if (CPU_COUNT(&others) == 0 || ::sched_setaffinity(0, sizeof others, &others) != 0) return false;
  ::sched_setaffinity(0, sizeof allowed, &allowed);
  return true;
}

bool spin_until_changed(const SharedWord& word, uint32_t seen, std::chrono::nanoseconds most) {
  for (auto until = std::chrono::steady_clock::now() + most; std::chrono::steady_clock::now() < until;)
    for (int i = 0; i < 32; ++i) {
      if (read_word(word) != seen) return true;
      pause_processor();
    }
  return false;
}

}  // namespace

// A sleeper counts itself, then the kernel compares the word with what it saw; here the word is stored, then the count
// is read. Whichever comes first in the one order of these operations, no sleeper is missed.
void change_word(SharedWord& word, uint32_t value) {
  word.processor.store(this_processor(), std::memory_order_relaxed);
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
  const std::chrono::nanoseconds spin = patience.spin();
  bool changed = spin.count() > 0 && spin_until_changed(word, seen, spin);
  if (!changed && spin.count() > 0 && word.processor.load(std::memory_order_relaxed) == this_processor())
    changed = leave_processor() && spin_until_changed(word, seen, spin);
  if (changed) {
    patience.helped();
    return read_word(word);
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
