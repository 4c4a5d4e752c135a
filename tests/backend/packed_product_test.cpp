#include "bonfire/backend/cpu/gemm/packed_product.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "bonfire/base/random.h"

namespace bonfire::cpu::packed_product_test {
namespace {

class PackedProductTest : public ::testing::TestWithParam<InstructionSet> {
 protected:
  void SetUp() override { set_instruction_set_for_test(GetParam()); }
  void TearDown() override { set_instruction_set_for_test(available_instruction_sets().back()); }
};

template <class T>
std::vector<T> random_matrix(int64_t count, uint64_t stream) {
  std::vector<T> numbers(static_cast<size_t>(count));
  for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<T>(2 * uniform_at(3, stream, i) - 1);
  return numbers;
}

struct AlignedBytes {
  explicit AlignedBytes(size_t bytes) : memory(new (std::align_val_t{64}) std::byte[bytes]) {}
  struct Free {
    void operator()(std::byte* bytes) const { ::operator delete[](bytes, std::align_val_t{64}); }
  };
  std::unique_ptr<std::byte[], Free> memory;
};

// A [m, k] as it is, B [k, n] from a transposed matrix; twice, so that the second time adds.
template <class T>
void expect_right(int64_t m, int64_t n, int64_t k, F32 f32 = F32::split) {
  using Acc = Compute<T>;
  const auto a = random_matrix<T>(m * k, 1), b = random_matrix<T>(n * k, 2);
  const PackedProduct<T> product(n, k, f32);
  const AlignedBytes packed_a(product.a_bytes(m)), packed_b(product.b_bytes());
  product.pack_a(a.data(), Axis{{m, k}}, Axis{{k, 1}}, packed_a.memory.get());
  product.pack_b(b.data(), Axis{{n, k}}, Axis{{k, 1}}, packed_b.memory.get());
  std::vector<Acc> c(static_cast<size_t>(m * product.stride()), Acc(7));
  product.multiply(m, packed_a.memory.get(), packed_b.memory.get(), c.data(), product.stride());
  if (product.takes_rows(m))
    product.multiply_rows(m, a.data(), k, packed_b.memory.get(), c.data(), product.stride(), true);
  else
    product.multiply(m, packed_a.memory.get(), packed_b.memory.get(), c.data(), product.stride(), true);
  int64_t wrong = 0;
  for (int64_t i = 0; i < m; ++i)
    for (int64_t j = 0; j < n; ++j) {
      double sum = 0, size = 0;
      for (int64_t x = 0; x < k; ++x) {
        const double one = 2 * static_cast<double>(a[i * k + x]) * static_cast<double>(b[j * k + x]);
        sum += one;
        size += std::abs(one);
      }
      wrong += !(std::abs(static_cast<double>(c[i * product.stride() + j]) - sum) <= 0x1.0p-21 * size);
    }
  EXPECT_EQ(wrong, 0) << m << " x " << n << " x " << k;
}

TEST_P(PackedProductTest, IsRightForOddSizesAndSeveralSlices) {
  for (auto [m, n, k] : {std::array<int64_t, 3>{1, 5, 3}, {17, 33, 77}, {64, 96, 32}, {70, 20, 100}, {18, 35, 1100}}) {
    expect_right<float>(m, n, k);
    expect_right<float>(m, n, k, F32::whole);
    expect_right<bfloat16>(m, n, k);
    expect_right<double>(m, n, k);
  }
}

TEST_P(PackedProductTest, TakesWholeTilesOfBf16AsTheyAre) {
  for (auto [m, n, k] : {std::array<int64_t, 3>{16, 5, 32}, {48, 33, 64}, {80, 96, 1024}}) {
    EXPECT_EQ(PackedProduct<bfloat16>(n, k).takes_rows(m), name_of(GetParam()) == "amx");
    expect_right<bfloat16>(m, n, k);
  }
  EXPECT_FALSE(PackedProduct<bfloat16>(32, 64).takes_rows(17));
  EXPECT_FALSE(PackedProduct<bfloat16>(32, 60).takes_rows(16));
  EXPECT_FALSE(PackedProduct<float>(32, 64).takes_rows(16));
}

INSTANTIATE_TEST_SUITE_P(InstructionSets, PackedProductTest,
                         ::testing::ValuesIn(available_instruction_sets().begin(), available_instruction_sets().end()),
                         [](const auto& info) { return std::string(name_of(info.param)); });

}  // namespace
}  // namespace bonfire::cpu::packed_product_test
