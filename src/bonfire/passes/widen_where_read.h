#pragma once
// widen_where_read: a cast to a wider floating type is made again for each node that reads it, so that what lies in
// between is the narrow value. For a graph that will be cut: bf16 is what stages send and keep. Readers in one part
// share a cast again (common_subexpressions).

#include <memory>

#include "bonfire/passes/pass.h"

namespace bonfire::passes {

std::unique_ptr<Pass> widen_where_read();

}  // namespace bonfire::passes
