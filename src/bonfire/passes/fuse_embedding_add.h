#pragma once
// fuse_embedding_add: where the gradient of an embedding is added to another one (of a weight that a layer shares), the
// rows that were looked up are added to that one, and no gradient full of zeros is made. Where the device has a
// kernel for it.

#include <memory>

#include "bonfire/passes/pass.h"

namespace bonfire::passes {

std::unique_ptr<Pass> fuse_embedding_add();

}  // namespace bonfire::passes
