#include "bonfire/tensor/dtype.h"

#include <utility>

#include "bonfire/base/error.h"

namespace bonfire {

size_t size_of(DType dtype) {
  switch (dtype) {
    case DType::f64:
    case DType::i64: return 8;
    case DType::f32:
    case DType::i32: return 4;
    case DType::bf16:
    case DType::f16: return 2;
    case DType::u8:
    case DType::boolean: break;
  }
  return 1;
}

std::string_view name_of(DType dtype) {
  switch (dtype) {
    case DType::f32: return "f32";
    case DType::f64: return "f64";
    case DType::bf16: return "bf16";
    case DType::f16: return "f16";
    case DType::i32: return "i32";
    case DType::i64: return "i64";
    case DType::u8: return "u8";
    case DType::boolean: break;
  }
  return "bool";
}

DType parse_dtype(std::string_view name) {
  constexpr std::pair<std::string_view, DType> kNames[] = {
      {"f32", DType::f32},     {"float32", DType::f32}, {"float", DType::f32},     {"f64", DType::f64},
      {"float64", DType::f64}, {"bf16", DType::bf16},   {"bfloat16", DType::bf16}, {"f16", DType::f16},
      {"float16", DType::f16}, {"i32", DType::i32},     {"int32", DType::i32},     {"i64", DType::i64},
      {"int64", DType::i64},   {"u8", DType::u8},       {"uint8", DType::u8},      {"bool", DType::boolean}};
  for (const auto& [text, dtype] : kNames)
    if (text == name) return dtype;
  throw_error<ConfigError>("[dtype] '{}' is not an element type; use one of f32, f64, bf16, f16, i32, i64, u8, bool",
                           name);
}

DType promote(DType a, DType b) {
  if (a == b) return a;
  auto rank = [](DType dtype) {
    switch (dtype) {
      case DType::boolean: return 0;
      case DType::u8: return 1;
      case DType::i32: return 2;
      case DType::i64: return 3;
      case DType::f16:
      case DType::bf16: return 4;
      case DType::f32: return 5;
      case DType::f64: break;
    }
    return 6;
  };
  if (rank(a) == 4 && rank(b) == 4) return DType::f32;
  return rank(a) > rank(b) ? a : b;
}

}  // namespace bonfire
