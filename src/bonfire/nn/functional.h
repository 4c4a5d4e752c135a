#pragma once
// Losses under the name that PyTorch's users look for: nn::cross_entropy(model(image), label).

#include "bonfire/ops/loss.h"

namespace bonfire::nn {

using bonfire::cross_entropy;
using bonfire::l1_loss;
using bonfire::mse_loss;
using bonfire::smooth_l1_loss;

}  // namespace bonfire::nn
