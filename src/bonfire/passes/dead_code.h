#pragma once
// Removes nodes that nothing uses. Outputs, assignments and stateful ops are roots.

#include <memory>

#include "bonfire/passes/pass.h"

namespace bonfire::passes {

std::unique_ptr<Pass> dead_code();

}  // namespace bonfire::passes
