#include "bonfire/backend/cpu/gemm/gemm_driver.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "bonfire/base/random.h"

namespace bonfire::cpu::gemm_driver_test {
namespace {

template <class T>
std::vector<T> random_numbers(int64_t count, uint64_t stream) {
  std::vector<T> numbers(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) numbers[static_cast<size_t>(i)] = 2 * uniform_at(3, stream, i) - 1;
  return numbers;
}

// Runs every test once per instruction set that this machine has.
class GemmDriverTest : public ::testing::TestWithParam<InstructionSet> {
 protected:
  void SetUp() override { set_instruction_set_for_test(GetParam()); }
  void TearDown() override { set_instruction_set_for_test(available_instruction_sets().back()); }
};

// out = relu(a * b + bias + residual) with rows and columns of out `row` and `col` apart; the rest of out stays.
template <class T>
void expect_residual_added(int64_t m, int64_t n, int64_t k, int64_t row, int64_t col) {
  const auto a = random_numbers<T>(m * k, 1), b = random_numbers<T>(k * n, 2);
  const auto bias = random_numbers<float>(n, 3);
  const int64_t size = (m - 1) * row + (n - 1) * col + 1;
  const auto residual = random_numbers<T>(size, 4), before = random_numbers<T>(size, 5);
  auto out = before;
  const MemorySource<T, float> left(a.data(), Axis{{m, k}}, Axis{{k, 1}}), right(b.data(), Axis{{n, 1}}, Axis{{k, n}});
  const Product<float> product{.m = m,
                               .n = n,
                               .k = k,
                               .a = &left,
                               .b = &right,
                               .out = out.data(),
                               .out_type = sizeof(T) == 2 ? OutputType::bf16 : OutputType::same,
                               .rows = Axis{{m, row}},
                               .cols = Axis{{n, col}},
                               .col_bias = bias.data(),
                               .activation = Activation::relu,
                               .residual = residual.data()};
  ThreadPool pool(2);
  std::vector<std::byte> workspace(product_workspace(product, pool.size()));
  multiply(product, workspace, &pool);
  std::vector<double> expected(before.begin(), before.end());
  for (int64_t i = 0; i < m; ++i)
    for (int64_t j = 0; j < n; ++j) {
      double sum = static_cast<double>(bias[j]) + static_cast<double>(residual[i * row + j * col]);
      for (int64_t x = 0; x < k; ++x) sum += static_cast<double>(a[i * k + x]) * static_cast<double>(b[x * n + j]);
      expected[i * row + j * col] = std::max(sum, 0.0);
    }
  const double tolerance = 1e-5 * std::sqrt(k) + 1e-5;
  int64_t wrong = 0;
  for (int64_t i = 0; i < size; ++i)
    wrong += !(std::abs(static_cast<double>(out[i]) - expected[i]) <=
               tolerance + (sizeof(T) == 2 ? 0x1.0p-8 * std::abs(expected[i]) : 0));
  EXPECT_EQ(wrong, 0) << m << " x " << n << " x " << k << ", rows " << row << ", columns " << col << " apart";
}

TEST_P(GemmDriverTest, ResidualsAreAddedOnceHoweverTheProductIsCut) {
  for (int64_t k : {30, 1100, 4200})  // one slice of K, several, and parts of K that are summed at the end
    for (auto [row, col] : {std::pair<int64_t, int64_t>{45, 1}, {1, 40}, {100, 2}}) {
      expect_residual_added<float>(18, 35, k, row, col);
      expect_residual_added<bfloat16>(18, 35, k, row, col);
    }
}

INSTANTIATE_TEST_SUITE_P(InstructionSets, GemmDriverTest,
                         ::testing::ValuesIn(available_instruction_sets().begin(), available_instruction_sets().end()),
                         [](const auto& info) { return std::string(name_of(info.param)); });

}  // namespace
}  // namespace bonfire::cpu::gemm_driver_test
