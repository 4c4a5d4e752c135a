#pragma once
// Collectives as they are defined, on the values of all ranks at once, for comparison with the ops.

#include <vector>

#include "bonfire/comm/group.h"
#include "bonfire/graph/tensor.h"

namespace bonfire::testing {

struct Array {
  Shape shape;
  std::vector<double> values;  // row-major

  friend bool operator==(const Array&, const Array&) = default;
};
using Arrays = std::vector<Array>;  // [rank]

// Small whole numbers, other ones on each rank.
Array whole_numbers(const Shape& shape, int rank, int seed = 0);

Array part(const Array& array, int dim, int index, int parts);
Array side_by_side(const Arrays& parts, int dim);
// As elements of the dtype: whole numbers wrap around, of booleans only the lowest bit is left.
Array rounded(Array array, DType dtype);

Arrays all_reduced(const Arrays& of_ranks, comm::Reduce reduce, DType dtype = DType::f64);
Arrays all_gathered(const Arrays& of_ranks, int dim);
Arrays reduce_scattered(const Arrays& of_ranks, int dim, comm::Reduce reduce, DType dtype = DType::f64);
Arrays exchanged(const Arrays& of_ranks, int split, int join);

// Between these and tensors.
Tensor tensor_of(const Array& array, DType dtype, Device device);
Array array_of(const Tensor& tensor);

// The same value, lying in memory in another order of its axes (slowest first); the default keeps row-major.
Tensor lying_as(const Tensor& value, const Shape& order);

}  // namespace bonfire::testing
