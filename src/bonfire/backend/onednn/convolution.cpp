// Direct convolutions of oneDNN, for channels-last, row-major and blocked images. A batch is cut into one part per
// thread. Weights are taken and given in a dense layout; what a primitive wants instead is made in its workspace on
// each run, which is once a step. Its Winograd is not offered: with it small ResNet-18's gradient norms are 2e-4 off,
// with ours, which takes other points (cpu/winograd_lines.h) and is as fast, they stay within 1e-4.

#include <algorithm>
#include <optional>

#include "bonfire/backend/cpu/device/threads.h"
#include "bonfire/backend/onednn/onednn.h"
#include "bonfire/base/error.h"

namespace bonfire::onednn {

namespace {

using Desc = dnnl::memory::desc;
using Dims = dnnl::memory::dims;

enum class Pass : uint8_t { forward, input_gradient, weight_gradient };

// What a node asks for: y = x * weight, or one of its gradients.
struct Problem {
  Pass pass;
  Shape x, weight, y;  // [N, C, H, W], [O, C / groups, KH, KW], [N, O, OH, OW]
  DType dtype;         // of images and weights
  Shape stride, padding, dilation;
  int64_t groups;
  int bias = -1;  // input number
  DType bias_dtype = DType::f32;
  int64_t activation = -1;

  Problem(const GraphNode& node, Pass which);
  Desc image(const Shape& shape, int64_t count, const Layout& layout) const;
  Desc weights(const Layout& layout, DType type) const;
  Desc any_weights(DType type) const;
  Desc bias_desc() const { return Desc({y[1]}, type_of(bias_dtype), dnnl::memory::format_tag::a); }
};

Problem::Problem(const GraphNode& node, Pass which)
    : pass(which),
      dtype(node.outputs[0].dtype),
      stride(node.attributes.ints("stride")),
      padding(node.attributes.ints("padding")),
      dilation(node.attributes.ints("dilation")),
      groups(node.attributes.integer("groups")) {
  const Shape &first = node.inputs[0].spec().shape, &second = node.inputs[1].spec().shape;
  const Shape& result = node.outputs[0].shape;
  x = which == Pass::forward ? first : which == Pass::input_gradient ? result : second;
  weight = which == Pass::weight_gradient ? result : second;
  y = which == Pass::forward ? result : first;
  if (!node.attributes.has("activation")) return;
  activation = node.attributes.integer("activation");
  if (node.attributes.flag("has_bias")) {
    bias = 2;
    bias_dtype = node.inputs[2].spec().dtype;
  }
}

Desc Problem::image(const Shape& shape, int64_t count, const Layout& layout) const {
  Shape part = shape;
  part[0] = count;
  return desc_of(part, dtype, layout);
}

// oneDNN wants an axis of groups where there are several.
Desc Problem::weights(const Layout& layout, DType type) const {
  if (groups == 1) return desc_of(weight, type, layout);
  Shape s = strides_of(weight, layout);
  int64_t rows = weight[0] / groups;
  return Desc({groups, rows, weight[1], weight[2], weight[3]}, type_of(type),
              Dims{s[0] * rows, s[0], s[1], s[2], s[3]});
}

Desc Problem::any_weights(DType type) const {
  Dims dims = groups == 1 ? dims_of(weight) : Dims{groups, weight[0] / groups, weight[1], weight[2], weight[3]};
  return Desc(dims, type_of(type), dnnl::memory::format_tag::any);
}

struct Form {
  Layout images;
  const char* name;
};

// Gradients of the weights are summed over the parts, in f32.
DType weight_type(const Problem& p) { return p.pass == Pass::weight_gradient ? DType::f32 : p.dtype; }

// Calls take(primitive_desc, weights desc) for `count` images; returns false when oneDNN has nothing but a reference
// for them. `weights` may leave their form open.
template <class Take>
bool with_primitive(const Problem& p, const Form& form, int64_t count, const Desc& weights, const Take& take) {
  constexpr auto kDirect = dnnl::algorithm::convolution_direct;
  Dims stride = dims_of(p.stride), padding = dims_of(p.padding);
  Dims dilation{p.dilation[0] - 1, p.dilation[1] - 1};
  Desc x = p.image(p.x, count, form.images), y = p.image(p.y, count, form.images);
  auto use = [&](const auto& desc, const Desc& chosen) {
    if (is_reference(desc.impl_info_str())) return false;
    take(desc, chosen);
    return true;
  };
  try {
    using dnnl::convolution_backward_data, dnnl::convolution_backward_weights, dnnl::convolution_forward;
    auto kind = dnnl::prop_kind::forward_training;
    Desc forward_weights = p.pass == Pass::weight_gradient ? p.any_weights(p.dtype) : weights;
    auto forward = [&](const dnnl::primitive_attr& attributes) {
      using D = convolution_forward::desc;
      D desc = p.bias < 0 ? D(kind, kDirect, x, forward_weights, y, stride, dilation, padding, padding)
                          : D(kind, kDirect, x, forward_weights, p.bias_desc(), y, stride, dilation, padding, padding);
      return convolution_forward::primitive_desc(desc, attributes, engine());
    };
    if (p.pass == Pass::forward) {
      auto desc = forward(attributes(p.activation));
      return use(desc, desc.weights_desc());
    }
    auto hint = forward(attributes());
    if (p.pass == Pass::input_gradient) {
      convolution_backward_data::desc asked(kDirect, x, weights, y, stride, dilation, padding, padding);
      convolution_backward_data::primitive_desc desc(asked, attributes(), engine(), hint);
      return use(desc, desc.weights_desc());
    }
    convolution_backward_weights::desc asked(kDirect, x, weights, y, stride, dilation, padding, padding);
    convolution_backward_weights::primitive_desc desc(asked, attributes(), engine(), hint);
    return use(desc, desc.diff_weights_desc());
  } catch (const dnnl::error&) {
    return false;  // not offered for this shape
  }
}

template <class PrimitiveDesc>
dnnl::primitive make_primitive(const PrimitiveDesc& desc) {
  using dnnl::convolution_backward_data, dnnl::convolution_backward_weights, dnnl::convolution_forward;
  if constexpr (std::is_same_v<PrimitiveDesc, convolution_forward::primitive_desc>) {
    return convolution_forward(desc);
  } else if constexpr (std::is_same_v<PrimitiveDesc, convolution_backward_data::primitive_desc>) {
    return convolution_backward_data(desc);
  } else {
    return convolution_backward_weights(desc);
  }
}

// Everything that is known of a form before it is built.
struct Recipe {
  Problem problem;
  Form form;
  Layout weight_layout;  // of the caller's
  Desc weights;          // the primitive's
  std::string implementation;
  std::vector<Range> parts;  // images
  size_t scratchpad = 0;     // bytes of one part

