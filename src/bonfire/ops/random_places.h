#pragma once
// How ops and kernels know the slice that they draw (ops/random_slice.h).
//
// Attributes of an op that draws a slice; an op that has none of them draws the whole:
//   whole (its shape), offset, stride (one of each per dimension, of the tensor that is drawn)

#include <cstdint>

#include "bonfire/base/random.h"  // BONFIRE_HOST_DEVICE
#include "bonfire/graph/op.h"
#include "bonfire/ops/random_slice.h"

namespace bonfire {

void set_slice(Attributes& attributes, const RandomSlice& slice);
// For shape rules: the slice in the attributes, if there is one, has this shape and lies in its whole.
void require_slice(const InferContext& context, const Shape& shape);

// For kernels: where the elements of a tensor lie in the whole.
struct RandomPlaces {
  static RandomPlaces of(const Shape& shape, const Attributes& attributes);

  // The number that element `element`, counted row-major in the slice, draws.
  BONFIRE_HOST_DEVICE uint64_t at(int64_t element, uint64_t rank, uint64_t world) const {
    uint64_t place = base;
    for (int d = dimensions - 1; d > 0; --d) {
      place += static_cast<uint64_t>(element % extent[d]) * step[d];
      element /= extent[d];
    }
    return place + (first_row + static_cast<uint64_t>(element) * step[0]) * world + rank * row;
  }
  // From one element to the next within the last of the dimensions below.
  BONFIRE_HOST_DEVICE uint64_t last_step(uint64_t world) const {
    return dimensions == 1 ? step[0] * world : step[dimensions - 1];
  }

  // Dimensions that lie in the whole as one are merged, but for the first, whose rows are shared out among ranks.
  int dimensions = 1;
  int64_t extent[Shape::kMaxRank] = {};
  uint64_t step[Shape::kMaxRank] = {};  // numbers
  uint64_t base = 0;                    // of the first element, within its row
  uint64_t first_row = 0;               // the number that its row begins with
  uint64_t row = 1;                     // numbers of a row of the whole
  int64_t count = 0;                    // elements of the slice
  bool contiguous = false;              // where one rank has all rows, the numbers are those from the first on
};

}  // namespace bonfire
