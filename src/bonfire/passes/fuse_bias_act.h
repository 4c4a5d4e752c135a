#pragma once
// Convolution or matrix product + bias + activation as one node with an epilogue.

#include <memory>

#include "bonfire/passes/pass.h"

namespace bonfire::passes {

std::unique_ptr<Pass> fuse_bias_act();

}  // namespace bonfire::passes
