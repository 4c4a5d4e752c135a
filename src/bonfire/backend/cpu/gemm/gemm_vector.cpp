#include "bonfire/backend/cpu/gemm/gemm_vector.h"

#include <algorithm>
#include <memory>

#include "bonfire/base/error.h"

namespace bonfire::cpu {

namespace {

constexpr int64_t kChunk = 64;           // rows whose results are finished together
constexpr int64_t kTaskNumbers = 65536;  // of the matrix, that a thread should read at least

template <class Acc>
void multiply_chunk(const VectorProduct<Acc>& p, const GemmKernel<Acc>& kernel, const Acc* x, int64_t first) {
  const int64_t count = std::min(kChunk, p.count - first);
  alignas(64) Acc sums[kMostVectors * kChunk], bias[kChunk] = {};
  int64_t row_offset[kMostVectors], col_offset[kChunk];
  for (int64_t v = 0; v < p.vectors; ++v) {
    kernel.dot(count, p.k, p.rows + first * p.row_stride, p.row_stride, x + v * p.k, sums + v * kChunk);
    row_offset[v] = v * p.out_stride;
  }
  for (int64_t i = 0; i < count; ++i) col_offset[i] = (first + i) * p.out_step;
  if (p.row_bias) std::copy_n(p.row_bias + first, count, bias);
  kernel.finish({.tile = sums,
                 .tile_stride = kChunk,
                 .rows = static_cast<int>(p.vectors),
                 .cols = static_cast<int>(count),
                 .out = p.out,
                 .out_bf16 = p.out_bf16,
                 .row_offset = row_offset,
                 .col_offset = col_offset,
                 .add = p.add,
                 .row_bias = p.x_bias,
                 .col_bias = p.row_bias ? bias : nullptr,
                 .residual = nullptr,
                 .activation = p.activation});
}

}  // namespace

template <class Acc>
size_t vector_workspace(const VectorProduct<Acc>& p) {
  return static_cast<size_t>(p.vectors * p.k) * sizeof(Acc) + alignof(Acc);
}

template <class Acc>
void multiply(const VectorProduct<Acc>& p, std::span<std::byte> workspace, ThreadPool* pool) {
  void* space = workspace.data();
  size_t bytes = workspace.size();
  auto* x =
      static_cast<Acc*>(std::align(alignof(Acc), static_cast<size_t>(p.vectors * p.k) * sizeof(Acc), space, bytes));
  BONFIRE_CHECK(x != nullptr || p.vectors * p.k == 0, "workspace of {} bytes for {} vectors of {}", workspace.size(),
                p.vectors, p.k);
  for (int64_t v = 0; v < p.vectors; ++v)
    for (int64_t k = 0; k < p.k; ++k) x[v * p.k + k] = p.x[v * p.x_stride + k * p.x_step];
  const GemmKernel<Acc>& kernel = gemm_kernel<Acc>();
  const int64_t chunks = (p.count + kChunk - 1) / kChunk;
  auto work = [&](int64_t begin, int64_t end) {
    for (int64_t chunk = begin; chunk < end; ++chunk) multiply_chunk(p, kernel, x, chunk * kChunk);
  };
  if (pool)
    pool->parallel_for(chunks, kTaskNumbers / (kChunk * std::max<int64_t>(p.k, 1)) + 1, work);
  else
    work(0, chunks);
}

template size_t vector_workspace(const VectorProduct<float>&);
template size_t vector_workspace(const VectorProduct<double>&);
template void multiply(const VectorProduct<float>&, std::span<std::byte>, ThreadPool*);
template void multiply(const VectorProduct<double>&, std::span<std::byte>, ThreadPool*);

}  // namespace bonfire::cpu
