#pragma once
// First values: what a variable begins with, as a function of the place in the whole tensor. So any slice of it can be
// made anywhere, by any number of threads, with the same bits, and nothing needs memory before it is used.
//
//   variable.set_first_values(first_values([](int64_t index) { return 0.1F * static_cast<float>(index); }));

#include <cstdint>
#include <functional>
#include <utility>

#include "bonfire/graph/slice.h"
#include "bonfire/tensor/dtype.h"

namespace bonfire {

// Writes `count` elements of the whole tensor, row-major from element `begin` on, as numbers of that type. Called by
// several threads at once.
using FirstValues = std::function<void(int64_t begin, int64_t count, DType dtype, std::byte* target)>;

// value(index) for every element; it is rounded to the variable's type. Variables are numbers: not of booleans.
template <class Value>
FirstValues first_values(Value value) {
  return [value = std::move(value)](int64_t begin, int64_t count, DType dtype, std::byte* target) {
    dispatch(dtype, [&](auto tag) {
      using T = typename decltype(tag)::type;
      auto* elements = reinterpret_cast<T*>(target);
      for (int64_t i = 0; i < count; ++i) elements[i] = static_cast<T>(value(begin + i));
    });
  };
}

// Those of a slice into its memory, row-major, by all cores where there are many.
void fill_slice(const FirstValues& values, const Slice& slice, DType dtype, std::byte* target);

}  // namespace bonfire
