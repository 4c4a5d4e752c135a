#include "bonfire/backend/cpu/gemm/gemm.h"

#include <type_traits>

#include "bonfire/backend/cpu/gemm/gemm_driver.h"
#include "bonfire/backend/cpu/gemm/gemm_vector.h"
#include "bonfire/base/error.h"

namespace bonfire::cpu {

namespace {

// Products of fewer operations than this do not gain from being cut among threads when there are others to run.
constexpr double kSmallProduct = 4e6;

// When all products share B and those of A and C lie one below the other, they are one product.
Gemm fold_batch(Gemm g) {
  const bool stacked = g.batch > 1 && !g.transpose_a && g.stride_b == 0 && g.stride_a == g.m * g.lda &&
                       g.stride_c == g.m * g.ldc && g.bias != BiasAlong::rows;
  if (stacked) {
    g.m *= g.batch;
    g.batch = 1;
  }
  return g;
}

bool parallel_over_batch(const Gemm& g, int threads) {
  const double operations = 2.0 * static_cast<double>(g.m) * static_cast<double>(g.n) * static_cast<double>(g.k);
  return threads > 1 && g.batch > 1 && (operations < kSmallProduct || g.batch >= 4 * threads);
}

// A few vectors times a matrix whose rows run along K: dot products, without packing the matrix.
template <class Element>
bool is_vector_product(const Gemm& g) {
  if (std::is_same_v<Element, bfloat16>) return false;
  return (g.n <= kMostVectors && !g.transpose_a) || (g.m <= kMostVectors && g.transpose_b);
}

template <class Element>
using SumOf = std::conditional_t<std::is_same_v<Element, double>, double, float>;

// One product of the batch, with the operand sources that the product points to.
template <class Element>
struct MatrixProduct {
  using Acc = SumOf<Element>;
  MemorySource<Element, Acc> a, b;
  Product<Acc> product;

