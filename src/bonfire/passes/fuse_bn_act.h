#pragma once
// Batch norm + residual add + activation as one node, forward and backward.

#include <memory>

#include "bonfire/passes/pass.h"

namespace bonfire::passes {

std::unique_ptr<Pass> fuse_bn_act();

}  // namespace bonfire::passes
