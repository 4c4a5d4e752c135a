// conv2d, its gradients and conv2d_bias_act: over the implicit products of convolution_core.h, for row-major and for
// channels-last images, and over winograd.h and direct.h where they serve.

#include <algorithm>

#include "bonfire/backend/cpu/convolution/convolution_core.h"
#include "bonfire/backend/cpu/convolution/direct.h"
#include "bonfire/backend/cpu/convolution/winograd.h"
#include "bonfire/backend/cpu/device/threads.h"
#include "bonfire/backend/cpu/ops/fused_activation.h"
#include "bonfire/backend/cpu/simd/floating.h"
#include "bonfire/kernel/kernel.h"

namespace bonfire::cpu {

namespace {

// Shapes and attributes of the convolution of a node: x [N, C, H, W], weight [O, C / groups, KH, KW].
Convolution describe(const Attributes& a, const Shape& x, const Shape& weight, DType dtype, bool channels_last) {
  Shape stride = a.ints("stride"), padding = a.ints("padding"), dilation = a.ints("dilation");
  return {.batch = x[0],
          .in_channels = x[1],
          .in_height = x[2],
          .in_width = x[3],
          .out_channels = weight[0],
          .kernel_height = weight[2],
          .kernel_width = weight[3],
          .stride_height = stride[0],
          .stride_width = stride[1],
          .padding_height = padding[0],
          .padding_width = padding[1],
          .dilation_height = dilation[0],
          .dilation_width = dilation[1],
          .groups = a.integer("groups"),
          .channels_last = channels_last,
          .type = dtype,
          .weight_gradient = dtype};
}

enum class Algorithm { products, winograd, direct };

struct ConvolutionJob {
  Convolution convolution;
  ConvolutionPass pass;
  Algorithm algorithm;
  int tile;               // of Winograd's algorithm
  Zeros zeros;            // likewise
  int64_t results;        // elements
  bool empty = false;     // an operand has no elements: the result is zero
  size_t core_bytes = 0;  // of workspace for the convolution itself

  // conv2d_bias_act only
  int bias = -1, residual = -1;              // input numbers
  bool narrow_bias = false;                  // the bias is f32 and the convolution wants bf16
  Activation activation = Activation::none;  // applied by the convolution
  bool later_residual = false;               // added afterwards
  int64_t later_activation = -1;             // applied afterwards