  MatrixProduct(const Gemm& g, const Element* a_data, const Element* b_data, const Acc* bias, void* c)
      : a(a_data, Axis{{g.m, g.transpose_a ? 1 : g.lda}}, Axis{{g.k, g.transpose_a ? g.lda : 1}}),
        b(b_data, Axis{{g.n, g.transpose_b ? g.ldb : 1}}, Axis{{g.k, g.transpose_b ? 1 : g.ldb}}) {
    product = {.m = g.m,
               .n = g.n,
               .k = g.k,
               .a = &a,
               .b = &b,
               .out = c,
               .out_type = g.output == DType::bf16 ? OutputType::bf16 : OutputType::same,
               .rows = Axis{{g.m, g.ldc}},
               .cols = Axis{{g.n, 1}},
               .add = g.accumulate,
               .row_bias = g.bias == BiasAlong::rows ? bias : nullptr,
               .col_bias = g.bias == BiasAlong::columns ? bias : nullptr,
               .activation = g.activation,
               .f32 = g.f32};
  }
  MatrixProduct(const MatrixProduct&) = delete;
  MatrixProduct& operator=(const MatrixProduct&) = delete;
};

// A bias in bf16 is widened into the head of the workspace.
int64_t bias_bytes(const Gemm& g) {
  if (g.bias == BiasAlong::none || g.bias_type != DType::bf16) return 0;
  return (g.bias == BiasAlong::rows ? g.m : g.n) * static_cast<int64_t>(sizeof(float));
}

// The same product seen by gemm_vector.h.
template <class Acc>
VectorProduct<Acc> vector_product(const Gemm& g, const Acc* a, const Acc* b, const Acc* bias, void* c) {
  const bool by_columns = g.n <= kMostVectors && !g.transpose_a;  // rows of A times columns of B
  VectorProduct<Acc> product{.k = g.k,
                             .count = by_columns ? g.m : g.n,
                             .rows = by_columns ? a : b,
                             .row_stride = by_columns ? g.lda : g.ldb,
                             .vectors = by_columns ? g.n : g.m,
                             .x = by_columns ? b : a,
                             .x_stride = by_columns ? (g.transpose_b ? g.ldb : 1) : (g.transpose_a ? 1 : g.lda),
                             .x_step = by_columns ? (g.transpose_b ? 1 : g.ldb) : (g.transpose_a ? g.lda : 1),
                             .out = c,
                             .out_bf16 = g.output == DType::bf16,
                             .out_stride = by_columns ? 1 : g.ldc,
                             .out_step = by_columns ? g.ldc : 1,
                             .add = g.accumulate,
                             .activation = g.activation};
  if (g.bias != BiasAlong::none) ((g.bias == BiasAlong::rows) == by_columns ? product.row_bias : product.x_bias) = bias;
  return product;
}

template <class Element>
size_t product_bytes(const Gemm& g, int threads) {
  if constexpr (!std::is_same_v<Element, bfloat16>)
    if (is_vector_product<Element>(g))
      return vector_workspace<Element>(vector_product<Element>(g, nullptr, nullptr, nullptr, nullptr)) *
             static_cast<size_t>(parallel_over_batch(g, threads) ? threads : 1);
  MatrixProduct<Element> one(g, nullptr, nullptr, nullptr, nullptr);
  if (!parallel_over_batch(g, threads)) return product_workspace(one.product, threads);
  return product_workspace(one.product, 1) * static_cast<size_t>(threads);
}

template <class Element>
void run(const Gemm& g, const void* a, const void* b, const void* bias, void* c, std::span<std::byte> workspace,
         ThreadPool& pool) {
  using Acc = SumOf<Element>;
  const auto widened = static_cast<size_t>(bias_bytes(g));
  if (widened > 0) {
    auto* wide = reinterpret_cast<float*>(workspace.data());
    for (size_t i = 0; i < widened / sizeof(float); ++i) wide[i] = static_cast<const bfloat16*>(bias)[i];
    bias = wide;
    workspace = workspace.subspan(widened);
  }
  auto multiply_one = [&](int64_t index, std::span<std::byte> space, ThreadPool* team) {
    const auto* left = static_cast<const Element*>(a) + index * g.stride_a;
    const auto* right = static_cast<const Element*>(b) + index * g.stride_b;
    void* to = static_cast<char*>(c) + index * g.stride_c * static_cast<int64_t>(size_of(g.output));
    if constexpr (!std::is_same_v<Element, bfloat16>)
      if (is_vector_product<Element>(g))
        return multiply(vector_product<Element>(g, left, right, static_cast<const Acc*>(bias), to), space, team);
    MatrixProduct<Element> one(g, left, right, static_cast<const Acc*>(bias), to);
    multiply(one.product, space, team);
  };
  if (parallel_over_batch(g, pool.size())) {
    const size_t share = workspace.size() / static_cast<size_t>(pool.size());
    for_each_task(&pool, pool.size(), g.batch, [&](int64_t slot, int64_t index) {
      multiply_one(index, workspace.subspan(static_cast<size_t>(slot) * share, share), nullptr);
    });
  } else {
    for (int64_t index = 0; index < g.batch; ++index) multiply_one(index, workspace, &pool);
  }
}

void check(const Gemm& g) {
  const bool wide = g.input == DType::f64;
  BONFIRE_CHECK(wide || g.input == DType::f32 || g.input == DType::bf16, "operands of type {}", name_of(g.input));
  BONFIRE_CHECK(wide ? g.output == DType::f64 : g.output == DType::f32 || g.output == DType::bf16,
                "a product of {} cannot be stored as {}", name_of(g.input), name_of(g.output));
  BONFIRE_CHECK(g.bias == BiasAlong::none ||
                    (wide ? g.bias_type == DType::f64 : g.bias_type == DType::f32 || g.bias_type == DType::bf16),
                "a bias of {} for a product of {}", name_of(g.bias_type), name_of(g.input));
}

}  // namespace

bool is_split(const Gemm& gemm) {
  const Gemm g = fold_batch(gemm);
  if (g.input != DType::f32 || is_vector_product<float>(g)) return false;
  return is_split(MatrixProduct<float>(g, nullptr, nullptr, nullptr, nullptr).product);
}

size_t gemm_workspace(const Gemm& gemm, int threads) {
  check(gemm);
  const Gemm g = fold_batch(gemm);
  const auto widened = static_cast<size_t>(bias_bytes(g));
  if (g.input == DType::f64) return product_bytes<double>(g, threads) + widened;
  if (g.input == DType::bf16) return product_bytes<bfloat16>(g, threads) + widened;
  return product_bytes<float>(g, threads) + widened;
}

void gemm(const Gemm& gemm, const void* a, const void* b, const void* bias, void* c, std::span<std::byte> workspace,
          ThreadPool& pool) {
  check(gemm);
  const Gemm g = fold_batch(gemm);
  if (g.input == DType::f64)
    run<double>(g, a, b, bias, c, workspace, pool);
  else if (g.input == DType::bf16)
    run<bfloat16>(g, a, b, bias, c, workspace, pool);
  else
    run<float>(g, a, b, bias, c, workspace, pool);
}

}  // namespace bonfire::cpu
