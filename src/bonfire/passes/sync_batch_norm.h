#pragma once
// sync_batch_norm: batch statistics over all ranks along the data axis (Options::sync_batch_norm). An all-reduce goes
// behind each batch_norm_statistics, and one between the sums of its gradient and what is made of them; each rank
// counts by its number of samples. The gradients of weight and bias stay the rank's own: they are averaged with all the
// others.

#include <memory>

#include "bonfire/passes/pass.h"

namespace bonfire::passes {

std::unique_ptr<Pass> sync_batch_norm();

}  // namespace bonfire::passes
