#include "bonfire/data/sampler.h"

#include <numeric>

#include "bonfire/base/error.h"

namespace bonfire::data {

void DistributedSampler::check() const {
  if (world < 1 || rank < 0 || rank >= world)
    throw_error<ConfigError>("[sampler] rank {} of a world of {}, expected from 0 to {}", rank, world, world - 1);
}

void DistributedSampler::check(std::span<const int64_t> shares) const {
  if (static_cast<int64_t>(shares.size()) != world)
    throw_error<ConfigError>("[sampler] {} shares for {} ranks, expected one for each", shares.size(), world);
  for (size_t i = 0; i < shares.size(); ++i)
    if (shares[i] < 1)
      throw_error<ConfigError>("[sampler] the share of rank {} is {}, expected at least 1 sample", i, shares[i]);
  if (pad)
    throw_error<ConfigError>(
        "[sampler] pad gives every rank as many samples, and shares do not; leave pad out and weigh by "
        "share().weight()");
}

Share DistributedSampler::share(int64_t count) const {
  const int64_t all = pad ? (count + world - 1) / world * world : count;
  return {.own = (all + world - 1 - rank) / world, .all = all, .world = world, .first = rank, .step = world};
}

Share DistributedSampler::share(int64_t count, std::span<const int64_t> shares) const {
  if (shares.empty()) return share(count);
  const int64_t before = std::accumulate(shares.begin(), shares.begin() + rank, int64_t{0});
  const int64_t full = std::accumulate(shares.begin() + rank, shares.end(), before);
  const int64_t begin = count * before / full, end = count * (before + shares[static_cast<size_t>(rank)]) / full;
  return {.own = end - begin, .all = count, .world = world, .first = begin, .step = 1};
}

}  // namespace bonfire::data
