#include "bonfire/backend/cpu/gemm/gemm.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "bonfire/base/random.h"

namespace bonfire::cpu::gemm_test {
namespace {

// Memory of a matrix in some element type, with its values readable as double.
class Values {
 public:
  Values(DType dtype, int64_t count, uint64_t stream) : dtype_(dtype), bytes_(count * size_of(dtype)) {
    for (int64_t i = 0; i < count; i += 4) {
      const RandomBlock block = philox(7, stream, i / 4);
      for (int64_t j = i; j < std::min(i + 4, count); ++j) set(j, 2.0 * uniform_from_bits(block.word[j - i]) - 1.0);
    }
  }
  void* data() { return bytes_.data(); }
  const void* data() const { return bytes_.data(); }
  double at(int64_t i) const {
    return dispatch(dtype_, [&](auto tag) {
      typename decltype(tag)::type value;
      std::memcpy(&value, bytes_.data() + i * sizeof value, sizeof value);
      return static_cast<double>(value);
    });
  }
  void set(int64_t i, double number) {
    dispatch(dtype_, [&](auto tag) {
      auto value = static_cast<typename decltype(tag)::type>(number);
      std::memcpy(bytes_.data() + i * sizeof value, &value, sizeof value);
    });
  }
  std::vector<double> all() const {
    std::vector<double> numbers(bytes_.size() / size_of(dtype_));
    for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = at(static_cast<int64_t>(i));
    return numbers;
  }
  const std::vector<std::byte>& bytes() const { return bytes_; }

