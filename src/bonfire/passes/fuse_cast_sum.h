#pragma once
// fuse_cast_sum: a sum of what mixed precision has cast to f32 reads the bf16 itself, where the device has a
// kernel for it.

#include <memory>

#include "bonfire/passes/pass.h"

namespace bonfire::passes {

std::unique_ptr<Pass> fuse_cast_sum();

}  // namespace bonfire::passes
