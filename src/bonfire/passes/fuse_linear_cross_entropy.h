#pragma once
// fuse_linear_cross_entropy: a linear layer over a large vocabulary, its cross-entropy and the gradients of both become
// one node, whose kernel works in blocks of rows: the logits never exist as a whole. Where the device has
// that kernel.

#include <memory>

#include "bonfire/passes/pass.h"

namespace bonfire::passes {

std::unique_ptr<Pass> fuse_linear_cross_entropy();

}  // namespace bonfire::passes
