#pragma once
// fleet::sampler(): this process's samples of each batch (data/sampler.h).

#include "bonfire/data/sampler.h"
#include "bonfire/parallel/fleet.h"

namespace bonfire::fleet {

struct SamplerOptions {
  bool pad = false;  // the last batch up to as many samples on every rank
};

inline data::DistributedSampler sampler(SamplerOptions options = {}) {
  return {.rank = rank(), .world = world_size(), .pad = options.pad};
}

}  // namespace bonfire::fleet
