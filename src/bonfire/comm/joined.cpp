#include "bonfire/comm/joined.h"

#include <atomic>

#include "bonfire/base/error.h"
#include "bonfire/base/log.h"
#include "bonfire/comm/environment.h"

namespace bonfire::comm {

namespace {

std::atomic<bool> settled{false};  // joined, or told

// A plain process when the environment makes no sense: fleet::init() would say what is wrong with it.
Environment environment_or_plain() {
  try {
    return read_environment();
  } catch (const Error&) {
    return {};
  }
}

}  // namespace

void note_joined() { settled.store(true, std::memory_order_relaxed); }

void tell_unless_joined() {
  if (settled.load(std::memory_order_relaxed) || settled.exchange(true)) return;
  const Environment self = environment_or_plain();
  if (self.world == 1 || self.rank != 0) return;
  base::log_warning(
      "[fleet] this program was started as {0} ranks and has not called fleet::init(): {0} copies of its model train, "
      "each for itself; call fleet::init(argc, argv) first, then wrap model and optimizer (docs/data-parallel.md)",
      self.world);
}

}  // namespace bonfire::comm
