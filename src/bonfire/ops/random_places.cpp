#include "bonfire/ops/random_places.h"

#include "bonfire/base/error.h"
#include "bonfire/graph/node.h"

namespace bonfire {

void set_slice(Attributes& attributes, const RandomSlice& slice) {
  if (slice.whole.rank() == 0) return;
  attributes.set({"whole", slice.whole});
  attributes.set({"offset", slice.offset});
  attributes.set({"stride", slice.stride});
}

void require_slice(const InferContext& context, const Shape& shape) {
  if (!context.attributes.has("whole")) return;
  const Shape whole = context.attributes.ints("whole"), offset = context.attributes.ints("offset"),
              stride = context.attributes.ints("stride");
  bool fits = whole.rank() == shape.rank() && offset.rank() == shape.rank() && stride.rank() == shape.rank();
  for (int d = 0; fits && d < shape.rank(); ++d)
    fits = offset[d] >= 0 && stride[d] >= 1 && offset[d] <= whole[d] &&
           (shape[d] == 0 || offset[d] + (shape[d] - 1) * stride[d] < whole[d]);
  if (!fits)
    throw_error<ShapeError>(
        "[{}] a slice {} from {} on in steps of {} does not lie in the whole {}; each needs one "
        "number per dimension, and steps of at least 1",
        context.op.name, to_string(shape), to_string(offset), to_string(stride), to_string(whole));
}

RandomPlaces RandomPlaces::of(const Shape& shape, const Attributes& attributes) {
  const bool sliced = attributes.has("whole");
  const Shape whole = sliced ? attributes.ints("whole") : shape, strides = row_major_strides(whole);
  RandomPlaces places;
  places.count = shape.count();
  places.extent[0] = places.step[0] = 1;  // of a scalar
  for (int d = 0; d < shape.rank(); ++d) {
    const auto numbers = static_cast<uint64_t>(strides[d]);
    const auto step = numbers * static_cast<uint64_t>(sliced ? attributes.list("stride")[static_cast<size_t>(d)] : 1);
    const auto begin = numbers * static_cast<uint64_t>(sliced ? attributes.list("offset")[static_cast<size_t>(d)] : 0);
    if (d == 0) {
      places.row = numbers;
      places.first_row = begin;
      places.extent[0] = shape[0];
      places.step[0] = step;
      continue;
    }
    places.base += begin;
    const int last = places.dimensions - 1;
    if (last > 0 && places.step[last] == static_cast<uint64_t>(shape[d]) * step) {
      places.extent[last] *= shape[d];
      places.step[last] = step;
    } else {
      places.extent[places.dimensions] = shape[d];
      places.step[places.dimensions++] = step;
    }
  }
  const bool one_run =
      places.dimensions == 1 || (places.dimensions == 2 && places.step[0] == static_cast<uint64_t>(places.extent[1]));
  places.contiguous = one_run && places.last_step(1) == 1;
  return places;
}

}  // namespace bonfire
