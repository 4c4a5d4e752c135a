#pragma once
// What the loaders share: arrays of samples stacked into one.

#include <cstring>

#include "bonfire/base/error.h"
#include "bonfire/data/dataset.h"
#include "bonfire/graph/node.h"

namespace bonfire::data {

// A batch in host memory: row i of each is sample i's.
struct Stacked {
  Buffer memory;
  TensorSpec spec;

  Stacked() = default;
  Stacked(const Array& first, int64_t count) {
    Shape shape{count};
    for (int i = 0; i < first.shape.rank(); ++i) shape.push_back(first.shape[i]);
    spec = {shape, first.dtype, {}};
    memory = {std::make_shared<Storage>(Device{}, std::max<size_t>(1, spec.bytes()))};
  }

  void put(int64_t row, const Array& array, int64_t index) const {
    Shape expected = spec.shape;
    size_t bytes = spec.bytes() / static_cast<size_t>(spec.shape[0]);
    bool same = array.dtype == spec.dtype && array.shape.rank() + 1 == expected.rank() && array.bytes.size() == bytes;
    for (int i = 0; same && i < array.shape.rank(); ++i) same = array.shape[i] == expected[i + 1];
    if (!same)
      throw_error<DataError>(
          "[loader] sample {} is {} {}, others of its batch make {} {}; a transform must bring all to one size", index,
          name_of(array.dtype), to_string(array.shape), name_of(spec.dtype), to_string(spec.shape));
    std::memcpy(static_cast<std::byte*>(memory.data()) + static_cast<size_t>(row) * bytes, array.bytes.data(), bytes);
  }

  Tensor on(Device device) const {
    if (device == Device{}) return Tensor::from_buffer(memory, spec);
    return Tensor::from_bytes({static_cast<const std::byte*>(memory.data()), spec.bytes()},
                              {spec.shape, spec.dtype, device});
  }
};

}  // namespace bonfire::data
