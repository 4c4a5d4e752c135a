#pragma once
// fleet::sampler(): this process's samples of each batch (data/sampler.h).

#include "bonfire/data/sampler.h"
#include "bonfire/parallel/fleet.h"

namespace bonfire::fleet {

inline data::DistributedSampler sampler() { return {.rank = rank(), .world = world_size()}; }

}  // namespace bonfire::fleet
