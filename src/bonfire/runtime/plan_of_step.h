#pragma once
// The plan of a step that is only looked at.

#include <memory>
#include <span>

#include "bonfire/runtime/compile.h"
#include "bonfire/runtime/plan.h"

namespace bonfire::runtime {

// Traces the function for such inputs, as compile() does, and plans it. Nothing runs, variables take no memory, and
// what the function changes on the host is put back.
std::shared_ptr<const Plan> plan_of_step(const CompiledStep::Function& function, std::span<const TensorSpec> inputs);

}  // namespace bonfire::runtime
