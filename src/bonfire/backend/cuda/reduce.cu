// Reductions over any axes. Two forms: sums over the rows of a matrix whose columns are kept (the gradient of a bias,
// in channels-last images), and the general one, a block of threads for each result.
#include <limits>

#include "bonfire/backend/cuda/candidate.h"
#include "bonfire/backend/cuda/channels.cuh"
#include "bonfire/backend/cuda/counters.h"

namespace bonfire::cuda {

namespace {

enum class Kind { sum, mean, max, min, argmax, argmin };

constexpr int kThreads = 256;

// Kept axes in the order of the result, reduced ones in row-major order (so that the first of equal extrema is first).
struct Axes {
  int kept, reduced;
  int64_t kept_extent[Shape::kMaxRank], kept_stride[Shape::kMaxRank];
  int64_t reduced_extent[Shape::kMaxRank], reduced_stride[Shape::kMaxRank];
  int64_t results, terms;
};

template <class T>
struct ReduceTypes {  // storage of the input
  using C = Compute<T>;
};
template <>
struct ReduceTypes<int64_t> {
  using C = int64_t;
};
template <>
struct ReduceTypes<int32_t> {
  using C = int64_t;
};
template <>
struct ReduceTypes<uint8_t> {
  using C = int64_t;
};

template <class T>
__device__ inline typename ReduceTypes<T>::C read(T x) {
  if constexpr (std::is_integral_v<T>) {
    return static_cast<int64_t>(x);
  } else {
    return load(x);
  }
}

template <class C>
struct Running {
  C value;
  int64_t index;
};

// NaN beats everything, the smaller index beats its equals.
template <class C>
__device__ inline bool beats(const Running<C>& a, const Running<C>& b, bool largest) {
  if (b.index < 0) return a.index >= 0;
  if (a.index < 0) return false;
  bool a_nan = a.value != a.value, b_nan = b.value != b.value;
  if (a_nan || b_nan) return a_nan && (!b_nan || a.index < b.index);
  if (a.value == b.value) return a.index < b.index;
  return largest ? a.value > b.value : a.value < b.value;
}

template <class C>
__device__ inline Running<C> combine(const Running<C>& a, const Running<C>& b, Kind kind) {
  if (kind == Kind::sum || kind == Kind::mean) return {a.value + b.value, 0};
  return beats(b, a, kind == Kind::max || kind == Kind::argmax) ? b : a;
}

template <class C>
__device__ inline Running<C> combine_warp(Running<C> own, Kind kind) {
  for (int distance = 16; distance > 0; distance /= 2) {
    Running<C> other{__shfl_xor_sync(0xffffffffU, own.value, distance),
                     __shfl_xor_sync(0xffffffffU, own.index, distance)};
    // The lower lane's goes first, so that both lanes get the same bits.
    own = (threadIdx.x & distance) == 0 ? combine(own, other, kind) : combine(other, own, kind);
  }
  return own;
}

// `group` threads (32 or 256) for each result.
template <class T, class Out>
__global__ void __launch_bounds__(kThreads) reduce(Axes axes, Kind kind, int group, const T* x, Out* y) {
  using C = typename ReduceTypes<T>::C;
  __shared__ Running<C> shared[kThreads / 32];
  int64_t result = static_cast<int64_t>(blockIdx.x) * (kThreads / group) + threadIdx.x / group;
  bool present = result < axes.results;
  bool adds = kind == Kind::sum || kind == Kind::mean;
  Running<C> own{C(0), adds ? 0 : -1};
  if (present) {
    const T* from = x;
    int64_t rest = result;
    for (int axis = axes.kept - 1; axis >= 0; --axis) {
      from += rest % axes.kept_extent[axis] * axes.kept_stride[axis];
      rest /= axes.kept_extent[axis];
    }
    for (int64_t term = threadIdx.x % group; term < axes.terms; term += group) {
      int64_t offset = 0, left = term;
      for (int axis = axes.reduced - 1; axis > 0; --axis) {
        offset += left % axes.reduced_extent[axis] * axes.reduced_stride[axis];
        left /= axes.reduced_extent[axis];
      }
      if (axes.reduced > 0) offset += left * axes.reduced_stride[0];
      own = combine(own, Running<C>{read(from[offset]), adds ? 0 : term}, kind);
    }
  }
  own = combine_warp(own, kind);
  if (group == kThreads) {
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = own;
    __syncthreads();
    own = shared[0];
    for (int i = 1; i < kThreads / 32; ++i) own = combine(own, shared[i], kind);
  }
  if (!present || threadIdx.x % group != 0) return;
  if (kind == Kind::mean) own.value = own.value / static_cast<C>(axes.terms);
  if constexpr (std::is_integral_v<Out>) {
    y[result] = kind == Kind::argmax || kind == Kind::argmin ? own.index : static_cast<Out>(own.value);
  } else {
    y[result] = store<Out>(static_cast<Compute<Out>>(own.value));
  }
}

template <class T>
struct ColumnSumBody {
  using C = Compute<T>;
  static constexpr int kSums = 1;
  const T* x;
  T* y;
  C divisor;

