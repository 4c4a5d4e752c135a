#include "bonfire/data/sampler.h"

#include "bonfire/base/error.h"

namespace bonfire::data {

void DistributedSampler::check() const {
  if (world < 1 || rank < 0 || rank >= world)
    throw_error<ConfigError>("[sampler] rank {} of a world of {}, expected from 0 to {}", rank, world, world - 1);
}

}  // namespace bonfire::data
