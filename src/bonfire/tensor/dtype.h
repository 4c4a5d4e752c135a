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

// IEEE half precision. A type of our own because g++ 12 has no _Float16 on aarch64; arithmetic is done in float.
struct float16 {
  uint16_t bits = 0;

  float16() = default;
  float16(float value) {  // round to nearest even; NaN stays NaN, too large becomes infinity
    uint32_t word = std::bit_cast<uint32_t>(value);
    uint32_t magnitude = word & 0x7FFFFFFFU;
    uint32_t half = 0x7C00U;        // infinity
    if (magnitude > 0x7F800000U) {  // NaN
      half = 0x7E00U | ((magnitude >> 13) & 0x3FFU);
    } else if (magnitude < 0x38800000U) {  // below 2^-14: adding 0.5 rounds at 2^-24, the unit of half's subnormals
      half = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5F) - 0x3F000000U;
    } else if (magnitude < 0x47800000U) {  // below 2^16; what rounds up to it becomes infinity by the carry
      half = (magnitude - 0x38000000U + 0xFFFU + ((magnitude >> 13) & 1U)) >> 13;
    }
    bits = static_cast<uint16_t>(((word >> 16) & 0x8000U) | half);
  }
  operator float() const {
    uint32_t sign = (bits & 0x8000U) << 16, magnitude = bits & 0x7FFFU;
    if (magnitude < 0x0400U)  // subnormal
      return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(static_cast<float>(magnitude) * 0x1.0p-24F));
    uint32_t bias = magnitude < 0x7C00U ? 0x38000000U : 0x70000000U;  // infinity and NaN have the largest exponent
    return std::bit_cast<float>(sign | ((magnitude << 13) + bias));
  }
};

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
