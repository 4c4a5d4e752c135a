#pragma once
// How DataParallel deals a batch out: each device gets the rows of its share, copied to it.

#include <cstddef>
#include <span>
#include <vector>

#include "bonfire/data/sampler.h"
#include "bonfire/graph/tensor.h"

namespace bonfire::detail {

// How many samples the tensors of a batch have. ShapeError where they have none, or not as many as each other.
int64_t samples_of(std::span<const Tensor> batch);

// A batch whose rows any thread can read: in the memory of the value itself where that is the host's.
class HostRows {
 public:
  explicit HostRows(const Tensor& batch);

  // The rows of one of the devices; of one that has none the first row, as a stand-in.
  Tensor deal(const data::Share& share, Device device) const;

 private:
  Tensor batch_;  // keeps the memory
  int64_t rows_;
  std::vector<std::byte> copy_;
  const std::byte* data_;
};

}  // namespace bonfire::detail
