#pragma once
// fleet::sampler(): this process's samples of each batch (data/sampler.h).

#include "bonfire/data/sampler.h"
#include "bonfire/graph/engine.h"
#include "bonfire/parallel/fleet.h"

namespace bonfire::fleet {

struct SamplerOptions {
  bool pad = false;  // the last batch up to as many samples on every rank
};

inline data::DistributedSampler sampler(SamplerOptions options = {}) {
  return {.rank = rank(), .world = world_size(), .pad = options.pad};
}

// While one lives, dropout draws the numbers of these rows of the global batch. Without one they are those of a sampler
// without shares.
class RowsOf {
 public:
  explicit RowsOf(const data::Share& share) : before_(random_state()) {
    random_state().rank = static_cast<uint64_t>(share.first);
    random_state().world = static_cast<uint64_t>(share.step);
  }
  ~RowsOf() {
    random_state().rank = before_.rank;
    random_state().world = before_.world;
  }
  RowsOf(const RowsOf&) = delete;
  RowsOf& operator=(const RowsOf&) = delete;

 private:
  RandomState before_;
};

}  // namespace bonfire::fleet
