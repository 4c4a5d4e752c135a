#pragma once
// A leaf whose value is given later: an argument of a step that is traced once, or what a rule is tried on.

#include "bonfire/graph/tensor.h"

namespace bonfire {

Tensor make_feed(const TensorSpec& spec);

}  // namespace bonfire
