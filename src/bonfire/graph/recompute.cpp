#include "bonfire/graph/recompute.h"

#include "bonfire/graph/trace.h"

namespace bonfire {

RecomputeScope::RecomputeScope() : outer_(std::exchange(StepContext::current().place.recompute, this)) {}
RecomputeScope::~RecomputeScope() { StepContext::current().place.recompute = outer_; }

uint32_t RecomputeScope::part_in(Trace& trace) {
  if (trace_ == trace.id()) return part_;
  part_ = trace.add_recomputed_part(outer_ == nullptr ? 0 : outer_->part_in(trace));
  trace_ = trace.id();
  return part_;
}

}  // namespace bonfire
