#pragma once
// Ops that rearrange elements without computing. Axes may count from the end. Results are values of their own: none is
// an alias that a later write could change.

#include <initializer_list>
#include <limits>
#include <span>
#include <vector>

#include "bonfire/graph/tensor.h"

namespace bonfire {

Tensor reshape(const Tensor& x, const Shape& shape);  // one extent may be -1: what remains
Tensor flatten(const Tensor& x, int64_t first = 0, int64_t last = -1);
Tensor squeeze(const Tensor& x, int64_t axis);    // drops an axis of extent 1
Tensor unsqueeze(const Tensor& x, int64_t axis);  // adds an axis of extent 1 that becomes `axis`

Tensor permute(const Tensor& x, const Shape& axes);  // axis i of the result is axis axes[i] of x
Tensor transpose(const Tensor& x, int64_t a, int64_t b);
Tensor broadcast_to(const Tensor& x, const Shape& shape);

// Along one axis; all other extents must agree. Different element types are promoted.
Tensor concat(std::span<const Tensor> parts, int64_t axis);
Tensor concat(std::initializer_list<Tensor> parts, int64_t axis);
Tensor stack(std::span<const Tensor> parts, int64_t axis);  // along a new axis
Tensor stack(std::initializer_list<Tensor> parts, int64_t axis);

// Undoes concat: into parts of these sizes, or into chunks of `chunk` (the last may be smaller).
std::vector<Tensor> split(const Tensor& x, std::span<const int64_t> sizes, int64_t axis);
std::vector<Tensor> split(const Tensor& x, std::initializer_list<int64_t> sizes, int64_t axis);
std::vector<Tensor> split(const Tensor& x, int64_t chunk, int64_t axis);

// x[begin:end:step] along one axis, as in Python: ends may count from the end and are clamped. The step is at least 1.
inline constexpr int64_t kToEnd = std::numeric_limits<int64_t>::max();
Tensor slice(const Tensor& x, int64_t axis, int64_t begin, int64_t end = kToEnd, int64_t step = 1);

// Adds elements of `value` around x, one Padding per axis.
struct Padding {
  int64_t before = 0, after = 0;
};
Tensor pad(const Tensor& x, std::span<const Padding> paddings, int64_t value = 0);
Tensor pad(const Tensor& x, std::initializer_list<Padding> paddings, int64_t value = 0);

Tensor copy_to(const Tensor& x, Device device);  // Tensor::to(Device)

}  // namespace bonfire
