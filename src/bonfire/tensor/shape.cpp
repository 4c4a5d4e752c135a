#include "bonfire/tensor/shape.h"

#include <algorithm>

#include "bonfire/base/error.h"

namespace bonfire {

Shape::Shape(std::span<const int64_t> extents) {
  for (int64_t extent : extents) push_back(extent);
}

void Shape::push_back(int64_t extent) {
  if (rank_ == kMaxRank) throw_error<ShapeError>("[shape] more than {} dimensions", kMaxRank);
  extent_[rank_++] = extent;
}

void Shape::fail_axis(int axis) const {
  throw_error<ShapeError>("[shape] axis {} is out of range for {}, a shape of {} dimension{}", axis, to_string(*this),
                          rank_, rank_ == 1 ? "" : "s");
}

std::string to_string(const Shape& shape) {
  std::string text = "[";
  for (int i = 0; i < shape.rank(); ++i) text += (i > 0 ? ", " : "") + std::to_string(shape[i]);
  return text + "]";
}

Shape row_major_strides(const Shape& shape) {
  Shape strides = shape;
  int64_t stride = 1;
  for (int i = shape.rank() - 1; i >= 0; --i) {
    strides[i] = stride;
    stride *= shape[i];
  }
  return strides;
}

Shape broadcast_shapes(std::string_view op, const Shape& a, const Shape& b) {
  const Shape& longer = a.rank() >= b.rank() ? a : b;
  const Shape& shorter = a.rank() >= b.rank() ? b : a;
  Shape result = longer;
  int offset = longer.rank() - shorter.rank();
  for (int i = 0; i < shorter.rank(); ++i) {
    int64_t x = longer[i + offset], y = shorter[i];
    if (x != y && x != 1 && y != 1)
      throw_error<ShapeError>("[{}] shapes {} and {} do not broadcast: dimension {} is {} in one and {} in the other",
                              op, to_string(a), to_string(b), i + offset, x, y);
    result[i + offset] = x == 1 ? y : x;
  }
  return result;
}

int normalize_axis(std::string_view op, int64_t axis, int rank) {
  if (axis < -rank || axis >= rank)
    throw_error<ShapeError>("[{}] axis {} is out of range for a tensor of {} dimension{}", op, axis, rank,
                            rank == 1 ? "" : "s");
  return static_cast<int>(axis < 0 ? axis + rank : axis);
}

}  // namespace bonfire
