// Batch normalisation. The formulas are in ops/batch_norm.h.
#include "bonfire/backend/cuda/activation.cuh"
#include "bonfire/backend/cuda/candidate.h"
#include "bonfire/backend/cuda/channels.cuh"
#include "bonfire/backend/cuda/counters.h"

namespace bonfire::cuda {

namespace {

// A weight or bias [C], of the statistics' type or of x's.
template <class T>
struct Parameter {
  const void* data;
  bool low;  // as x

  __device__ Compute<T> operator[](int channel) const {
    return low ? load(static_cast<const T*>(data)[channel]) : static_cast<const Compute<T>*>(data)[channel];
  }
};

template <class T>
struct StatisticsBody {
  using C = Compute<T>;
  static constexpr int kSums = 2;
  const T* x;
  C *mean, *variance;  // [C]
  C count;
  int64_t channel_stride;  // from a channel's first element to the next one's

  template <int width>
  struct Lane {
    C pivot[width];
  };
  // Deviations from the first element of the channel, so that a large mean does not swallow the variance.
  template <int width>
  __device__ Lane<width> lane(int channel, int step) const {
    Lane<width> lane;
    for (int k = 0; k < width; ++k) lane.pivot[k] = load(x[(channel + k * step) * channel_stride]);
    return lane;
  }
  template <int width>
  using Item = Pack<T, width>;
  template <int width>
  __device__ Item<width> read(int64_t offset) const {
    return load_pack<width>(x + offset);
  }
  template <int width>
  __device__ void add(const Lane<width>& lane, const Item<width>& pack, C (&sums)[kSums][width]) const {
#pragma unroll
    for (int k = 0; k < width; ++k) {
      C d = load(pack.item[k]) - lane.pivot[k];
      sums[0][k] += d;
      sums[1][k] += d * d;
    }
  }
  __device__ void finish(int channel, const C (&sums)[kSums]) const {
    C deviation = sums[0] / count, square = sums[1] / count - deviation * deviation;
    mean[channel] = load(x[channel * channel_stride]) + deviation;
    variance[channel] = square < 0 ? C(0) : square;
  }
};

// x̂ weight + bias as x scale + shift.
template <class T>
struct Affine {
  using C = Compute<T>;
  const C *mean, *variance;
  Parameter<T> weight, bias;
  C eps;

  __device__ C inverse_deviation(int channel) const { return static_cast<C>(::rsqrt(variance[channel] + eps)); }
};

template <class T, bool kAny, bool kResidual>
struct NormalizeBody {
  using C = Compute<T>;
  Affine<T> affine;
  const T *x, *residual;
  T* y;
  int activation;

  template <int width>
  struct Lane {
    C scale[width], shift[width];
  };
  template <int width>
  __device__ Lane<width> lane(int channel, int step) const {
    Lane<width> lane;
    for (int k = 0; k < width; ++k) {
      int c = channel + k * step;
      lane.scale[k] = affine.weight[c] * affine.inverse_deviation(c);
      lane.shift[k] = affine.bias[c] - affine.mean[c] * lane.scale[k];
    }
    return lane;
  }
  template <int width>
  struct Item {
    Pack<T, width> x, residual;
  };
  template <int width>
  __device__ Item<width> read(int64_t offset) const {
    Item<width> item;
    item.x = load_pack<width>(x + offset);
    if constexpr (kResidual) item.residual = load_pack<width>(residual + offset);
    return item;
  }
  template <int width>
  __device__ void write(const Lane<width>& lane, const Item<width>& item, int64_t offset) const {
    Pack<T, width> result;
#pragma unroll
    for (int k = 0; k < width; ++k) {
      C z = load(item.x.item[k]) * lane.scale[k] + lane.shift[k];
      if constexpr (kResidual) z += load(item.residual.item[k]);
      result.item[k] = store<T>(activate<kAny>(activation, z));
    }
    store_pack(y + offset, result);
  }
};

// Where the gradient before the activation comes from.
enum class Before { dy, input, output };

template <class T, int width>
struct GradientItem {
  Pack<T, width> dy, x, y;
};
template <int width, Before kBefore, class T>
__device__ inline GradientItem<T, width> read_gradient(const T* dy, const T* x, const T* y, int64_t offset) {
  GradientItem<T, width> item;
  item.dy = load_pack<width>(dy + offset);
  item.x = load_pack<width>(x + offset);
  if constexpr (kBefore == Before::output) item.y = load_pack<width>(y + offset);
  return item;
}

template <class T, bool kAny, Before kBefore>
struct GradientSumsBody {
  using C = Compute<T>;
  static constexpr int kSums = 2;
  Affine<T> affine;
  const T *dy, *x, *y;
  C *sum, *sum_xhat;  // [C]
  int activation;

