#pragma once
// Element types: what they are called, how large they are, how they promote.

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <type_traits>

namespace bonfire {

enum class DType : uint8_t { f32, f64, bf16, f16, i32, i64, u8, boolean };

// The upper half of a float; arithmetic is done in float.
struct bfloat16 {
  uint16_t bits = 0;

  bfloat16() = default;
  bfloat16(float value) {  // round to nearest even; NaN stays NaN
    uint32_t word = std::bit_cast<uint32_t>(value);
    bits = value != value ? static_cast<uint16_t>((word >> 16) | 0x40U)
                          : static_cast<uint16_t>((word + 0x7FFFU + ((word >> 16) & 1U)) >> 16);
  }
  operator float() const { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }
};

using float16 = _Float16;

size_t size_of(DType dtype);  // bytes
std::string_view name_of(DType dtype);
DType parse_dtype(std::string_view name);  // "f32", "float32", ...; ConfigError that lists the names otherwise

constexpr bool is_floating(DType dtype) {
  return dtype == DType::f32 || dtype == DType::f64 || dtype == DType::bf16 || dtype == DType::f16;
}

// PyTorch's rule for two tensors of the same rank class: floats win over integers, wider over narrower, bf16 with f16
// gives f32.
DType promote(DType a, DType b);

template <class T>
constexpr DType dtype_of() {
  if constexpr (std::is_same_v<T, float>)
    return DType::f32;
  else if constexpr (std::is_same_v<T, double>)
    return DType::f64;
  else if constexpr (std::is_same_v<T, bfloat16>)
    return DType::bf16;
  else if constexpr (std::is_same_v<T, float16>)
    return DType::f16;
  else if constexpr (std::is_same_v<T, int32_t>)
    return DType::i32;
  else if constexpr (std::is_same_v<T, int64_t>)
    return DType::i64;
  else if constexpr (std::is_same_v<T, uint8_t>)
    return DType::u8;
  else {
    static_assert(std::is_same_v<T, bool>, "no DType for this type");
    return DType::boolean;
  }
}

template <class T>
struct TypeTag {
  using type = T;
};

// Calls body(TypeTag<T>{}) with the C++ type of `dtype`.
template <class Body>
decltype(auto) dispatch(DType dtype, Body&& body) {
  switch (dtype) {
    case DType::f32: return body(TypeTag<float>{});
    case DType::f64: return body(TypeTag<double>{});
    case DType::bf16: return body(TypeTag<bfloat16>{});
    case DType::f16: return body(TypeTag<float16>{});
    case DType::i32: return body(TypeTag<int32_t>{});
    case DType::i64: return body(TypeTag<int64_t>{});
    case DType::u8: return body(TypeTag<uint8_t>{});
    case DType::boolean: break;
  }
  return body(TypeTag<bool>{});
}

}  // namespace bonfire
