#pragma once
// bucket_all_reduce: puts each all-reduce where its operand is made, so that it runs beside the rest of the backward
// pass, and merges neighbours (fuse_all_reduce_ops) up to a number of bytes and of layers. A merged node stands after
// the last of its operands. Operands of one module are never parted; dtypes, devices and groups never mixed. Merged
// nodes of gradients use the communicators in turn (nccl_comm_num), so that one need not wait for the one before.

#include <memory>

#include "bonfire/passes/pass.h"

namespace bonfire::passes {

std::unique_ptr<Pass> bucket_all_reduce();

}  // namespace bonfire::passes
