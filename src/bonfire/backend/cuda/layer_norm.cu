// Layer normalisation of x [rows, columns]: a block for each row. The formulas are in ops/layer_norm.cpp.
#include "bonfire/backend/cuda/candidate.h"
#include "bonfire/backend/cuda/channels.cuh"
#include "bonfire/backend/cuda/counters.h"
#include "bonfire/backend/cuda/sum_block.cuh"

namespace bonfire::cuda {

namespace {

constexpr int kThreads = 128;

template <class T, class W>
__global__ void __launch_bounds__(kThreads) forward(int64_t columns, float eps, const T* x, const W* weight,
                                                    const W* bias, T* y, float* mean, float* reciprocal) {
  const T* from = x + blockIdx.x * columns;
  T* to = y + blockIdx.x * columns;
  float sum = 0, squares = 0;
  for (int64_t i = threadIdx.x; i < columns; i += kThreads) sum += load(from[i]);
  float m = sum_block<kThreads>(sum) / static_cast<float>(columns);
  for (int64_t i = threadIdx.x; i < columns; i += kThreads) squares += (load(from[i]) - m) * (load(from[i]) - m);
  float scale = rsqrtf(sum_block<kThreads>(squares) / static_cast<float>(columns) + eps);
  for (int64_t i = threadIdx.x; i < columns; i += kThreads) {
    float value = (load(from[i]) - m) * scale;
    if (weight != nullptr) value *= load(weight[i]);
    if (bias != nullptr) value += load(bias[i]);
    to[i] = store<T>(value);
  }
  if (threadIdx.x != 0) return;
  mean[blockIdx.x] = m;
  reciprocal[blockIdx.x] = scale;
}

template <class T, class W>
__global__ void __launch_bounds__(kThreads) backward(int64_t columns, const T* dy, const T* x, const float* mean,
                                                     const float* reciprocal, const W* weight, T* dx) {
  int64_t row = blockIdx.x;
  const T *gradient = dy + row * columns, *from = x + row * columns;
  float m = mean[row], scale = reciprocal[row], sum = 0, product = 0;
  // Rounded before it is summed: fused into a subtraction it would not cancel the mean of a row of one.
  auto g = [&](int64_t i) {
    return weight == nullptr ? load(gradient[i]) : __fmul_rn(load(gradient[i]), load(weight[i]));
  };
  for (int64_t i = threadIdx.x; i < columns; i += kThreads) {
    sum += g(i);
    product += g(i) * (load(from[i]) - m) * scale;
  }
  sum = sum_block<kThreads>(sum) / static_cast<float>(columns);
  product = sum_block<kThreads>(product) / static_cast<float>(columns);
  for (int64_t i = threadIdx.x; i < columns; i += kThreads) {
    float normal = (load(from[i]) - m) * scale;
    dx[row * columns + i] = store<T>((g(i) - sum - normal * product) * scale);
  }
}

// dweight = Σ dy n and dbias = Σ dy, over rows.
template <class T, class W>
struct ParameterBody {
  using C = float;
  static constexpr int kSums = 2;
  int64_t columns;
  const T *dy, *x;
  const float *mean, *reciprocal;  // [rows]
  W *dweight, *dbias;              // [columns]

