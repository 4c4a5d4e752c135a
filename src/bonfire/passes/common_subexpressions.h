#pragma once
// Merges nodes that compute the same thing: same op, attributes and inputs. Random, stateful, collective and recomputed
// nodes are left alone.

#include <memory>

#include "bonfire/passes/pass.h"

namespace bonfire::passes {

std::unique_ptr<Pass> common_subexpressions();

}  // namespace bonfire::passes
