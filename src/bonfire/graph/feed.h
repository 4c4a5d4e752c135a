#pragma once
// Leaves whose values are given later: an argument of a step that is traced once, or what a rule is tried on.

#include "bonfire/graph/tensor.h"

namespace bonfire {

Tensor make_feed(const TensorSpec& spec);

// Of a leaf that is a variable: one for whatever version the variable has when a plan is submitted.
Value any_version(const Value& leaf);

}  // namespace bonfire
