// The k largest of a row, by k rounds of choosing the largest that is left. Rows are few and k is small (accuracies).
#include "bonfire/backend/cuda/candidate.h"
#include "bonfire/backend/cuda/numbers.cuh"

namespace bonfire::cuda {

namespace {

constexpr int kThreads = 128;

// Whether (a, i) comes before (b, j): larger first, NaN first of all, then the smaller index. An index of -1 is
// nothing.
template <class C>
__device__ inline bool before(C a, int64_t i, C b, int64_t j) {
  if (i < 0 || j < 0) return i >= 0;
  bool a_nan = a != a, b_nan = b != b;
  if (a_nan != b_nan) return a_nan;
  if (!a_nan && a != b) return a > b;
  return i < j;
}

// A warp for each row of x [outer, extent, inner].
template <class T>
__global__ void __launch_bounds__(kThreads)
    top_k(const T* x, int64_t outer, int64_t extent, int64_t inner, int64_t k, T* values, int64_t* indices) {
  using C = Compute<T>;
  int64_t row = static_cast<int64_t>(blockIdx.x) * (kThreads / 32) + threadIdx.x / 32;
  if (row >= outer * inner) return;
  const T* from = x + row / inner * extent * inner + row % inner;
  int64_t to = row / inner * k * inner + row % inner;
  C last = 0;
  int64_t last_index = -1;  // what the round before chose
  for (int64_t round = 0; round < k; ++round) {
    C best = 0;
    int64_t best_index = -1;
    for (int64_t i = threadIdx.x % 32; i < extent; i += 32) {
      C value = load(from[i * inner]);
      bool left = last_index < 0 || before(last, last_index, value, i);
      if (left && before(value, i, best, best_index)) {
        best = value;
        best_index = i;
      }
    }
    for (int distance = 16; distance > 0; distance /= 2) {
      C other = __shfl_xor_sync(0xffffffffU, best, distance);
      int64_t other_index = __shfl_xor_sync(0xffffffffU, best_index, distance);
      if (before(other, other_index, best, best_index)) {
        best = other;
        best_index = other_index;
      }
    }
    if (threadIdx.x % 32 == 0) {
      values[to + round * inner] = store<T>(best);
      indices[to + round * inner] = best_index;
    }
    last = best;
    last_index = best_index;
  }
}

std::vector<Candidate> candidates(const KernelRequest& request) {
  const TensorSpec& x = request.node.inputs[0].spec();
  if (!has_kernels(x.dtype)) return {};
  auto axis = static_cast<int>(request.node.attributes.integer("axis"));
  int64_t k = request.node.attributes.integer("k"), outer = 1, inner = 1, extent = x.shape[axis];
  for (int i = 0; i < x.shape.rank(); ++i) {
    if (i < axis) outer *= x.shape[i];
    if (i > axis) inner *= x.shape[i];
  }
  return one_candidate(request, [=, dtype = x.dtype](const Run& run) {
    if (outer * inner * k == 0) return;
    dispatch_floating(dtype, [&](auto tag) {
      using T = typename decltype(tag)::type;
      top_k<T><<<blocks_for(outer * inner, kThreads / 32), kThreads, 0, stream_of(run)>>>(
          run.input<T>(0), outer, extent, inner, k, run.output<T>(0), run.output<int64_t>(1));
    });
    check(cudaGetLastError(), "top_k");
  });
}

const bool registered = register_kernel("top_k", DeviceType::cuda, candidates);

}  // namespace

}  // namespace bonfire::cuda
