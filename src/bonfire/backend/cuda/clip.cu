// Gradient clipping: one sweep over all gradients of a node, which may be of several types. Squares are summed per
// block in f64, then in the order of the blocks. As three ops: the squares, what is done with them, and both.
#include <memory>
#include <vector>

#include "bonfire/backend/cuda/candidate.h"
#include "bonfire/backend/cuda/numbers.cuh"
#include "bonfire/backend/cuda/sum_block.cuh"
#include "bonfire/backend/cuda/tensor_pieces.cuh"

namespace bonfire::cuda {

namespace {

constexpr int kThreads = 256;

enum class Work { squares, by_squares, both };

struct Gradients {
  const void* from[kTensorsOfAKernel];
  void* to[kTensorsOfAKernel];  // null: nothing is written
  bool is_bf16[kTensorsOfAKernel];
};

template <class T>
__device__ inline double squares_of(const void* gradient, const TensorPieces::Piece& piece) {
  const T* from = static_cast<const T*>(gradient);
  double sum = 0;
  for (int64_t e = piece.begin + threadIdx.x; e < piece.end; e += kThreads) {
    const auto value = static_cast<double>(load(from[e]));
    sum += value * value;
  }
  return sum;
}

__global__ void __launch_bounds__(kThreads)
    measure(const __grid_constant__ TensorPieces pieces, const __grid_constant__ Gradients g, double* sums) {
  const TensorPieces::Piece piece = pieces.piece(static_cast<int>(blockIdx.x));
  const void* from = g.from[piece.tensor];
  double sum = g.is_bf16[piece.tensor] ? squares_of<__nv_bfloat16>(from, piece) : squares_of<float>(from, piece);
  sum = sum_block<kThreads>(sum);
  if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

// By one block.
__global__ void __launch_bounds__(kThreads) add_up(const double* sums, int64_t count, double* squares) {
  double sum = 0;
  for (int64_t i = threadIdx.x; i < count; i += kThreads) sum += sums[i];
  sum = sum_block<kThreads>(sum);
  if (threadIdx.x == 0) *squares = sum;
}

// Outputs are mostly the inputs' own memory: a thread reads its elements before it writes them.
template <class T>
__device__ inline void scale(const void* gradient, void* result, const TensorPieces::Piece& piece, float factor) {
  constexpr int kWidth = 4;
  const T* from = static_cast<const T*>(gradient);
  T* to = static_cast<T*>(result);
  for (int64_t e = piece.begin + static_cast<int64_t>(threadIdx.x) * kWidth; e < piece.end; e += kThreads * kWidth) {
    if (piece.end - e < kWidth) {
      for (; e < piece.end; ++e) to[e] = store<T>(load(from[e]) * factor);
      return;
    }
    Pack<T, kWidth> pack = load_pack<kWidth>(from + e);
#pragma unroll
    for (int k = 0; k < kWidth; ++k) pack.item[k] = store<T>(load(pack.item[k]) * factor);
    store_pack(to + e, pack);
  }
}

// `norm` is null but for the first part of a node, whose first block writes it; that block is there even where all
// gradients are empty.
__global__ void __launch_bounds__(kThreads)
    clip(const __grid_constant__ TensorPieces pieces, const __grid_constant__ Gradients g, const double* max_norm,
         const double* squares, float* norm) {
  __shared__ double shared_factor;
  if (threadIdx.x == 0) {
    const double own = ::sqrt(*squares), wanted = *max_norm / (own + 1e-6);
    shared_factor = wanted > 1 ? 1 : wanted;  // NaN stays
    if (norm != nullptr && blockIdx.x == 0) *norm = static_cast<float>(own);
  }
  __syncthreads();
  const double factor = shared_factor;
  if (static_cast<int>(blockIdx.x) >= pieces.blocks) return;
  const TensorPieces::Piece piece = pieces.piece(static_cast<int>(blockIdx.x));
  const void* from = g.from[piece.tensor];
  void* to = g.to[piece.tensor];
  if (factor == 1 && from == to) return;
  if (g.is_bf16[piece.tensor])
    scale<__nv_bfloat16>(from, to, piece, static_cast<float>(factor));
  else
    scale<float>(from, to, piece, static_cast<float>(factor));
}

// --- hosts ---------------------------------------------------------------------------------------------------------

template <Work work>
class Clip {
 public:
  // Of the inputs; max_norm is input 0, and the squares, where they are given, input 1.
  static constexpr size_t kFirst = work == Work::squares ? 0 : work == Work::both ? 1 : 2;

  explicit Clip(const GraphNode& node) {
    std::vector<int64_t> counts;
    for (const GraphValue& gradient : std::span(node.inputs).subspan(kFirst)) {
      counts.push_back(gradient.spec().shape.count());
      is_bf16_.push_back(gradient.spec().dtype == DType::bf16);
    }
    parts_ = parts_of<TensorPieces>(counts);
    for (const Part& part : parts_) blocks_ += static_cast<size_t>(part.cut.blocks);
  }

  // A sum per block, and their sum where it is not the result.
  size_t workspace_bytes() const { return work == Work::by_squares ? 0 : (blocks_ + 1) * sizeof(double); }

  void operator()(const Run& run) const {
    const double* squares = nullptr;
    if constexpr (work == Work::by_squares) squares = run.input<double>(1);
    if constexpr (work == Work::squares) sum_squares(run, run.output<double>(0));
    if constexpr (work == Work::both) {
      double* own = static_cast<double*>(run.workspace) + blocks_;
      sum_squares(run, own);
      squares = own;
    }
    if constexpr (work != Work::squares) scale_all(run, squares);
    check(cudaGetLastError(), "clip_gradients");
  }

 private:
  using Part = TensorPart<TensorPieces>;

  Gradients gradients(const Part& part, const Run& run) const {
    Gradients g{};
    for (int i = 0; i < part.cut.tensors; ++i) {
      const size_t gradient = part.first + static_cast<size_t>(i);
      g.from[i] = run.input<std::byte>(kFirst + gradient);
      if constexpr (work != Work::squares) g.to[i] = run.output<std::byte>(1 + gradient);
      g.is_bf16[i] = is_bf16_[gradient];
    }
    return g;
  }

  void sum_squares(const Run& run, double* squares) const {
    double* const sums = static_cast<double*>(run.workspace);
    double* next = sums;
    for (const Part& part : parts_) {
      if (part.cut.blocks == 0) continue;
      measure<<<static_cast<unsigned>(part.cut.blocks), kThreads, 0, stream_of(run)>>>(part.cut, gradients(part, run),
                                                                                       next);
      next += part.cut.blocks;
    }
    add_up<<<1, kThreads, 0, stream_of(run)>>>(sums, static_cast<int64_t>(blocks_), squares);
  }

  void scale_all(const Run& run, const double* squares) const {
    float* norm = run.output<float>(0);
    for (const Part& part : parts_) {
      const int blocks = part.cut.blocks == 0 && norm != nullptr ? 1 : part.cut.blocks;
      if (blocks == 0) continue;
      clip<<<static_cast<unsigned>(blocks), kThreads, 0, stream_of(run)>>>(part.cut, gradients(part, run),
                                                                           run.input<double>(0), squares, norm);
      norm = nullptr;
    }
  }

  std::vector<Part> parts_;
  std::vector<bool> is_bf16_;  // of the gradients
  size_t blocks_ = 0;
};

// A gradient is taken as it lies: the order of elements does not matter.
template <Work work>
std::vector<Candidate> clip_candidates(const KernelRequest& request) {
  constexpr size_t kFirst = Clip<work>::kFirst;
  const std::vector<GraphValue>& inputs = request.node.inputs;
  for (size_t i = kFirst; i < inputs.size(); ++i)
    if (!has_kernels(inputs[i].spec().dtype)) return {};
  auto sweep = std::make_shared<Clip<work>>(request.node);
  Candidate candidate = row_major_candidate(request, "sweep");
  candidate.workspace_bytes = sweep->workspace_bytes();
  for (size_t i = kFirst; i < inputs.size(); ++i) {
    if (request.arriving[i].block == 0) candidate.input_layouts[i] = request.arriving[i];
    if (work == Work::squares) continue;
    const size_t output = 1 + i - kFirst;
    candidate.output_layouts[output] = candidate.input_layouts[i];
    candidate.in_place.emplace_back(static_cast<int>(output), static_cast<int>(i));
  }
  candidate.build = [sweep] {
    auto run = [sweep](const Run& r) { (*sweep)(r); };
    return std::make_unique<FunctionKernel<decltype(run)>>(run);
  };
  return {std::move(candidate)};
}

const bool registered =
    register_kernel("gradient_squares", DeviceType::cuda, clip_candidates<Work::squares>) &&
    register_kernel("clip_gradients", DeviceType::cuda, clip_candidates<Work::both>) &&
    register_kernel("clip_gradients_by_squares", DeviceType::cuda, clip_candidates<Work::by_squares>);

}  // namespace

}  // namespace bonfire::cuda
