#pragma once
// Group that reduces within each host, then between hosts, then spreads the result within each host again
// (use_hierarchical_allreduce).
//
//   auto group = comm::hierarchical_group(world, comm::shm_group(this_host));
//
// Each rank of a host carries one share of the values across, so that all links of a host work, and only
// 2 (hosts - 1) / hosts of the bytes leave it. Where hosts have different numbers of ranks, and for small values, one
// rank of a host carries all of them: two hops instead of a ring through all ranks. bf16 and f16, which are rounded
// only once, and all collectives but all_reduce take the way of `world`.

#include <memory>

#include "bonfire/comm/group.h"

namespace bonfire::comm {

// A collective call of all ranks of `world`; `host` holds those of them that are on this host.
std::shared_ptr<Group> hierarchical_group(std::shared_ptr<Group> world, std::shared_ptr<Group> host);

}  // namespace bonfire::comm
