// Matrix products that are over before a library has set itself up: a last layer, its gradients. A block computes 16
// rows by 8 columns; its warps share the depth, read operands straight from memory (they are in the cache) and multiply
// with mma.m16n8k16.
#include "bonfire/backend/cuda/activation.cuh"
#include "bonfire/backend/cuda/candidate.h"
#include "bonfire/backend/cuda/numbers.cuh"
#include "bonfire/backend/cuda/tensor_core.cuh"

namespace bonfire::cuda {

namespace {

using Element = __nv_bfloat16;

constexpr int kWarps = 4, kThreads = kWarps * 32;
constexpr int kRows = 16, kColumns = 8;  // of a block

// A row-major [rows, depth], or [depth, rows] when transposed; element (i, k) is data[i * row + k * step].
struct Operand {
  const Element* data;
  int row, step;
  int rows;  // elements beyond count as zero, in the depth as well

  template <bool kPairs>
  __device__ unsigned pair(int i, int k, int depth) const {
    if (i >= rows || k >= depth) return 0;
    const Element* at = data + static_cast<int64_t>(i) * row + static_cast<int64_t>(k) * step;
    if constexpr (kPairs) return *reinterpret_cast<const unsigned*>(at);
    return pack_pair(at[0], k + 1 < depth ? at[step] : Element{});
  }
};

struct Product {
  Operand a, b;  // b's "rows" are the columns of the result
  int depth;
  const void* bias;  // [columns], or null
  bool bias_low;     // bf16, else f32
  int activation;
};

// kPairsA, kPairsB: two neighbours in the depth lie side by side, at an address that is a multiple of 4.
template <bool kPairsA, bool kPairsB, bool kAny>
__global__ void __launch_bounds__(kThreads) multiply_small(Product p, Element* c) {
  __shared__ float parts[kWarps][4][32];
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32, group = lane / 4, thread = lane % 4;
  int first_row = static_cast<int>(blockIdx.y) * kRows, first_column = static_cast<int>(blockIdx.x) * kColumns;
  float sums[4] = {};
#pragma unroll 4
  for (int k = warp * 16; k < p.depth; k += kWarps * 16) {
    int near = k + thread * 2, far = near + 8, row = first_row + group;
    unsigned a[4] = {p.a.pair<kPairsA>(row, near, p.depth), p.a.pair<kPairsA>(row + 8, near, p.depth),
                     p.a.pair<kPairsA>(row, far, p.depth), p.a.pair<kPairsA>(row + 8, far, p.depth)};
    multiply_tile(sums, a, p.b.pair<kPairsB>(first_column + group, near, p.depth),
                  p.b.pair<kPairsB>(first_column + group, far, p.depth));
  }
  for (int i = 0; i < 4; ++i) parts[warp][i][lane] = sums[i];
  __syncthreads();
  // Warp w finishes number w of each lane.
  float sum = 0;
  for (int w = 0; w < kWarps; ++w) sum += parts[w][warp][lane];
  int row = first_row + group + warp / 2 * 8, column = first_column + thread * 2 + warp % 2;
  if (row >= p.a.rows || column >= p.b.rows) return;
  if (p.bias != nullptr)
    sum += p.bias_low ? load(static_cast<const Element*>(p.bias)[column]) : static_cast<const float*>(p.bias)[column];
  c[static_cast<int64_t>(row) * p.b.rows + column] = store<Element>(activate<kAny>(p.activation, sum));
}

static_assert(kWarps == 4, "a warp for each number of a lane");

void run_product(const Product& p, bool pairs_a, bool pairs_b, Element* c, cudaStream_t stream) {
  dim3 blocks(blocks_for(p.b.rows, kColumns), blocks_for(p.a.rows, kRows));
  auto go = [&](auto a, auto b, auto any) {
    multiply_small<a.value, b.value, any.value><<<blocks, kThreads, 0, stream>>>(p, c);
  };
  auto with_b = [&](auto a, auto any) { pairs_b ? go(a, std::true_type{}, any) : go(a, std::false_type{}, any); };
  auto with_a = [&](auto any) { pairs_a ? with_b(std::true_type{}, any) : with_b(std::false_type{}, any); };
  is_plain_activation(p.activation) ? with_a(std::false_type{}) : with_a(std::true_type{});
  check(cudaGetLastError(), "multiply_small");
}

std::vector<Candidate> candidates(const KernelRequest& request) {
  constexpr int64_t kMostWork = int64_t{1} << 22;  // multiplications
  const GraphNode& node = request.node;
  const TensorSpec &a = node.inputs[0].spec(), &b = node.inputs[1].spec(), &c = node.outputs[0];
  if (c.dtype != DType::bf16 || a.shape.rank() != 2 || b.shape.rank() != 2 || c.shape.count() == 0) return {};
  bool transpose_a = node.attributes.flag("transpose_a"), transpose_b = node.attributes.flag("transpose_b");
  auto rows = static_cast<int>(c.shape[0]), columns = static_cast<int>(c.shape[1]);
  auto depth = static_cast<int>(a.shape[transpose_a ? 0 : 1]);
  if (depth == 0 || c.shape.count() * depth > kMostWork) return {};
  bool fused = node.attributes.has("activation"), has_bias = fused && node.attributes.flag("has_bias");
  int activation = fused ? static_cast<int>(node.attributes.integer("activation")) : -1;
  bool low = has_bias && node.inputs[2].spec().dtype == DType::bf16;
  bool pairs_a = !transpose_a && depth % 2 == 0, pairs_b = transpose_b && depth % 2 == 0;
  Candidate candidate = make_candidate(request, "small", [=](const Run& run) {
    Product product{{run.input<Element>(0), transpose_a ? 1 : depth, transpose_a ? rows : 1, rows},
                    {run.input<Element>(1), transpose_b ? depth : 1, transpose_b ? 1 : columns, columns},
                    depth,
                    has_bias ? run.inputs[2] : nullptr,
                    low,
                    activation};
    run_product(product, pairs_a, pairs_b, run.output<Element>(0), stream_of(run));
  });
  return {std::move(candidate)};
}

const bool registered = register_kernel("matmul", DeviceType::cuda, candidates) &&
                        register_kernel("matmul_bias_act", DeviceType::cuda, candidates);

}  // namespace

}  // namespace bonfire::cuda
