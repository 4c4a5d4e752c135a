#pragma once
// Elementwise add + activation as one kernel.

#include <memory>

#include "bonfire/passes/pass.h"

namespace bonfire::passes {

std::unique_ptr<Pass> fuse_add_act();

}  // namespace bonfire::passes