  template <int width>
  struct Lane {
    C mean[width], scale[width], shift[width];
  };
  template <int width>
  __device__ Lane<width> lane(int channel, int step) const {
    Lane<width> lane;
    for (int k = 0; k < width; ++k) {
      int c = channel + k * step;
      lane.mean[k] = affine.mean[c];
      if constexpr (kBefore == Before::input) {
        lane.scale[k] = affine.weight[c] * affine.inverse_deviation(c);
        lane.shift[k] = affine.bias[c] - lane.mean[k] * lane.scale[k];
      }
    }
    return lane;
  }
  template <int width>
  __device__ GradientItem<T, width> read(int64_t offset) const {
    return read_gradient<width, kBefore>(dy, x, y, offset);
  }
  // Σ dz (x − mean); the deviation divides it at the end.
  template <int width>
  __device__ void add(const Lane<width>& lane, const GradientItem<T, width>& item, C (&sums)[kSums][width]) const {
#pragma unroll
    for (int k = 0; k < width; ++k) {
      C dz = load(item.dy.item[k]), v = load(item.x.item[k]);
      if constexpr (kBefore == Before::input)
        dz = gradient_from_input<kAny>(activation, dz, v * lane.scale[k] + lane.shift[k]);
      if constexpr (kBefore == Before::output) dz = gradient_from_output<kAny>(activation, dz, load(item.y.item[k]));
      sums[0][k] += dz;
      sums[1][k] += dz * (v - lane.mean[k]);
    }
  }
  __device__ void finish(int channel, const C (&sums)[kSums]) const {
    sum[channel] = sums[0];
    sum_xhat[channel] =
        sums[1] == 0 ? 0 : sums[1] * affine.inverse_deviation(channel);  // an empty batch has no deviation
  }
};

template <class T, bool kAny, Before kBefore>
struct GradientApplyBody {
  using C = Compute<T>;
  Affine<T> affine;
  const T *dy, *x, *y;
  const C *sum, *sum_xhat;  // [C]
  T *dx, *dresidual;
  C count;
  int activation;

