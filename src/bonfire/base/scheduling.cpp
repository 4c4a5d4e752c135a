#include "bonfire/base/scheduling.h"

#include <sched.h>

namespace bonfire::base {
namespace {

bool change(int from, int to) {
  const sched_param priority{};  // the only one that both have; how nice the thread is does not change
  return sched_getscheduler(0) == from && sched_setscheduler(0, to, &priority) == 0;
}

}  // namespace

InterruptsNobody::InterruptsNobody() : changed_(change(SCHED_OTHER, SCHED_BATCH)) {}
InterruptsNobody::~InterruptsNobody() {
  if (changed_) change(SCHED_BATCH, SCHED_OTHER);
}

}  // namespace bonfire::base
