#pragma once
// Evaluates what depends on nothing but whole-number constants, and drops additions of 0 and multiplications by 1.

#include <memory>

#include "bonfire/passes/pass.h"

namespace bonfire::passes {

std::unique_ptr<Pass> fold_constants();

}  // namespace bonfire::passes