  template <int width>
  struct Lane {};
  template <int width>
  __device__ Lane<width> lane(int, int) const {
    return {};
  }
  template <int width>
  struct Item {
    Pack<T, width> dy, x;
    float mean, reciprocal;
  };
  template <int width>
  __device__ Item<width> read(int64_t offset) const {
    int64_t row = offset / columns;
    return {load_pack<width>(dy + offset), load_pack<width>(x + offset), mean[row], reciprocal[row]};
  }
  template <int width>
  __device__ void add(const Lane<width>&, const Item<width>& item, float (&sums)[kSums][width]) const {
#pragma unroll
    for (int k = 0; k < width; ++k) {
      float gradient = load(item.dy.item[k]);
      sums[0][k] += gradient * (load(item.x.item[k]) - item.mean) * item.reciprocal;
      sums[1][k] += gradient;
    }
  }
  __device__ void finish(int channel, const float (&sums)[kSums]) const {
    dweight[channel] = store<W>(sums[0]);
    dbias[channel] = store<W>(sums[1]);
  }
};

// --- hosts ---------------------------------------------------------------------------------------------------------

struct Extents {
  int64_t rows = 1, columns = 1;
};

Extents extents_of(const Shape& x, const Attributes& attributes) {
  Extents extents;
  int64_t leading = x.rank() - attributes.integer("rank");
  for (int i = 0; i < x.rank(); ++i) (i < leading ? extents.rows : extents.columns) *= x[i];
  return extents;
}

// Calls body(x's tag, weight's tag).
template <class Body>
void dispatch_both(DType x, DType weight, Body&& body) {
  dispatch_floating(x, [&](auto tag) { dispatch_floating(weight, [&](auto other) { body(tag, other); }); });
}

std::vector<Candidate> forward_candidates(const KernelRequest& request) {
  const TensorSpec& x = request.node.inputs[0].spec();
  size_t inputs = request.node.inputs.size();
  DType weight = inputs > 1 ? request.node.inputs[1].spec().dtype : x.dtype;
  if (!has_kernels(x.dtype) || !has_kernels(weight)) return {};
  Extents extents = extents_of(x.shape, request.node.attributes);
  auto eps = static_cast<float>(request.node.attributes.number("eps"));
  std::vector<Candidate> list = one_candidate(request, [=, dtype = x.dtype](const Run& run) {
    if (extents.rows * extents.columns == 0) return;
    dispatch_both(dtype, weight, [&](auto tag, auto other) {
      using T = typename decltype(tag)::type;
      using W = typename decltype(other)::type;
      forward<T, W><<<static_cast<unsigned>(extents.rows), kThreads, 0, stream_of(run)>>>(
          extents.columns, eps, run.input<T>(0), inputs > 1 ? run.input<W>(1) : nullptr,
          inputs > 2 ? run.input<W>(2) : nullptr, run.output<T>(0), run.output<float>(1), run.output<float>(2));
    });
    check(cudaGetLastError(), "layer_norm");
  });
  return list;
}

std::vector<Candidate> backward_candidates(const KernelRequest& request) {
  const TensorSpec& x = request.node.inputs[1].spec();
  bool weighted = request.node.inputs.size() > 4;
  DType weight = weighted ? request.node.inputs[4].spec().dtype : x.dtype;
  if (!has_kernels(x.dtype) || !has_kernels(weight)) return {};
  Extents extents = extents_of(x.shape, request.node.attributes);
  ChannelShape shape{extents.rows, extents.columns, 1};
  int device = request.node.device().index;
  int width = dispatch_floating(x.dtype, [&](auto tag) { return channel_width<typename decltype(tag)::type>(shape); });
  ChannelPlan plan = plan_sum(shape, width, traits_of(device).multiprocessors);
  Candidate candidate = row_major_candidate(request, "own");
  candidate.workspace_bytes = weighted ? plan.workspace_bytes(2) : 0;
  build_on_device(candidate, request, [=, dtype = x.dtype] {
    auto counters = std::make_shared<Counters>(device, static_cast<size_t>(plan.tiles));
    auto body = [=, bytes = static_cast<size_t>(extents.columns) * size_of(weight)](const Run& run) {
      if (extents.rows == 0 && weighted && bytes > 0)  // sums over nothing
        for (size_t i : {1, 2}) check(cudaMemsetAsync(run.outputs[i], 0, bytes, stream_of(run)), "cudaMemsetAsync");
      if (extents.rows * extents.columns == 0) return;
      dispatch_both(dtype, weight, [&](auto tag, auto other) {
        using T = typename decltype(tag)::type;
        using W = typename decltype(other)::type;
        backward<T, W><<<static_cast<unsigned>(extents.rows), kThreads, 0, stream_of(run)>>>(
            extents.columns, run.input<T>(0), run.input<T>(1), run.input<float>(2), run.input<float>(3),
            weighted ? run.input<W>(4) : nullptr, run.output<T>(0));
        if (!weighted) return;
        ParameterBody<T, W> sums{extents.columns,     run.input<T>(0),  run.input<T>(1), run.input<float>(2),
                                 run.input<float>(3), run.output<W>(1), run.output<W>(2)};
        run_sum_channels<T>(sums, shape, plan, run.workspace, counters->get(), stream_of(run));
      });
      check(cudaGetLastError(), "layer_norm_gradient");
    };
    return std::make_unique<FunctionKernel<decltype(body)>>(body);
  });
  return {std::move(candidate)};
}

const bool registered = register_kernel("layer_norm", DeviceType::cuda, forward_candidates) &&
                        register_kernel("layer_norm_gradient", DeviceType::cuda, backward_candidates);

}  // namespace

}  // namespace bonfire::cuda
