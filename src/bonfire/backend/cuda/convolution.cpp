// Convolution and its two gradients through cuDNN. Reduced precision runs channels-last, where the tensor cores are;
// f32 keeps the layout in which its images arrive.
#include <algorithm>
#include <map>

#include "bonfire/backend/cuda/candidate.h"
#include "bonfire/backend/cuda/cudnn.h"
#include "bonfire/backend/cuda/expression.h"
#include "bonfire/base/error.h"

namespace bonfire::cuda {

namespace {

enum class Direction { forward, input_gradient, weight_gradient };

// The three tensors of a convolution, whatever is computed from what.
struct Convolution {
  Shape x, weight, y;
  DType dtype = DType::f32;
  Shape stride, padding, dilation;
};

CudnnDescriptor describe(const Convolution& what) {
  CudnnDescriptor descriptor(CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR);
  cudnnDataType_t compute = what.dtype == DType::f64 ? CUDNN_DATA_DOUBLE : CUDNN_DATA_FLOAT;
  descriptor.set(CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, CUDNN_TYPE_INT64, int64_t{2})
      .set(CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, compute)
      .set(CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, CUDNN_CROSS_CORRELATION)
      .set(CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, CUDNN_TYPE_INT64, what.stride.extents())
      .set(CUDNN_ATTR_CONVOLUTION_DILATIONS, CUDNN_TYPE_INT64, what.dilation.extents())
      .set(CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, CUDNN_TYPE_INT64, what.padding.extents())
      .set(CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, CUDNN_TYPE_INT64, what.padding.extents());
  descriptor.finalize();
  return descriptor;
}

// What cuDNN calls the parts of an operation, by direction.
struct Names {
  cudnnBackendDescriptorType_t operation;
  cudnnBackendAttributeName_t convolution, x, weight, y, alpha, beta;
};

Names names_of(Direction direction) {
  switch (direction) {
    case Direction::input_gradient:
      return {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA};
    case Direction::weight_gradient:
      return {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA};
    default:
      return {CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
              CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
              CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,
              CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
              CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y,
              CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
              CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA};
  }
}

constexpr int64_t kX = 1, kWeight = 2, kY = 3;  // uids
constexpr size_t kMostPlans = 8;                // to be timed against each other

using Plans = std::vector<std::shared_ptr<CudnnPlan>>;

Plans make_plans(const Convolution& what, Direction direction, const Layout& layout) {
  Names names = names_of(direction);
  CudnnDescriptor convolution = describe(what);
  CudnnDescriptor x = cudnn_tensor(kX, what.x, layout, what.dtype);
  CudnnDescriptor weight = cudnn_tensor(kWeight, what.weight, layout, what.dtype);
  CudnnDescriptor y = cudnn_tensor(kY, what.y, layout, what.dtype);
  CudnnDescriptor operation(names.operation);
  operation.set(names.convolution, convolution).set(names.x, x).set(names.weight, weight).set(names.y, y);
  if (what.dtype == DType::f64) {
    operation.set(names.alpha, CUDNN_TYPE_DOUBLE, 1.0).set(names.beta, CUDNN_TYPE_DOUBLE, 0.0);
  } else {
    operation.set(names.alpha, CUDNN_TYPE_FLOAT, 1.0F).set(names.beta, CUDNN_TYPE_FLOAT, 0.0F);
  }
  Plans plans;
  if (!operation.try_finalize()) return plans;
  for (CudnnPlan& plan : cudnn_plans(operation, what.dtype == DType::f32, kMostPlans))
    plans.push_back(std::make_shared<CudnnPlan>(std::move(plan)));
  return plans;
}

// Plans are the same for equal convolutions, and take long to make.
Plans plans_for(const Convolution& what, Direction direction, const Layout& layout) {
  static std::mutex mutex;
  static std::map<std::string, Plans> known;
  int device = 0;
  check(cudaGetDevice(&device), "cudaGetDevice");
  std::string key = fmt::format("{} {} {} {} {} {} {} {} {}", device, static_cast<int>(direction), name_of(what.dtype),
                                to_string(what.x), to_string(what.weight), to_string(what.stride),
                                to_string(what.padding), to_string(what.dilation), to_string(layout));
  std::lock_guard lock(mutex);
  auto [entry, is_new] = known.try_emplace(std::move(key));
  if (is_new) entry->second = make_plans(what, direction, layout);
  return entry->second;
}

class ConvolutionKernel final : public Kernel {
 public:
  ConvolutionKernel(std::shared_ptr<CudnnPlan> plan, Direction direction, std::unique_ptr<Kernel> after)
      : plan_(std::move(plan)), direction_(direction), after_(std::move(after)) {}

  void run(const Run& run) override {
    void *first = run.inputs[0], *second = run.inputs[1], *result = run.outputs[0];
    void* tensors[3] = {first, second, result};  // x, weight, y
    if (direction_ == Direction::input_gradient) std::tie(tensors[0], tensors[2]) = std::pair(result, first);
    if (direction_ == Direction::weight_gradient)
      std::tie(tensors[0], tensors[1], tensors[2]) = std::tuple(second, result, first);
    plan_->run(tensors, run.workspace, stream_of(run));
    if (!after_) return;
    std::vector<void*> inputs{result};
    inputs.insert(inputs.end(), run.inputs.begin() + 2, run.inputs.end());
    after_->run({inputs, run.outputs, nullptr, nullptr, run.stream});
  }

