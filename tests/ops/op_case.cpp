#include "tests/ops/op_case.h"

#include <algorithm>
#include <cmath>

#include "bonfire/base/error.h"
#include "bonfire/base/random.h"

namespace bonfire::op_test {

namespace {

std::vector<OpCase>& op_table() {
  static std::vector<OpCase> table;
  return table;
}

std::vector<ErrorCase>& error_table() {
  static std::vector<ErrorCase> table;
  return table;
}

}  // namespace

bool add_op_cases(std::vector<OpCase> cases) {
  for (OpCase& row : cases) op_table().push_back(std::move(row));
  return true;
}
bool add_error_cases(std::vector<ErrorCase> cases) {
  for (ErrorCase& row : cases) error_table().push_back(std::move(row));
  return true;
}
const std::vector<OpCase>& op_cases() { return op_table(); }
const std::vector<ErrorCase>& error_cases() { return error_table(); }

Numbers draw(const InputCase& input, uint64_t salt) {
  constexpr uint64_t kSeed = 20240607;
  auto count = static_cast<size_t>(input.shape.count());
  if (!input.values.empty()) {
    BONFIRE_CHECK(input.values.size() == count, "{} values for {}", input.values.size(), to_string(input.shape));
    return input.values;
  }
  Numbers numbers(count);
  for (size_t i = 0; i < count; ++i) {
    double unit = uniform_at(kSeed, salt, i);
    numbers[i] = input.low + (input.high - input.low) * unit;
    if (!is_floating(input.dtype)) numbers[i] = std::floor(numbers[i]);
    if (input.gap > 0) numbers[i] += std::copysign(input.gap, numbers[i]);
    if (input.distinct)
      numbers[i] = input.low + (input.high - input.low) * (static_cast<double>(i) + 0.5) / static_cast<double>(count);
  }
  if (input.distinct)  // Fisher-Yates
    for (size_t i = count; i > 1; --i) std::swap(numbers[i - 1], numbers[philox(kSeed, salt, i).word[0] % i]);
  return numbers;
}

Tensor make_tensor(const Numbers& values, const Shape& shape, DType dtype, Device device) {
  std::vector<std::byte> bytes(values.size() * size_of(dtype));
  dispatch(dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    auto* target = reinterpret_cast<T*>(bytes.data());
    for (size_t i = 0; i < values.size(); ++i) {
      if constexpr (std::is_same_v<T, bfloat16> || std::is_same_v<T, float16>) {
        target[i] = T(static_cast<float>(values[i]));
      } else {
        target[i] = static_cast<T>(values[i]);
      }
    }
  });
  return Tensor::from_bytes(bytes, {shape, dtype, device});
}

}  // namespace bonfire::op_test
