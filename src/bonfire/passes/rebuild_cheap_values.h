#pragma once
// Computes cheap values again where the backward pass needs them, instead of keeping them through the whole step.

#include <memory>

#include "bonfire/passes/pass.h"

namespace bonfire::passes {

std::unique_ptr<Pass> rebuild_cheap_values();

}  // namespace bonfire::passes