  size_t weight_bytes() const { return aligned(weights.get_size()); }
  // Weights lie in the workspace: made from the caller's, or one gradient for each part.
  size_t weight_copies() const {
    if (problem.pass == Pass::weight_gradient) return parts.size();
    return weights == problem.weights(weight_layout, problem.dtype) ? 0 : 1;
  }
  size_t workspace_bytes() const { return weight_copies() * weight_bytes() + parts.size() * aligned(scratchpad); }
};

std::optional<Recipe> make_recipe(const Problem& problem, const Form& form) {
  OneThread alone;
  Recipe recipe{problem, form, {}, {}, {}, cut(problem.x[0], cpu::cpu_threads())};
  Desc weights = problem.any_weights(weight_type(problem));
  for (int64_t count : {recipe.parts.front().count, recipe.parts.back().count}) {
    bool found = with_primitive(problem, form, count, weights, [&](const auto& desc, const Desc& chosen) {
      recipe.weights = weights = chosen;  // parts of another size must take the same
      if (recipe.implementation.empty()) recipe.implementation = desc.impl_info_str();
      recipe.scratchpad = std::max(recipe.scratchpad, desc.scratchpad_desc().get_size());
    });
    if (!found) return {};
  }
  return recipe;
}

class ConvolutionKernel final : public Kernel {
 public:
  explicit ConvolutionKernel(Recipe recipe) : recipe_(std::move(recipe)) {
    OneThread alone;
    const Problem& p = recipe_.problem;
    for (const Range& range : recipe_.parts) {
      Part part;
      bool found = with_primitive(p, recipe_.form, range.count, recipe_.weights, [&](const auto& desc, const Desc&) {
        part.primitive = make_primitive(desc);
        part.scratchpad = memory_at(desc.scratchpad_desc(), nullptr);
      });
      BONFIRE_CHECK(found, "oneDNN has lost {}", recipe_.implementation);
      Desc x = p.image(p.x, range.count, recipe_.form.images), y = p.image(p.y, range.count, recipe_.form.images);
      part.x = memory_at(x, nullptr);
      part.y = memory_at(y, nullptr);
      part.weights = memory_at(recipe_.weights, nullptr);
      if (p.bias >= 0) part.bias = memory_at(p.bias_desc(), nullptr);
      part.x_offset = range.begin * static_cast<int64_t>(bytes_of(one_image(p.x), p.dtype, recipe_.form.images));
      part.y_offset = range.begin * static_cast<int64_t>(bytes_of(one_image(p.y), p.dtype, recipe_.form.images));
      parts_.push_back(std::move(part));
    }
    Desc own = p.weights(recipe_.weight_layout, p.dtype);
    int64_t threads = cpu::cpu_threads();
    if (p.pass == Pass::weight_gradient) {
      reorder_.emplace(recipe_.weights, own, threads);
    } else if (recipe_.weight_copies() > 0) {
      reorder_.emplace(own, recipe_.weights, threads);
    }
  }