  // dx = a dz + b x + c, with x̂ = (x − mean) / deviation taken apart.
  template <int width>
  struct Lane {
    C a[width], b[width], c[width], shift[width];  // a is also what scales x before the activation
  };
  template <int width>
  __device__ Lane<width> lane(int channel, int step) const {
    Lane<width> lane;
    for (int k = 0; k < width; ++k) {
      int c = channel + k * step;
      C inverse = affine.inverse_deviation(c), mean = affine.mean[c];
      lane.a[k] = affine.weight[c] * inverse;
      lane.b[k] = -lane.a[k] * inverse * sum_xhat[c] / count;
      lane.c[k] = -lane.a[k] * sum[c] / count - lane.b[k] * mean;
      if constexpr (kBefore == Before::input) lane.shift[k] = affine.bias[c] - mean * lane.a[k];
    }
    return lane;
  }
  template <int width>
  __device__ GradientItem<T, width> read(int64_t offset) const {
    return read_gradient<width, kBefore>(dy, x, y, offset);
  }
  template <int width>
  __device__ void write(const Lane<width>& lane, const GradientItem<T, width>& item, int64_t offset) const {
    Pack<T, width> result, before;
#pragma unroll
    for (int k = 0; k < width; ++k) {
      C dz = load(item.dy.item[k]), v = load(item.x.item[k]);
      if constexpr (kBefore == Before::input)
        dz = gradient_from_input<kAny>(activation, dz, v * lane.a[k] + lane.shift[k]);
      if constexpr (kBefore == Before::output) {
        dz = gradient_from_output<kAny>(activation, dz, load(item.y.item[k]));
        before.item[k] = store<T>(dz);
      }
      result.item[k] = store<T>(lane.a[k] * dz + lane.b[k] * v + lane.c[k]);
    }
    store_pack(dx + offset, result);
    if constexpr (kBefore == Before::output) store_pack(dresidual + offset, before);
  }
};

template <class T>
__global__ void update_running(const T* old_mean, const T* old_variance, const float* mean, const float* variance,
                               T* new_mean, T* new_variance, int channels, float momentum, float unbias) {
  int c = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (c >= channels) return;
  new_mean[c] = store<T>((1 - momentum) * load(old_mean[c]) + momentum * mean[c]);
  new_variance[c] = store<T>((1 - momentum) * load(old_variance[c]) + momentum * variance[c] * unbias);
}

// --- hosts ---------------------------------------------------------------------------------------------------------

struct Setup {
  ChannelShape shape;
  Layout layout;
  int64_t per_channel = 0;  // elements
  int64_t channel_stride = 1;
};

Setup set_up(const KernelRequest& request, size_t x_input) {
  const Shape& shape = request.node.inputs[x_input].spec().shape;
  Setup setup;
  bool last = shape.rank() == 4 && same_order(shape, request.arriving[x_input], channels_last());
  setup.layout = last ? request.arriving[x_input] : Layout{};
  int64_t pixels = 1;
  for (int i = 2; i < shape.rank(); ++i) pixels *= shape[i];
  setup.per_channel = shape[0] * pixels;
  setup.shape =
      last || pixels == 1 ? ChannelShape{shape[0] * pixels, shape[1], 1} : ChannelShape{shape[0], shape[1], pixels};
  setup.channel_stride = setup.shape.inner;
  return setup;
}

// Inputs and outputs of x's shape take its layout.
Candidate candidate_with(const KernelRequest& request, const Setup& setup, const Shape& shape) {
  Candidate candidate = row_major_candidate(request, "own");
  for (size_t i = 0; i < request.node.inputs.size(); ++i)
    if (request.node.inputs[i].spec().shape == shape)
      candidate.input_layouts[i] = unless_same(shape, setup.layout, request.arriving[i]);
  for (size_t i = 0; i < request.node.outputs.size(); ++i)
    if (request.node.outputs[i].shape == shape) candidate.output_layouts[i] = setup.layout;
  return candidate;
}

int width_of(DType dtype, const ChannelShape& shape) {
  return dispatch_floating(dtype, [&](auto tag) { return channel_width<typename decltype(tag)::type>(shape); });
}

// A candidate that sums: body(typed tag, run, plan, counters).
template <class Body>
std::vector<Candidate> sum_candidate(const KernelRequest& request, size_t x_input, Body body) {
  const TensorSpec& x = request.node.inputs[x_input].spec();
  if (!has_kernels(x.dtype)) return {};
  Setup setup = set_up(request, x_input);
  Candidate candidate = candidate_with(request, setup, x.shape);
  int device = request.node.device().index;
  ChannelPlan plan = plan_sum(setup.shape, width_of(x.dtype, setup.shape), traits_of(device).multiprocessors);
  candidate.workspace_bytes = plan.workspace_bytes(2);
  build_on_device(candidate, request, [=, dtype = x.dtype] {
    auto counters = std::make_shared<Counters>(device, static_cast<size_t>(std::max(plan.tiles, 1)));
    auto run = [=](const Run& r) {
      if (setup.shape.channels == 0) return;
      dispatch_floating(dtype, [&](auto tag) { body(tag, r, setup, plan, counters->get()); });
    };
    return std::make_unique<FunctionKernel<decltype(run)>>(run);
  });
  return {std::move(candidate)};
}

template <class Body>
std::vector<Candidate> map_candidate(const KernelRequest& request, size_t x_input,
                                     std::vector<std::pair<int, int>> in_place, Body body) {
  const TensorSpec& x = request.node.inputs[x_input].spec();
  if (!has_kernels(x.dtype)) return {};
  Setup setup = set_up(request, x_input);
  Candidate candidate = candidate_with(request, setup, x.shape);
  candidate.in_place = std::move(in_place);
  ChannelPlan plan =
      plan_map(setup.shape, width_of(x.dtype, setup.shape), traits_of(request.node.device().index).multiprocessors);
  candidate.build = [=, dtype = x.dtype] {
    auto run = [=](const Run& r) {
      if (setup.per_channel * setup.shape.channels == 0) return;
      dispatch_floating(dtype, [&](auto tag) { body(tag, r, setup, plan); });
    };
    return std::make_unique<FunctionKernel<decltype(run)>>(run);
  };
  return {std::move(candidate)};
}

template <class T>
Parameter<T> parameter(const Run& run, size_t input, bool low) {
  return {run.inputs[input], low};
}

// Whether inputs are of x's type, for those that may be.
bool as_x(const GraphNode& node, size_t input, size_t x_input) {
  return input < node.inputs.size() && node.inputs[input].spec().dtype == node.inputs[x_input].spec().dtype;
}

std::vector<Candidate> statistics(const KernelRequest& request) {
  return sum_candidate(request, 0,
                       [](auto tag, const Run& run, const Setup& setup, const ChannelPlan& plan, unsigned* counters) {
                         using T = typename decltype(tag)::type;
                         using C = Compute<T>;
                         StatisticsBody<T> body{run.input<T>(0), run.output<C>(0), run.output<C>(1),
                                                static_cast<C>(setup.per_channel), setup.channel_stride};
                         run_sum_channels<T>(body, setup.shape, plan, run.workspace, counters, stream_of(run));
                       });
}

std::vector<Candidate> normalize(const KernelRequest& request) {
  const GraphNode& node = request.node;
  bool residual = node.attributes.has("has_residual") && node.attributes.flag("has_residual");
  int activation = node.attributes.has("activation") ? static_cast<int>(node.attributes.integer("activation")) : -1;
  double eps = node.attributes.number("eps");
  bool low_weight = as_x(node, 3, 0), low_bias = as_x(node, 4, 0);
  std::vector<std::pair<int, int>> in_place{{0, 0}};
  if (residual) in_place.emplace_back(0, 5);
  return map_candidate(
      request, 0, std::move(in_place), [=](auto tag, const Run& run, const Setup& setup, const ChannelPlan& plan) {
        using T = typename decltype(tag)::type;
        using C = Compute<T>;
        Affine<T> affine{run.input<C>(1), run.input<C>(2), parameter<T>(run, 3, low_weight),
                         parameter<T>(run, 4, low_bias), static_cast<C>(eps)};
        auto go = [&](auto any, auto with) {
          NormalizeBody<T, any.value, with.value> body{affine, run.input<T>(0), with.value ? run.input<T>(5) : nullptr,
                                                       run.output<T>(0), activation};
          run_map_channels<T>(body, setup.shape, plan, stream_of(run));
        };
        bool any = !is_plain_activation(activation);
        if (any && residual) go(std::true_type{}, std::true_type{});
        if (any && !residual) go(std::true_type{}, std::false_type{});
        if (!any && residual) go(std::false_type{}, std::true_type{});
        if (!any && !residual) go(std::false_type{}, std::false_type{});
      });
}

// Calls go(any, before) with the compile-time form of a gradient. From the result, no gradient takes long.
template <class Go>
void choose_form(int activation, bool has_residual, Go&& go) {
  using std::integral_constant;
  if (has_residual) return go(std::true_type{}, integral_constant<Before, Before::output>{});
  if (activation < 0) return go(std::false_type{}, integral_constant<Before, Before::dy>{});
  if (!is_plain_activation(activation)) return go(std::true_type{}, integral_constant<Before, Before::input>{});
  go(std::false_type{}, integral_constant<Before, Before::input>{});
}

std::vector<Candidate> gradient_sums(const KernelRequest& request) {
  const GraphNode& node = request.node;
  bool fused = node.attributes.has("activation");
  bool residual = fused && node.attributes.flag("has_residual");
  int activation = fused ? static_cast<int>(node.attributes.integer("activation")) : -1;
  double eps = node.attributes.number("eps");
  bool low_weight = as_x(node, 4, 1), low_bias = as_x(node, 5, 1);
  return sum_candidate(
      request, 1, [=](auto tag, const Run& run, const Setup& setup, const ChannelPlan& plan, unsigned* counters) {
        using T = typename decltype(tag)::type;
        using C = Compute<T>;
        Affine<T> affine{run.input<C>(2), run.input<C>(3), {}, {}, static_cast<C>(eps)};
        if (fused) {
          affine.weight = parameter<T>(run, 4, low_weight);
          affine.bias = parameter<T>(run, 5, low_bias);
        }
        choose_form(activation, residual, [&](auto any, auto before) {
          GradientSumsBody<T, any.value, before.value> body{
              affine,           run.input<T>(0),  run.input<T>(1), residual ? run.input<T>(6) : nullptr,
              run.output<C>(0), run.output<C>(1), activation};
          run_sum_channels<T>(body, setup.shape, plan, run.workspace, counters, stream_of(run));
        });
      });
}

std::vector<Candidate> gradient_apply(const KernelRequest& request) {
  const GraphNode& node = request.node;
  bool fused = node.attributes.has("activation");
  bool residual = fused && node.attributes.flag("has_residual");
  int activation = fused ? static_cast<int>(node.attributes.integer("activation")) : -1;
  double eps = node.attributes.number("eps");
  int64_t count = node.attributes.integer("count");
  bool low_weight = as_x(node, 4, 1), low_bias = as_x(node, 5, 1);
  size_t sums = fused ? 6 : 5;  // where sum_dz and sum_dz_xhat are among the inputs
  std::vector<std::pair<int, int>> in_place{{0, 0}, {0, 1}};
  if (residual) in_place = {{0, 1}, {1, 0}, {0, 0}, {1, 8}, {0, 8}};
  return map_candidate(
      request, 1, std::move(in_place), [=](auto tag, const Run& run, const Setup& setup, const ChannelPlan& plan) {
        using T = typename decltype(tag)::type;
        using C = Compute<T>;
        Affine<T> affine{run.input<C>(2), run.input<C>(3), parameter<T>(run, 4, low_weight), {}, static_cast<C>(eps)};
        if (fused) affine.bias = parameter<T>(run, 5, low_bias);
        choose_form(activation, residual, [&](auto any, auto before) {
          GradientApplyBody<T, any.value, before.value> body{affine,
                                                             run.input<T>(0),
                                                             run.input<T>(1),
                                                             residual ? run.input<T>(sums + 2) : nullptr,
                                                             run.input<C>(sums),
                                                             run.input<C>(sums + 1),
                                                             run.output<T>(0),
                                                             residual ? run.output<T>(1) : nullptr,
                                                             static_cast<C>(count < 0 ? setup.per_channel : count),
                                                             activation};
          run_map_channels<T>(body, setup.shape, plan, stream_of(run));
        });
      });
}

std::vector<Candidate> running(const KernelRequest& request) {
  const GraphNode& node = request.node;
  DType type = node.outputs[0].dtype;
  if (!has_kernels(type) || node.inputs[2].spec().dtype != DType::f32) return {};
  int64_t count = node.attributes.integer("count");
  auto share = static_cast<float>(count == 0 ? 0 : node.attributes.number("momentum"));
  auto unbias = static_cast<float>(count > 1 ? static_cast<double>(count) / static_cast<double>(count - 1) : 1);
  std::vector<Candidate> list =
      one_candidate(request, [=, channels = static_cast<int>(node.outputs[0].shape.count())](const Run& run) {
        constexpr int kThreads = 128;
        if (channels == 0) return;
        dispatch_floating(type, [&](auto tag) {
          using T = typename decltype(tag)::type;
          update_running<T><<<blocks_for(channels, kThreads), kThreads, 0, stream_of(run)>>>(
              run.input<T>(0), run.input<T>(1), run.input<float>(2), run.input<float>(3), run.output<T>(0),
              run.output<T>(1), channels, share, unbias);
        });
        check(cudaGetLastError(), "update_running");
      });
  list[0].in_place = {{0, 0}, {1, 1}};
  return list;
}

const bool registered = register_kernel("batch_norm_statistics", DeviceType::cuda, statistics) &&
                        register_kernel("batch_norm_normalize", DeviceType::cuda, normalize) &&
                        register_kernel("batch_norm_act", DeviceType::cuda, normalize) &&
                        register_kernel("batch_norm_gradient_sums", DeviceType::cuda, gradient_sums) &&
                        register_kernel("batch_norm_act_gradient_sums", DeviceType::cuda, gradient_sums) &&
                        register_kernel("batch_norm_gradient_apply", DeviceType::cuda, gradient_apply) &&
                        register_kernel("batch_norm_act_gradient_apply", DeviceType::cuda, gradient_apply) &&
                        register_kernel("batch_norm_update_running", DeviceType::cuda, running);

}  // namespace

}  // namespace bonfire::cuda