 private:
  DType dtype_;
  std::vector<std::byte> bytes_;
};

// Runs every test once per instruction set that this machine has.
class GemmTest : public ::testing::TestWithParam<InstructionSet> {
 protected:
  void SetUp() override { set_instruction_set_for_test(GetParam()); }
  void TearDown() override { set_instruction_set_for_test(available_instruction_sets().back()); }
};

double activated(double x, Activation activation) {
  if (activation == Activation::relu) return x < 0 ? 0 : x;
  if (activation == Activation::gelu_tanh)
    return 0.5 * x * (1 + std::tanh(0.79788456080286535588 * (x + 0.044715 * x * x * x)));
  return x;
}

Gemm dense(int64_t m, int64_t n, int64_t k, bool ta, bool tb) {
  return {.m = m, .n = n, .k = k, .transpose_a = ta, .transpose_b = tb, .lda = ta ? m : k, .ldb = tb ? k : n, .ldc = n};
}

int64_t extent(int64_t rows, int64_t ld, int64_t cols) { return rows == 0 ? 0 : (rows - 1) * ld + cols; }

struct Operands {
  Values a, b, bias, c;
  explicit Operands(const Gemm& g)
      : a(g.input, extent(g.transpose_a ? g.k : g.m, g.lda, g.transpose_a ? g.m : g.k) + (g.batch - 1) * g.stride_a, 1),
        b(g.input, extent(g.transpose_b ? g.n : g.k, g.ldb, g.transpose_b ? g.k : g.n) + (g.batch - 1) * g.stride_b, 2),
        bias(g.bias_type, std::max(g.m, g.n), 3),
        c(g.output, extent(g.m, g.ldc, g.n) + (g.batch - 1) * g.stride_c, 4) {}
};

void run(const Gemm& g, Operands& o, int threads) {
  ThreadPool pool(threads);
  std::vector<std::byte> workspace(gemm_workspace(g, threads));
  gemm(g, o.a.data(), o.b.data(), o.bias.data(), o.c.data(), workspace, pool);
}

std::string describe(const Gemm& g) {
  return fmt::format("m {} n {} k {} ta {} tb {} {} -> {} accumulate {} bias {} activation {} batch {}", g.m, g.n, g.k,
                     g.transpose_a, g.transpose_b, name_of(g.input), name_of(g.output), g.accumulate,
                     static_cast<int>(g.bias), static_cast<int>(g.activation), g.batch);
}

// Compares with a plain triple loop in f64, and that memory between rows of C was left alone.
void expect_right(const Gemm& g, int threads = 1) {
  Operands o(g);
  const std::vector<double> a = o.a.all(), b = o.b.all(), before = o.c.all();
  run(g, o, threads);
  const double unit = g.output == DType::bf16 ? 0x1.0p-8 : g.input == DType::f64 ? 0x1.0p-52 : 0x1.0p-23;
  int64_t wrong = 0;
  for (int64_t s = 0; s < g.batch; ++s)
    for (int64_t i = 0; i < g.m; ++i)
      for (int64_t j = 0; j < (i + 1 < g.m ? g.ldc : g.n); ++j) {
        const int64_t at = s * g.stride_c + i * g.ldc + j;
        if (j >= g.n) {
          wrong += o.c.at(at) != before[at];
          continue;
        }
        double sum = g.accumulate ? before[at] : 0, size = std::abs(sum);
        for (int64_t k = 0; k < g.k; ++k) {
          const double product = a[s * g.stride_a + (g.transpose_a ? k * g.lda + i : i * g.lda + k)] *
                                 b[s * g.stride_b + (g.transpose_b ? j * g.ldb + k : k * g.ldb + j)];
          sum += product;
          size += std::abs(product);
        }
        if (g.bias == BiasAlong::rows) sum += o.bias.at(i);
        if (g.bias == BiasAlong::columns) sum += o.bias.at(j);
        const double expected = activated(sum, g.activation);
        // f32 sums of k products, then one rounding to the type of C.
        const double sums = (g.input == DType::f64 ? 0x1.0p-52 : 0x1.0p-23) * (4 + std::sqrt(g.k)) * (size + 1);
        wrong += !(std::abs(o.c.at(at) - expected) <= sums + unit * std::abs(expected));
      }
  EXPECT_EQ(wrong, 0) << describe(g);
}

TEST_P(GemmTest, IsRightForOddSizesAndAllTransposes) {
  const int64_t sizes[] = {1, 2, 3, 5, 8, 13, 16, 17, 31, 33, 47};
  uint64_t counter = 0;
  for (int64_t m : sizes)
    for (int64_t n : sizes)
      for (int64_t k : {1, 3, 10, 16, 29}) {
        const uint32_t pick = philox(1, 0, counter++).word[0];
        expect_right(dense(m, n, k, pick & 1, pick & 2));
      }
}

TEST_P(GemmTest, IsRightForBf16OfOddSizes) {
  for (int64_t m : {1, 3, 14, 16, 17, 33})
    for (int64_t n : {1, 6, 16, 31, 33, 50})
      for (int64_t k : {1, 2, 25, 32, 33, 67})
        for (int transposed = 0; transposed < 4; ++transposed) {
          Gemm g = dense(m, n, k, transposed & 1, transposed & 2);
          g.input = DType::bf16;
          expect_right(g);
        }
}

TEST_P(GemmTest, IsRightAcrossBlocksOfEveryLoop) {
  for (DType type : {DType::f32, DType::bf16})
    for (int transposed = 0; transposed < 4; ++transposed) {
      auto expect = [&](int64_t m, int64_t n, int64_t k) {
        Gemm g = dense(m, n, k, transposed & 1, transposed & 2);
        g.input = type;
        expect_right(g, 2);
      };
      expect(67, 61, 1031);  // several slices of K
      expect(521, 37, 19);   // several blocks of A
      expect(37, 523, 19);   // several blocks of B
      expect(13, 17, 4099);  // K cut into parts
    }
}

// Some instruction sets multiply such rows of A where they are.
TEST_P(GemmTest, IsRightForRowsOfBf16ThatAreWholeTiles) {
  for (DType output : {DType::f32, DType::bf16})
    for (bool accumulate : {false, true}) {
      auto expect = [&](int64_t m, int64_t n, int64_t k, int64_t between_rows) {
        Gemm g = dense(m, n, k, false, true);
        g.input = DType::bf16;
        g.output = output;
        g.accumulate = accumulate;
        g.lda += between_rows;
        expect_right(g, 2);
      };
      expect(16, 5, 32, 0);
      expect(48, 33, 64, 0);
      expect(544, 40, 96, 8);   // several blocks of A
      expect(32, 600, 64, 3);   // several blocks of B
      expect(64, 48, 2080, 0);  // several slices of K
    }
}

// Also where f32 is multiplied in parts of bf16. Rows differ in size by a lot, and each keeps its accuracy.
TEST_P(GemmTest, LargeProductsOfF32KeepTheAccuracyOfF32) {
  uint64_t counter = 0;
  for (auto [m, n, k] : {std::array<int64_t, 3>{97, 131, 133}, {129, 64, 300}, {65, 550, 1031}, {2100, 67, 29}})
    for (bool ta : {false, true})
      for (bool tb : {false, true}) {
        const Gemm g = dense(m, n, k, ta, tb);
        expect_right(g, 2);
        Operands o(g);
        for (int64_t i = 0; i < m; ++i) {
          const double scale = std::ldexp(1.0, static_cast<int>(philox(2, 0, counter++).word[0] % 60) - 30);
          for (int64_t x = 0; x < k; ++x)
            o.a.set(ta ? x * m + i : i * k + x, scale * o.a.at(ta ? x * m + i : i * k + x));
        }
        run(g, o, 2);
        int64_t wrong = 0;
        for (int64_t i = 0; i < m; i += 7)
          for (int64_t j = 0; j < n; ++j) {
            double sum = 0, size = 0;
            for (int64_t x = 0; x < k; ++x) {
              const double product = o.a.at(ta ? x * m + i : i * k + x) * o.b.at(tb ? j * k + x : x * n + j);
              sum += product;
              size += std::abs(product);
            }
            wrong += !(std::abs(o.c.at(i * n + j) - sum) <= 0x1.0p-22 * size);
          }
        EXPECT_EQ(wrong, 0) << describe(g);
      }
}

// Small whole numbers, so that every product and every sum is a whole number below 2^24.
TEST_P(GemmTest, ProductsOfBf16AreExactWhereSumsAre) {
  for (auto [m, n, k] : {std::array<int64_t, 3>{35, 70, 129}, {70, 35, 1500}, {5, 40, 4100}}) {
    Gemm g = dense(m, n, k, false, true);
    g.input = DType::bf16;
    Operands o(g);
    auto round_all = [](Values& values, int64_t count) {
      for (int64_t i = 0; i < count; ++i) values.set(i, std::round(20 * values.at(i)));
    };
    round_all(o.a, m * k);
    round_all(o.b, n * k);
    run(g, o, 2);
    int64_t wrong = 0;
    for (int64_t i = 0; i < m; ++i)
      for (int64_t j = 0; j < n; ++j) {
        double sum = 0;
        for (int64_t x = 0; x < k; ++x) sum += o.a.at(i * k + x) * o.b.at(j * k + x);
        wrong += o.c.at(i * n + j) != sum;
      }
    EXPECT_EQ(wrong, 0) << describe(g);
  }
}

TEST_P(GemmTest, IsRightForVectors) {
  for (bool ta : {false, true})
    for (bool tb : {false, true})
      for (int64_t large : {1, 257, 1100}) {
        expect_right(dense(1, large, 301, ta, tb), 2);
        expect_right(dense(large, 1, 301, ta, tb), 2);
        expect_right(dense(3, large, 10, ta, tb), 2);
        expect_right(dense(large, 10, 3, ta, tb), 2);
        expect_right(dense(1, 1, large, ta, tb), 2);
        expect_right(dense(2, 3, 4 * large, ta, tb), 2);
      }
}

TEST_P(GemmTest, EmptySumsGiveZeroAndEmptyResultsNothing) {
  expect_right(dense(5, 7, 0, false, false));
  Gemm g = dense(5, 7, 0, false, false);
  g.accumulate = true;
  g.bias = BiasAlong::columns;
  expect_right(g);
  expect_right(dense(0, 7, 3, false, false));
  expect_right(dense(5, 0, 3, false, true));
}

TEST_P(GemmTest, EveryTypeWithBiasActivationAccumulationAndPaddedRows) {
  struct Types {
    DType input, output, bias;
  };
  const Types types[] = {{DType::f32, DType::f32, DType::f32},    {DType::bf16, DType::f32, DType::f32},
                         {DType::bf16, DType::bf16, DType::bf16}, {DType::f32, DType::bf16, DType::f32},
                         {DType::bf16, DType::bf16, DType::f32},  {DType::f64, DType::f64, DType::f64}};
  uint64_t counter = 0;
  for (const Types& type : types)
    for (auto [m, n, k] : {std::array<int64_t, 3>{23, 45, 31}, {20, 40, 550}, {40, 20, 550}, {5, 6, 2100}})
      for (BiasAlong bias : {BiasAlong::none, BiasAlong::rows, BiasAlong::columns})
        for (Activation activation : {Activation::none, Activation::relu, Activation::gelu_tanh}) {
          const uint32_t pick = philox(2, 0, counter++).word[0];
          Gemm g = dense(m, n, k, pick & 1, pick & 2);
          g.input = type.input;
          g.output = type.output;
          g.bias_type = type.bias;
          g.lda += 3;
          g.ldb += 1;
          g.ldc += 5;
          g.accumulate = pick & 4;
          g.bias = bias;
          g.activation = activation;
          expect_right(g, 2);
        }
}

TEST_P(GemmTest, BatchesAreRightWhetherSmallLargeOrShared) {
  for (int64_t size : {7, 33, 130})
    for (bool share_b : {false, true}) {
      Gemm g = dense(size, size + 1, size + 2, false, share_b);
      g.batch = size == 130 ? 3 : 9;
      g.stride_a = g.m * g.lda;
      g.stride_b = share_b ? 0 : g.k * g.ldb;
      g.stride_c = g.m * g.ldc;
      expect_right(g, 2);
      g.transpose_a = true;
      g.lda = g.m;
      g.stride_a = g.k * g.lda;
      g.bias = BiasAlong::rows;
      expect_right(g, 2);
    }
}

TEST_P(GemmTest, SameBitsForAnyNumberOfThreads) {
  for (Gemm g : {dense(80, 150, 600, false, false), dense(150, 40, 2100, true, false), dense(20, 20, 4000, false, true),
                 dense(40, 900, 40, true, true)})
    for (DType type : {DType::f32, DType::bf16}) {
      g.input = g.output = type;
      Operands one(g), other(g);
      run(g, one, 1);
      for (int threads : {2, 5}) {
        other = Operands(g);
        run(g, other, threads);
        EXPECT_EQ(one.c.bytes(), other.c.bytes()) << describe(g) << " on " << threads << " threads";
      }
    }
}

TEST_P(GemmTest, NotANumberPassesThroughReluAndBf16) {
  Gemm g = dense(3, 20, 4, false, false);
  g.activation = Activation::relu;
  for (DType input : {DType::f32, DType::bf16})
    for (DType output : {DType::f32, DType::bf16}) {
      g.input = input;
      g.output = output;
      Operands o(g);
      o.a.set(4, NAN);  // row 1
      run(g, o, 1);
      for (int64_t j = 0; j < g.n; ++j) {
        EXPECT_FALSE(std::isnan(o.c.at(j)));
        EXPECT_TRUE(std::isnan(o.c.at(g.ldc + j)));
      }
    }
}

// Numbers of f32 that are split into parts must not lose what makes them NaN, whatever its bits.
TEST_P(GemmTest, NotANumberPassesThroughLargeProducts) {
  for (bool transpose : {false, true})
    for (uint32_t bits : {0x7FC00000U, 0xFFFFFFFFU, 0x7FFFFFFFU, 0x7FC0FFFFU}) {
      const Gemm g = dense(70, 130, 120, transpose, !transpose);
      Operands o(g);
      std::memcpy(static_cast<std::byte*>(o.a.data()) + (transpose ? 5 * g.lda + 3 : 3 * g.lda + 5) * 4, &bits, 4);
      run(g, o, 1);  // step 5 of row 3
      int64_t wrong = 0;
      for (int64_t i = 0; i < g.m; ++i)
        for (int64_t j = 0; j < g.n; ++j) wrong += std::isnan(o.c.at(i * g.ldc + j)) != (i == 3);
      EXPECT_EQ(wrong, 0) << describe(g) << " with " << bits;
    }
}

// Parts of an infinite number are not finite either, and their difference is not a number.
TEST_P(GemmTest, WholeNumbersMayBeInfinite) {
  Gemm g = dense(70, 130, 120, false, true);
  EXPECT_EQ(is_split(g), GetParam() == InstructionSet::amx);
  EXPECT_FALSE(is_split(dense(63, 130, 1200, false, true)));
  g.f32 = F32::whole;
  EXPECT_FALSE(is_split(g));
  Operands o(g);
  o.a.set(3 * g.lda + 5, INFINITY);
  run(g, o, 2);
  for (int64_t i = 0; i < g.m; ++i)
    for (int64_t j = 0; j < g.n; ++j) {
      const double found = o.c.at(i * g.ldc + j), weight = o.b.at(j * g.ldb + 5);
      if (i != 3)
        ASSERT_TRUE(std::isfinite(found));
      else
        ASSERT_EQ(found, std::copysign(INFINITY, weight));
    }
}

INSTANTIATE_TEST_SUITE_P(InstructionSets, GemmTest,
                         ::testing::ValuesIn(available_instruction_sets().begin(), available_instruction_sets().end()),
                         [](const auto& info) { return std::string(name_of(info.param)); });

}  // namespace
}  // namespace bonfire::cpu::gemm_test