  void run(const Run& run) override {
    auto* workspace = static_cast<std::byte*>(run.workspace);
    switch (recipe_.problem.pass) {
      case Pass::forward: return run_parts(run, run.inputs[0], run.outputs[0], prepared_weights(run));
      case Pass::input_gradient: return run_parts(run, run.outputs[0], run.inputs[0], prepared_weights(run));
      case Pass::weight_gradient:
        run_parts(run, run.inputs[1], run.inputs[0], workspace);
        sum_parts(run);
        reorder_->run(workspace, run.outputs[0], *run.threads);
    }
  }

 private:
  struct Part {
    dnnl::primitive primitive;
    dnnl::memory x, y, weights, bias, scratchpad;
    int64_t x_offset = 0, y_offset = 0;  // bytes
  };

  static Shape one_image(Shape shape) {
    shape[0] = 1;
    return shape;
  }

  void* prepared_weights(const Run& run) {
    if (!reorder_) return run.inputs[1];
    reorder_->run(run.inputs[1], run.workspace, *run.threads);
    return run.workspace;
  }

  // Of all parts together: x and y of the whole batch, and the weights; for their gradient, one copy for each part.
  void run_parts(const Run& run, void* x, void* y, void* weights) {
    auto* scratch = static_cast<std::byte*>(run.workspace) + recipe_.weight_copies() * recipe_.weight_bytes();
    bool separate = recipe_.problem.pass == Pass::weight_gradient;
    run.threads->run(static_cast<int64_t>(parts_.size()), [&](int64_t index) {
      OneThread alone;
      Part& part = parts_[static_cast<size_t>(index)];
      size_t number = static_cast<size_t>(index);
      part.x.set_data_handle(static_cast<std::byte*>(x) + part.x_offset);
      part.y.set_data_handle(static_cast<std::byte*>(y) + part.y_offset);
      part.weights.set_data_handle(static_cast<std::byte*>(weights) + (separate ? number * recipe_.weight_bytes() : 0));
      part.scratchpad.set_data_handle(scratch + number * aligned(recipe_.scratchpad));
      if (recipe_.problem.bias >= 0) part.bias.set_data_handle(run.inputs[static_cast<size_t>(recipe_.problem.bias)]);
      execute(part);
    });
  }

  void execute(Part& part) {
    std::unordered_map<int, dnnl::memory> arguments{{DNNL_ARG_SCRATCHPAD, part.scratchpad}};
    Pass pass = recipe_.problem.pass;
    arguments.emplace(pass == Pass::input_gradient ? DNNL_ARG_DIFF_SRC : DNNL_ARG_SRC, part.x);
    arguments.emplace(pass == Pass::forward ? DNNL_ARG_DST : DNNL_ARG_DIFF_DST, part.y);
    arguments.emplace(pass == Pass::weight_gradient ? DNNL_ARG_DIFF_WEIGHTS : DNNL_ARG_WEIGHTS, part.weights);
    if (recipe_.problem.bias >= 0) arguments.emplace(DNNL_ARG_BIAS, part.bias);
    part.primitive.execute(stream(), arguments);
  }

