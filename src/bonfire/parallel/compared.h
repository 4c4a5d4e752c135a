#pragma once
// What must be the same on all ranks for their gradients to belong together: see comm/same_settings.h.

#include "bonfire/comm/same_settings.h"
#include "bonfire/nn/module.h"
#include "bonfire/optim/optimizer.h"
#include "bonfire/parallel/strategy.h"
#include "bonfire/passes/pass.h"

namespace bonfire::fleet {

// Names, types and shapes of parameters and buffers, and the modules as they print themselves: the rate of a dropout is
// not a parameter.
comm::Settings compared_of(const nn::Module& model);

// The kind, its rates and other numbers, which parameters it updates; the strategy as it counts: what it does not
// choose is as the program has set it (`options`). Threads, and when memory is released, are a rank's own business.
comm::Settings compared_of(const optim::Optimizer& optimizer, const DistributedStrategy& strategy,
                           const passes::Options& options);

}  // namespace bonfire::fleet
