#pragma once
// What must be the same on all ranks for their gradients to belong together: see comm/same_settings.h.

#include "bonfire/comm/same_settings.h"
#include "bonfire/nn/module.h"
#include "bonfire/optim/optimizer.h"

namespace bonfire::fleet {

// Of ranks that share layers each has another part of them.
enum class Slices { are_compared, may_differ };

// Names, types and shapes of parameters and buffers, and the modules as they print themselves: the rate of a dropout is
// not a parameter.
comm::Settings compared_of(const nn::Module& model, Slices slices = Slices::are_compared);

// The kind, its rates and other numbers, and which parameters it updates.
comm::Settings compared_of(const optim::Optimizer& optimizer, Slices slices = Slices::are_compared);

}  // namespace bonfire::fleet
