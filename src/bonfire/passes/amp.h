#pragma once
// Mixed precision: ops that gain from it compute in bf16 (or f16), the others stay in f32, casts go in between.
// Variables, outputs and assignments keep their types, so parameters and optimizer state stay f32.

#include <memory>

#include "bonfire/passes/pass.h"

namespace bonfire::passes {

std::unique_ptr<Pass> amp();

}  // namespace bonfire::passes