  template <int width>
  struct Lane {};
  template <int width>
  __device__ Lane<width> lane(int, int) const {
    return {};
  }
  template <int width>
  __device__ Pack<T, width> read(int64_t offset) const {
    return load_pack<width>(x + offset);
  }
  template <int width>
  __device__ void add(const Lane<width>&, const Pack<T, width>& pack, C (&sums)[kSums][width]) const {
#pragma unroll
    for (int k = 0; k < width; ++k) sums[0][k] += load(pack.item[k]);
  }
  __device__ void finish(int channel, const C (&sums)[kSums]) const { y[channel] = store<T>(sums[0] / divisor); }
};

// --- hosts ---------------------------------------------------------------------------------------------------------

Axes axes_of(const Shape& shape, const Shape& strides, const Shape& reduced) {
  Axes axes{};
  axes.results = axes.terms = 1;
  for (int i = 0; i < shape.rank(); ++i) {
    bool gone = std::find(reduced.begin(), reduced.end(), i) != reduced.end();
    int& count = gone ? axes.reduced : axes.kept;
    int64_t* extents = gone ? axes.reduced_extent : axes.kept_extent;
    int64_t* steps = gone ? axes.reduced_stride : axes.kept_stride;
    (gone ? axes.terms : axes.results) *= shape[i];
    if (shape[i] == 1) continue;
    if (count > 0 && steps[count - 1] == strides[i] * shape[i]) {
      extents[count - 1] *= shape[i];
      steps[count - 1] = strides[i];
    } else {
      extents[count] = shape[i];
      steps[count++] = strides[i];
    }
  }
  return axes;
}

template <class Body>
void dispatch_input(DType dtype, Body&& body) {
  switch (dtype) {
    case DType::i64: return body(TypeTag<int64_t>{});
    case DType::i32: return body(TypeTag<int32_t>{});
    case DType::u8:
    case DType::boolean: return body(TypeTag<uint8_t>{});
    default: return dispatch_floating(dtype, body);
  }
}

void run_general(const Axes& axes, Kind kind, DType dtype, const Run& run) {
  constexpr int64_t kLong = 512;  // terms from which a whole block works on one result
  int group = axes.terms >= kLong ? kThreads : 32;
  unsigned blocks = blocks_for(axes.results, kThreads / group);
  dispatch_input(dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    auto go = [&](auto out) {
      using Out = typename decltype(out)::type;
      reduce<T, Out><<<blocks, kThreads, 0, stream_of(run)>>>(axes, kind, group, run.input<T>(0), run.output<Out>(0));
    };
    bool index = kind == Kind::argmax || kind == Kind::argmin;
    if constexpr (std::is_integral_v<T>) {
      kind == Kind::sum || index ? go(TypeTag<int64_t>{}) : go(TypeTag<T>{});
    } else {
      index ? go(TypeTag<int64_t>{}) : go(TypeTag<T>{});
    }
  });
  check(cudaGetLastError(), "reduce");
}

// Rows of a matrix with contiguous columns, which are kept: [terms, results].
bool is_column_sum(const Axes& axes, Kind kind, DType dtype) {
  return (kind == Kind::sum || kind == Kind::mean) && is_floating(dtype) && axes.results > 0 && axes.kept == 1 &&
         axes.reduced == 1 && axes.kept_stride[0] == 1 && axes.reduced_stride[0] == axes.kept_extent[0];
}

template <Kind kind>
std::vector<Candidate> candidates(const KernelRequest& request) {
  const TensorSpec& x = request.node.inputs[0].spec();
  if (is_floating(x.dtype) && !has_kernels(x.dtype)) return {};
  Layout layout = request.arriving[0].block == 0 ? request.arriving[0] : Layout{};
  Axes axes = axes_of(x.shape, strides_of(x.shape, layout), request.node.attributes.ints("axes"));
  Candidate candidate = row_major_candidate(request, "own");
  candidate.input_layouts[0] = layout;
  if (!is_column_sum(axes, kind, x.dtype)) {
    auto run = [=, dtype = x.dtype](const Run& r) {
      if (axes.results > 0) run_general(axes, kind, dtype, r);
    };
    candidate.build = [run] { return std::make_unique<FunctionKernel<decltype(run)>>(run); };
    return {std::move(candidate)};
  }
  candidate.name = "columns";
  ChannelShape shape{axes.terms, axes.results, 1};
  int device = request.node.device().index;
  int width = dispatch_floating(x.dtype, [&](auto tag) { return channel_width<typename decltype(tag)::type>(shape); });
  ChannelPlan plan = plan_sum(shape, width, traits_of(device).multiprocessors);
  candidate.workspace_bytes = plan.workspace_bytes(1);
  build_on_device(candidate, request, [=, dtype = x.dtype] {
    auto counters = std::make_shared<Counters>(device, static_cast<size_t>(plan.tiles));
    auto run = [=](const Run& r) {
      dispatch_floating(dtype, [&](auto tag) {
        using T = typename decltype(tag)::type;
        auto divisor = static_cast<Compute<T>>(kind == Kind::mean ? shape.outer : 1);
        ColumnSumBody<T> body{r.input<T>(0), r.output<T>(0), divisor};
        run_sum_channels<T>(body, shape, plan, r.workspace, counters->get(), stream_of(r));
      });
    };
    return std::make_unique<FunctionKernel<decltype(run)>>(run);
  });
  return {std::move(candidate)};
}

const bool registered = register_kernel("sum", DeviceType::cuda, candidates<Kind::sum>) &&
                        register_kernel("mean", DeviceType::cuda, candidates<Kind::mean>) &&
                        register_kernel("max", DeviceType::cuda, candidates<Kind::max>) &&
                        register_kernel("min", DeviceType::cuda, candidates<Kind::min>) &&
                        register_kernel("argmax", DeviceType::cuda, candidates<Kind::argmax>) &&
                        register_kernel("argmin", DeviceType::cuda, candidates<Kind::argmin>);

}  // namespace

}  // namespace bonfire::cuda
