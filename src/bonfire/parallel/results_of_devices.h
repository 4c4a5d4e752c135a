#pragma once
// How DataParallel puts together what its devices have computed of a batch.

#include <span>
#include <vector>

#include "bonfire/data/sampler.h"
#include "bonfire/graph/tensor.h"

namespace bonfire::detail {

// Submits what is pending, and names the results without their histories: other threads may use them then.
std::vector<Tensor> submitted(std::vector<Tensor> results);

// The results [device][result] as those of the whole batch, on the first device: of numbers the mean over all samples,
// of whole ones the sum, and of anything else the rows in the order of the batch. `shares` [device] of that batch.
std::vector<Tensor> put_together(std::vector<std::vector<Tensor>> results, std::span<const data::Share> shares);

}  // namespace bonfire::detail
