#pragma once
// Random slices of all kinds, for programs with a printed seed.

#include <algorithm>
#include <random>

#include "bonfire/graph/slice.h"

namespace bonfire::testing {

inline int64_t random_number(std::mt19937& random, int64_t low, int64_t high) {  // [low, high]
  return std::uniform_int_distribution<int64_t>(low, high)(random);
}

inline Shape random_shape(std::mt19937& random) {
  Shape shape;
  for (int64_t i = random_number(random, 0, 4); i > 0; --i) shape.push_back(random_number(random, 1, 6));
  return shape;
}

// All of it, a box, a box of blocks, or a range in some order; sometimes empty.
inline Slice random_slice(std::mt19937& random, const Shape& whole) {
  const int64_t kind = random_number(random, 0, 4);
  if (kind == 0) return Slice(whole);
  if (kind <= 2) {
    Shape offset = whole, extent = whole;
    const int packed = whole.rank() == 0 ? 0 : static_cast<int>(random_number(random, 0, whole.rank() - 1));
    int64_t blocks = 1;
    if (kind == 2 && whole.rank() > 0)
      for (int64_t n : {2, 3, 5})
        if (whole[packed] % n == 0) blocks = n;
    for (int i = 0; i < whole.rank(); ++i) {
      const int64_t size = i == packed ? whole[i] / blocks : whole[i];
      offset[i] = random_number(random, 0, size);
      extent[i] = random_number(random, 0, size - offset[i]);
      if (random_number(random, 0, 2) == 0) offset[i] = 0, extent[i] = size;
    }
    return Slice::box(whole, offset, extent, packed, blocks);
  }
  int64_t begin = random_number(random, 0, whole.count()), end = random_number(random, 0, whole.count());
  if (begin > end) std::swap(begin, end);
  Layout order;
  if (kind == 4) {
    std::vector<int64_t> axes;
    for (int i = 0; i < whole.rank(); ++i) axes.push_back(i);
    std::shuffle(axes.begin(), axes.end(), random);
    order.order = Shape(axes);
  }
  return Slice::range(whole, begin, end, order);
}

}  // namespace bonfire::testing
