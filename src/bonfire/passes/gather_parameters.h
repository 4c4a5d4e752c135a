#pragma once
// gather_parameters: where ranks share out parameters (comm/flat_parts.h), a step gathers them as they are traced, each
// by itself, and what the backward pass reads stays from the forward pass on. This pass lets go of them in between:
// backward passes gather again. What is used one after the other is gathered together, one such group ahead of where it
// is used, so that it travels beside the computation before. Casts of parameters are made again, too. The group that
// the forward pass uses last, which the backward pass uses first, stays.

#include <memory>

#include "bonfire/passes/pass.h"

namespace bonfire::passes {

std::unique_ptr<Pass> gather_parameters();

}  // namespace bonfire::passes
