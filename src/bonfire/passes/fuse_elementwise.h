#pragma once
// Chains of elementwise ops as one kernel.

#include <memory>

#include "bonfire/passes/pass.h"

namespace bonfire::passes {

std::unique_ptr<Pass> fuse_elementwise();

}  // namespace bonfire::passes
