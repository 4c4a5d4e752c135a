#pragma once
// Parts of the forward pass that are marked (graph/recompute.h) are computed again in the backward pass, instead of
// keeping what they have computed. Before it mark_recomputed() marks what is in a module that Options::recompute names.
// A name is the path of a module and means all that is inside it; with a `*`, which stands for any text, each module
// that matches is a part by itself.
//
// What a part's own gradients read of it is made again, as late as possible, from what goes into the part; what others
// keep anyway is read there. Collectives and what has an effect are not repeated.

#include <memory>

#include "bonfire/passes/pass.h"

namespace bonfire::passes {

std::unique_ptr<Pass> mark_recomputed();
std::unique_ptr<Pass> recompute();

// Whether a node of that module is in one that Options::recompute names.
bool is_in_recomputed_module(std::string_view path, const Options& options);

}  // namespace bonfire::passes