  // The first gradient += the others.
  void sum_parts(const Run& run) {
    if (parts_.size() == 1) return;
    constexpr int64_t kGrain = 1 << 14;
    auto count = static_cast<int64_t>(recipe_.weights.get_size() / sizeof(float));
    auto stride = static_cast<int64_t>(recipe_.weight_bytes() / sizeof(float));
    float* sum = static_cast<float*>(run.workspace);
    run.threads->parallel_for(count, kGrain, [&](int64_t begin, int64_t end) {
      for (size_t part = 1; part < parts_.size(); ++part) {
        const float* other = sum + static_cast<int64_t>(part) * stride;
#pragma GCC ivdep
        for (int64_t i = begin; i < end; ++i) sum[i] += other[i];
      }
    });
  }

  Recipe recipe_;
  std::vector<Part> parts_;
  std::optional<WeightReorder> reorder_;
};

Candidate make_convolution(const KernelRequest& request, const Recipe& recipe) {
  Candidate candidate =
      row_major_candidate(request, "onednn:" + recipe.implementation + ":" + std::string(recipe.form.name));
  const Layout& images = recipe.form.images;
  bool gradient = recipe.problem.pass == Pass::weight_gradient;
  candidate.input_layouts[0] = images;
  candidate.input_layouts[1] = gradient ? images : recipe.weight_layout;
  candidate.output_layouts[0] = gradient ? recipe.weight_layout : images;
  candidate.workspace_bytes = recipe.workspace_bytes();
  candidate.error = kError;
  candidate.build = [recipe] { return std::make_unique<ConvolutionKernel>(recipe); };
  return candidate;
}

// The caller's weights are taken as they come; their gradient is offered both ways.
std::vector<Layout> weight_layouts(const KernelRequest& request, Pass pass) {
  if (pass == Pass::weight_gradient) return {Layout{}, channels_last()};
  const Layout& arriving = request.arriving[1];
  return {arriving.block == 0 ? arriving : Layout{}};
}

// What is worth timing: channels-last images, which AMX wants; in f32 also blocked ones. Nothing where our Winograd
// takes less than half the products of a direct convolution.
std::vector<Recipe> recipes_for(const Problem& problem) {
  constexpr int64_t kFewChannels = 4;         // beyond these, row-major images are unfolded first: slower than ours
  constexpr int64_t kManyChannels = 32;       // Winograd wins
  constexpr size_t kMostScratch = 128 << 20;  // bytes: a step should not need more memory for being faster
  std::vector<Recipe> recipes;
  auto add = [&](const Form& form) {
    std::optional<Recipe> recipe = make_recipe(problem, form);
    if (!recipe || recipe->scratchpad * recipe->parts.size() > kMostScratch) return;
    recipes.push_back(std::move(*recipe));
  };
  bool single = problem.dtype == DType::f32;
  bool many = std::min(problem.x[1], problem.y[1]) >= kManyChannels;
  bool dense = problem.groups == 1 && problem.weight[2] == 3 && problem.weight[3] == 3 &&
               problem.stride == Shape{1, 1} && problem.dilation == Shape{1, 1};
  if (single && many && dense) return recipes;
  add({channels_last(), "nhwc"});
  if (single) add({Layout{.order = {}, .block = 16}, "nChw16c"});
  if (single && problem.x[1] <= kFewChannels) add({{}, "nchw"});
  return recipes;
}

template <Pass pass>
std::vector<Candidate> convolution_candidates(const KernelRequest& request) {
  const GraphNode& node = request.node;
  std::vector<Candidate> candidates;
  bool residual = node.attributes.has("has_residual") && node.attributes.flag("has_residual");
  bool empty = node.outputs[0].shape.count() == 0 || node.inputs[0].spec().shape.count() == 0 ||
               node.inputs[1].spec().shape.count() == 0;
  if (!usable() || !has_type(node.outputs[0].dtype) || residual || empty) return candidates;
  for (Recipe& recipe : recipes_for(Problem(node, pass))) {
    for (const Layout& layout : weight_layouts(request, pass)) {
      recipe.weight_layout = layout;
      candidates.push_back(make_convolution(request, recipe));
    }
  }
  return candidates;
}

const bool registered[] = {
    register_kernel("conv2d", DeviceType::cpu, convolution_candidates<Pass::forward>),
    register_kernel("conv2d_bias_act", DeviceType::cpu, convolution_candidates<Pass::forward>),
    register_kernel("conv2d_input_gradient", DeviceType::cpu, convolution_candidates<Pass::input_gradient>),
    register_kernel("conv2d_weight_gradient", DeviceType::cpu, convolution_candidates<Pass::weight_gradient>),
};

}  // namespace

}  // namespace bonfire::onednn