  ConvolutionJob(const GraphNode& node, ConvolutionPass which, bool channels_last,
                 Algorithm algorithm = Algorithm::products, int tile = 0, Zeros zeros = Zeros::kept);
  void set_fused(const GraphNode& node);
  size_t workspace_bytes() const {
    return core_bytes + (narrow_bias ? static_cast<size_t>(convolution.out_channels) * sizeof(bfloat16) : 0);
  }
};

ConvolutionJob::ConvolutionJob(const GraphNode& node, ConvolutionPass which, bool channels_last, Algorithm algorithm,
                               int tile, Zeros zeros)
    : pass(which), algorithm(algorithm), tile(tile), zeros(zeros), results(node.outputs[0].shape.count()) {
  const Shape &first = node.inputs[0].spec().shape, &second = node.inputs[1].spec().shape;
  const Shape& result = node.outputs[0].shape;
  const Shape& x = which == ConvolutionPass::forward         ? first
                   : which == ConvolutionPass::backward_data ? result
                                                             : second;
  const Shape& weight = which == ConvolutionPass::backward_weight ? result : second;
  convolution = describe(node.attributes, x, weight, node.outputs[0].dtype, channels_last);
  empty = first.count() == 0 || second.count() == 0;
  const size_t bytes = empty ? 0
                       : algorithm == Algorithm::winograd
                           ? winograd_workspace(convolution, pass, tile, cpu_threads(), zeros)
                       : algorithm == Algorithm::direct ? direct_workspace(convolution, pass, cpu_threads())
                                                        : convolution_workspace(convolution, pass, cpu_threads());
  core_bytes = (bytes + 63) / 64 * 64;
  if (node.attributes.has("activation")) set_fused(node);
}

void ConvolutionJob::set_fused(const GraphNode& node) {
  using F = ElementwiseFunction;
  int next = 2;
  if (node.attributes.flag("has_bias")) bias = next++;
  if (node.attributes.flag("has_residual")) residual = next;
  narrow_bias = bias >= 0 && node.inputs[bias].spec().dtype != convolution.type;
  later_residual = residual >= 0 && algorithm == Algorithm::products && is_depthwise(convolution);
  int64_t wanted = node.attributes.integer("activation");
  if (!later_residual && wanted == static_cast<int64_t>(F::relu)) {
    activation = Activation::relu;
  } else if (!later_residual && algorithm == Algorithm::products && wanted == static_cast<int64_t>(F::gelu_tanh)) {
    activation = Activation::gelu_tanh;
  } else {
    later_activation = wanted;
  }
}

struct ConvolutionOperands {
  const void *first, *second, *bias, *residual;
  void* result;
};

// By winograd.h or direct.h.
void convolve_without_products(const ConvolutionJob& job, const ConvolutionOperands& at, const Run& run) {
  std::span<std::byte> workspace(static_cast<std::byte*>(run.workspace), job.core_bytes);
  const Convolution& c = job.convolution;
  const ConvolutionEpilogue epilogue{at.bias, at.residual, job.activation == Activation::relu};
  const bool direct = job.algorithm == Algorithm::direct;
  switch (job.pass) {
    case ConvolutionPass::forward:
      return direct ? direct_forward(c, at.first, at.second, epilogue, at.result, workspace, *run.threads)
                    : winograd_forward(c, job.tile, at.first, at.second, epilogue, at.result, workspace, *run.threads,
                                       job.zeros);
    case ConvolutionPass::backward_data:
      return direct ? direct_backward_data(c, at.first, at.second, at.result, workspace, *run.threads)
                    : winograd_backward_data(c, job.tile, at.first, at.second, at.result, workspace, *run.threads,
                                             job.zeros);
    case ConvolutionPass::backward_weight:
      return direct ? direct_backward_weight(c, at.second, at.first, at.result, workspace, *run.threads)
                    : winograd_backward_weight(c, job.tile, at.second, at.first, at.result, workspace, *run.threads,
                                               job.zeros);
  }
}

void convolve(const ConvolutionJob& job, const ConvolutionOperands& at, const Run& run) {
  if (job.algorithm != Algorithm::products) return convolve_without_products(job, at, run);
  std::span<std::byte> workspace(static_cast<std::byte*>(run.workspace), job.core_bytes);
  switch (job.pass) {
    case ConvolutionPass::forward:
      return convolution_forward(job.convolution, at.first, at.second, at.bias, job.activation, at.result, workspace,
                                 *run.threads, job.later_residual ? nullptr : at.residual);
    case ConvolutionPass::backward_data:
      return convolution_backward_data(job.convolution, at.first, at.second, false, at.result, workspace, *run.threads);
    case ConvolutionPass::backward_weight:
      return convolution_backward_weight(job.convolution, at.second, at.first, false, at.result, workspace,
                                         *run.threads);
  }
}

// The bias in the convolution's own type.
const void* prepare_bias(const ConvolutionJob& job, const Run& run) {
  if (job.bias < 0) return nullptr;
  if (!job.narrow_bias) return run.inputs[job.bias];
  auto* narrow = reinterpret_cast<bfloat16*>(static_cast<std::byte*>(run.workspace) + job.core_bytes);
  std::copy_n(run.input<float>(job.bias), job.convolution.out_channels, narrow);
  return narrow;
}

// y = activation(y + residual), in place.
template <class T>
void finish(const ConvolutionJob& job, const Run& run) {
  using Acc = Compute<T>;
  T* y = run.output<T>();
  const T* residual = job.later_residual ? run.input<T>(job.residual) : nullptr;
  with_activation(job.later_activation, [&](const auto& activation) {
    run.threads->parallel_for(job.results, 16384, [&](int64_t begin, int64_t end) {
      if (residual == nullptr) {
        for (int64_t i = begin; i < end; ++i) y[i] = static_cast<T>(activation(static_cast<Acc>(y[i])));
      } else {
#pragma GCC ivdep
        for (int64_t i = begin; i < end; ++i)
          y[i] = static_cast<T>(activation(static_cast<Acc>(y[i]) + static_cast<Acc>(residual[i])));
      }
    });
  });
}

template <class T>
void run_convolution(const ConvolutionJob& job, const Run& run) {
  if (job.results == 0) return;
  if (job.empty) {  // the weight's gradient of an empty batch
    std::fill_n(run.output<T>(), job.results, T(0));
    return;
  }
  const void* residual = job.residual < 0 ? nullptr : run.inputs[job.residual];
  convolve(job, {run.inputs[0], run.inputs[1], prepare_bias(job, run), residual, run.outputs[0]}, run);
  if (job.later_residual || job.later_activation >= 0) finish<T>(job, run);
}

// By `bonfire bench exactness`: worst where gradients come through a max pooling, since direct sums of few numbers are
// nearly exact.
double error_of(const ConvolutionJob& job) {
  if (job.algorithm != Algorithm::winograd) return 1;
  if (job.convolution.kernel_height == 5) return 15;
  return job.tile == 2 ? 3 : 11;
}

template <class T>
Candidate make_convolution(const KernelRequest& request, std::string name, const ConvolutionJob& job) {
  Candidate candidate =
      make_candidate(request, std::move(name), [job](const Run& run) { run_convolution<T>(job, run); });
  candidate.workspace_bytes = job.workspace_bytes();
  candidate.error = error_of(job);
  candidate.keeps_zeros = job.zeros == Zeros::kept;
  if (job.convolution.channels_last) {
    candidate.input_layouts.assign(request.node.inputs.size(), channels_last());
    if (job.bias >= 0) candidate.input_layouts[static_cast<size_t>(job.bias)] = {};
    candidate.output_layouts[0] = channels_last();
  }
  return candidate;
}

// What is worth timing; others have never been the quickest by more than a few percent.

// Rows of several channels are packed as they lie.
bool row_major_pays(const Convolution& c) {
  constexpr int64_t kFew = 16;
  return c.groups > 1 || c.in_channels < kFew || c.out_channels < kFew;
}

int64_t count_tiles(const Convolution& c, int tile) {
  auto cover = [&](int64_t size) { return (size + tile - 1) / tile; };
  return c.batch * cover(c.out_height()) * cover(c.out_width());
}

// Whether tiles of 4 x 4 take far fewer products than those of 2 x 2. Where there are few tiles, it is the transformed
// weights that take the time, and those of small tiles are fewer.
bool large_tiles_win(const Convolution& c) {
  constexpr int64_t kFewTiles = 64;
  auto products = [&](int tile) {
    const int64_t edge = tile + c.kernel_height - 1;
    return static_cast<double>(count_tiles(c, tile) * edge * edge);
  };
  return winograd_serves(c, 4) && count_tiles(c, 4) >= kFewTiles && products(2) > 1.7 * products(4);
}

bool winograd_pays(const Convolution& c, int tile) {
  // Transforms cost as much as they save where there are fewer channels.
  constexpr int64_t kFewestChannels = 8;
  const bool slow = c.type == DType::bf16 && split_kernel() != nullptr;  // next to tiles of bf16
  return winograd_serves(c, tile) && !slow && c.in_channels >= kFewestChannels && c.out_channels >= kFewestChannels &&
         !(tile == 2 && large_tiles_win(c));
}

template <ConvolutionPass pass>
std::vector<Candidate> convolution_candidates(const KernelRequest& request) {
  return for_floating(request.node.outputs[0].dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    std::vector<Candidate> candidates;
    const ConvolutionJob last(request.node, pass, true);
    if (row_major_pays(last.convolution))
      candidates.push_back(
          make_convolution<T>(request, "implicit_gemm:nchw", ConvolutionJob(request.node, pass, false)));
    candidates.push_back(make_convolution<T>(request, "implicit_gemm:nhwc", last));
    auto offer_winograd = [&](int tile, const char* form, Zeros zeros) {
      candidates.push_back(
          make_convolution<T>(request, "winograd" + std::to_string(tile) + form,
                              ConvolutionJob(request.node, pass, true, Algorithm::winograd, tile, zeros)));
    };
    for (int tile : {2, 4}) {
      if (!winograd_pays(last.convolution, tile)) continue;
      offer_winograd(tile, ":nhwc", Zeros::kept);
      if (request.fast_math) offer_winograd(tile, "_noisy:nhwc", Zeros::lost);
    }
    if (direct_serves(last.convolution, pass))
      candidates.push_back(
          make_convolution<T>(request, "direct:nhwc", ConvolutionJob(request.node, pass, true, Algorithm::direct)));
    return candidates;
  });
}

const bool registered[] = {
    register_kernel("conv2d", DeviceType::cpu, convolution_candidates<ConvolutionPass::forward>),
    register_kernel("conv2d_bias_act", DeviceType::cpu, convolution_candidates<ConvolutionPass::forward>),
    register_kernel("conv2d_input_gradient", DeviceType::cpu, convolution_candidates<ConvolutionPass::backward_data>),
    register_kernel("conv2d_weight_gradient", DeviceType::cpu,
                    convolution_candidates<ConvolutionPass::backward_weight>),
};

}  // namespace

}  // namespace bonfire::cpu
