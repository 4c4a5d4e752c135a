#pragma once
// widen_where_read: a cast to a wider floating type is made again for each node that reads it, so that what lies in
// between is the narrow value. For a graph that will be cut: bf16 is what stages send and keep. Readers in one stage
// share a cast again (common_subexpressions), and each of its programs makes it for itself.

#include <memory>

#include "bonfire/passes/pass.h"

namespace bonfire::passes {

std::unique_ptr<Pass> widen_where_read();

bool widens(const GraphNode& node);  // is such a cast

}  // namespace bonfire::passes
