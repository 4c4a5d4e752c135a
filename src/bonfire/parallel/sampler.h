#pragma once
// fleet::sampler(): the samples of this process's place on the data axis, of each batch (data/sampler.h).

#include "bonfire/data/sampler.h"
#include "bonfire/graph/engine.h"
#include "bonfire/parallel/fleet.h"

namespace bonfire::fleet {

struct SamplerOptions {
  bool pad = false;  // the last batch up to as many samples on every rank
};

inline data::DistributedSampler sampler(SamplerOptions options = {}) {
  return {.rank = mesh().place(Axis::data), .world = mesh().size(Axis::data), .pad = options.pad};
}

// While one lives, dropout draws the numbers of these rows of the global batch. Without one they are those of a sampler
// without shares.
class RowsOf {
 public:
  explicit RowsOf(const data::Share& share) : before_(StepContext::current().random) {
    StepContext::current().random.rank = static_cast<uint64_t>(share.first);
    StepContext::current().random.world = static_cast<uint64_t>(share.step);
  }
  ~RowsOf() {
    StepContext::current().random.rank = before_.rank;
    StepContext::current().random.world = before_.world;
  }
  RowsOf(const RowsOf&) = delete;
  RowsOf& operator=(const RowsOf&) = delete;

 private:
  RandomState before_;
};

}  // namespace bonfire::fleet
