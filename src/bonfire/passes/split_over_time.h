#pragma once
// LSTMs over long sequences that the backward pass computes again (graph/recompute.h) are cut into spans of time, so
// that it has the gates and states of one span at a time, and not of all: `recompute` finds each span as a part by
// itself.
//
//   forward pass    all layers of a stack over span 0, all layers over span 1, …: what is kept is h and c at its end
//   backward pass   last span first: recomputed from the h and c before it, then the gradients of all its layers;
//                   gradients of weights are added up span by span, in f32
//
// What stands between the layers (projections, dropout) is cut along with them. Who reads only the last state gets it
// from the last span; what is read of all times is put together piece by piece. Short sequences stay as they are.

#include <memory>

#include "bonfire/passes/pass.h"

namespace bonfire::passes {

std::unique_ptr<Pass> split_over_time();

}  // namespace bonfire::passes
