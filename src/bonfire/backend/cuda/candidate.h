#pragma once
// What kernel lists of this backend share.

#include <memory>
#include <utility>

#include "bonfire/backend/cuda/runtime.h"
#include "bonfire/kernel/kernel.h"

namespace bonfire::cuda {

// Whether the layouts put the elements of `shape` in the same order in memory: axes of extent 1 may lie anywhere.
bool same_order(const Shape& shape, const Layout& a, const Layout& b);

// The layout to ask for where `wanted` is needed: `arriving` when that is the same in memory, so that no reorder runs.
Layout unless_same(const Shape& shape, const Layout& wanted, const Layout& arriving);

// Lets the candidate be built with the node's device current (libraries and compilers ask for it).
template <class Factory>
void build_on_device(Candidate& candidate, const KernelRequest& request, Factory factory) {
  candidate.build = [index = static_cast<int>(request.node.device().index), factory = std::move(factory)] {
    DeviceScope device(index);
    return factory();
  };
}

inline cudaStream_t stream_of(const Run& run) { return static_cast<cudaStream_t>(run.stream); }

}  // namespace bonfire::cuda