 private:
  std::shared_ptr<CudnnPlan> plan_;
  Direction direction_;
  std::unique_ptr<Kernel> after_;
};

Convolution convolution_of(const GraphNode& node, Direction direction) {
  const Shape &first = node.inputs[0].spec().shape, &second = node.inputs[1].spec().shape,
              &result = node.outputs[0].shape;
  Convolution what;
  what.dtype = node.outputs[0].dtype;
  what.stride = node.attributes.ints("stride");
  what.padding = node.attributes.ints("padding");
  what.dilation = node.attributes.ints("dilation");
  switch (direction) {
    case Direction::forward: std::tie(what.x, what.weight, what.y) = std::tie(first, second, result); break;
    case Direction::input_gradient: std::tie(what.y, what.weight, what.x) = std::tie(first, second, result); break;
    case Direction::weight_gradient: std::tie(what.y, what.x, what.weight) = std::tie(first, second, result); break;
  }
  return what;
}

// The layouts to try, the best first.
std::vector<Layout> layouts_for(const KernelRequest& request) {
  const TensorSpec& spec = request.node.outputs[0];
  bool reduced = spec.dtype == DType::bf16 || spec.dtype == DType::f16;
  bool arrives_last =
      request.arriving[0] == channels_last() || (request.arriving.size() > 1 && request.arriving[1] == channels_last());
  if (reduced || (spec.dtype == DType::f32 && arrives_last)) return {channels_last(), {}};
  return {Layout{}, channels_last()};
}

// Epilogue of conv2d_bias_act: what is added after the convolution.
std::unique_ptr<Kernel> make_after(const Attributes& attributes, const TensorSpec& y, const Layout& layout,
                                   const DType* bias_type) {
  if (!attributes.has("activation")) return nullptr;
  return make_bias_act_kernel({.shape = y.shape,
                               .dtype = y.dtype,
                               .layout = layout,
                               .bias_type = bias_type,
                               .bias_shape = {y.shape[1], 1, 1},
                               .residual = attributes.flag("has_residual"),
                               .activation = static_cast<int>(attributes.integer("activation"))});
}

// How exact f32 is, by `bonfire bench exactness --place gpu`. Engine 0 multiplies and adds in order; others are up to 6
// times as far off. Engine 17 of the gradient by the weights is up to 5,600 times (cuDNN 9.14), and loses zeros, though
// cuDNN notes neither.
void state_exactness(Candidate& candidate, const CudnnPlan& plan, Direction direction) {
  const bool is_rough = direction == Direction::weight_gradient && plan.engine == 17;
  candidate.error = plan.engine == 0 ? 1 : is_rough ? 6000 : 8;
  candidate.keeps_zeros = plan.keeps_zeros && !is_rough;
}

Candidate candidate_of(const KernelRequest& request, const std::shared_ptr<CudnnPlan>& plan, Direction direction,
                       const Layout& layout) {
  const GraphNode& node = request.node;
  Candidate candidate = row_major_candidate(request, plan->name + (layout == channels_last() ? ":nhwc" : ":nchw"));
  candidate.workspace_bytes = plan->workspace_bytes;
  candidate.keeps_zeros = plan->keeps_zeros;
  if (node.outputs[0].dtype == DType::f32) state_exactness(candidate, *plan, direction);
  bool has_bias = node.attributes.has("has_bias") && node.attributes.flag("has_bias");
  for (size_t i = 0; i < node.inputs.size(); ++i)
    if (i != 2 || !has_bias)
      candidate.input_layouts[i] = unless_same(node.inputs[i].spec().shape, layout, request.arriving[i]);
  candidate.output_layouts[0] = layout;
  DType bias_type = has_bias ? node.inputs[2].spec().dtype : node.outputs[0].dtype;
  build_on_device(candidate, request,
                  [=, attributes = node.attributes, result = node.outputs[0]]() -> std::unique_ptr<Kernel> {
                    auto after = make_after(attributes, result, layout, has_bias ? &bias_type : nullptr);
                    return std::make_unique<ConvolutionKernel>(plan, direction, std::move(after));
                  });
  return candidate;
}

template <Direction direction>
std::vector<Candidate> candidates(const KernelRequest& request) {
  const GraphNode& node = request.node;
  const TensorSpec& result = node.outputs[0];
  DeviceScope device(node.device().index);
  Convolution what = convolution_of(node, direction);
  if (what.x.count() == 0 || what.y.count() == 0 || what.weight.count() == 0) {
    return one_candidate(request, [bytes = result.bytes()](const Run& run) {
      if (bytes > 0) check(cudaMemsetAsync(run.outputs[0], 0, bytes, stream_of(run)), "cudaMemsetAsync");
    });
  }
  std::vector<Candidate> list;
  for (const Layout& layout : layouts_for(request)) {
    for (const auto& plan : plans_for(what, direction, layout))
      list.push_back(candidate_of(request, plan, direction, layout));
    if (std::any_of(list.begin(), list.end(), [](const Candidate& one) { return one.keeps_zeros; })) break;
  }
  return list;
}

const bool registered =
    register_kernel("conv2d", DeviceType::cuda, candidates<Direction::forward>) &&
    register_kernel("conv2d_bias_act", DeviceType::cuda, candidates<Direction::forward>) &&
    register_kernel("conv2d_input_gradient", DeviceType::cuda, candidates<Direction::input_gradient>) &&
    register_kernel("conv2d_weight_gradient", DeviceType::cuda, candidates<Direction::weight_gradient>);

}  // namespace

}  // namespace bonfire::cuda
