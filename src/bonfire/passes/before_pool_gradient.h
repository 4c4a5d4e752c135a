#pragma once
// before_pool_gradient: what is done to the gradient after a max pooling is done to the smaller gradient before it,
// where that is the same: a window's gradient goes to one pixel, whose value is the window's maximum. So the mask of a
// ReLU over pixels is the mask of the maxima, and a sum over the pixels of images is the sum over windows.

#include <memory>

#include "bonfire/passes/pass.h"

namespace bonfire::passes {

std::unique_ptr<Pass> before_pool_gradient();

}  // namespace bonfire::passes
