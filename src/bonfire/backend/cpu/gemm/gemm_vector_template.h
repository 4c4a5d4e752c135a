#pragma once
// Vectors of one instruction set: loads, stores and widening, for the templates of gemm_kernel_template.h.

#include "bonfire/backend/cpu/gemm/gemm_kernel.h"

namespace bonfire::cpu {

template <class Element, int bytes>
struct VectorOf {
  typedef Element type __attribute__((vector_size(bytes)));
};
template <class Element, int bytes>
using VectorType = typename VectorOf<Element, bytes>::type;

template <class Isa>
struct GemmVectors {
  using Scalar = typename Isa::Scalar;
  static constexpr int kBytes = Isa::bytes;
  static constexpr int kLanes = kBytes / static_cast<int>(sizeof(Scalar));
  static constexpr int kMr = Isa::mr;
  static constexpr int kVectors = Isa::vectors;
  static constexpr int kNr = kVectors * kLanes;
  static constexpr int kQuad = 16 / static_cast<int>(sizeof(Scalar));  // lanes of a 16-byte vector

  using Vector = VectorType<Scalar, kBytes>;
  using Quad = VectorType<Scalar, 16>;
  using Pair = VectorType<Scalar, 2 * sizeof(Scalar)>;
  using HalfVector = VectorType<Scalar, (kBytes > 32 ? kBytes / 2 : 16)>;

  template <class V>
  static constexpr int lanes_of = static_cast<int>(sizeof(V) / sizeof(Scalar));

  template <class V>
  [[gnu::always_inline]] static V load(const Scalar* from) {
    V value;
    __builtin_memcpy(&value, from, sizeof(V));
    return value;
  }

  template <class V>
  [[gnu::always_inline]] static V load(const uint16_t* from) {  // bf16 widened
    constexpr int kCount = lanes_of<V>;
    using Word = VectorType<uint32_t, 4 * kCount>;
    VectorType<uint16_t, 2 * kCount> half;
    __builtin_memcpy(&half, from, sizeof half);
    Word word;
    if constexpr (requires { Isa::widen(half); })
      word = Isa::widen(half);
    else
      word = __builtin_convertvector(half, Word) << 16;
    V value;
    __builtin_memcpy(&value, &word, sizeof value);
    return value;
  }

  template <class V>
  [[gnu::always_inline]] static void store(Scalar* to, const V& value) {
    __builtin_memcpy(to, &value, sizeof(V));
  }

  // As bf16, rounded to nearest even; NaN stays NaN.
  [[gnu::always_inline]] static void store(uint16_t* to, const Vector& value) {
    if constexpr (requires { Isa::narrow(value); }) {
      const auto half = Isa::narrow(value);
      __builtin_memcpy(to, &half, sizeof half);
    } else {
      using Word = VectorType<uint32_t, 4 * kLanes>;
      Word word;
      __builtin_memcpy(&word, &value, sizeof word);
      const Word rounded = (word + 0x7FFFU + ((word >> 16) & 1U)) >> 16, quiet = (word >> 16) | 0x40U;
      const auto half = __builtin_convertvector(value != value ? quiet : rounded, VectorType<uint16_t, 2 * kLanes>);
      __builtin_memcpy(to, &half, sizeof half);
    }
  }

  // The first `count` < kLanes elements.
  template <class Out>
  [[gnu::always_inline]] static void copy_start(const Out* from, int count, Out* to) {
#pragma GCC unroll 4
    for (int size = 8; size > 0; size /= 2)
      if (size < kLanes && count & size) {
        __builtin_memcpy(to, from, size * sizeof(Out));
        from += size;
        to += size;
      }
  }

  // The first `count` numbers, then zeros.
  template <class Element>
  [[gnu::always_inline]] static Vector load_part(const Element* from, int count) {
    Element part[kLanes] = {};
    for (int i = 0; i < count; ++i) part[i] = from[i];
    return load<Vector>(part);
  }
  template <class Element>
  [[gnu::always_inline]] static void store_part(Element* to, int count, const Vector& value) {
    Element part[kLanes];
    store(part, value);
    copy_start(part, count, to);
  }

  [[gnu::always_inline]] static Scalar widen(Scalar value) { return value; }
  [[gnu::always_inline]] static Scalar widen(uint16_t bits) {
    uint32_t word = static_cast<uint32_t>(bits) << 16;
    float value;
    __builtin_memcpy(&value, &word, sizeof value);
    return value;
  }
};

}  // namespace bonfire::cpu
