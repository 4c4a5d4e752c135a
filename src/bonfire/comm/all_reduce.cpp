#include "bonfire/comm/all_reduce.h"

#include <algorithm>
#include <cstring>
#include <functional>

#include "bonfire/base/error.h"
#include "bonfire/comm/collective_op.h"
#include "bonfire/comm/reduce.h"
#include "bonfire/graph/sharding.h"
#include "bonfire/kernel/kernel.h"

namespace bonfire::comm {
namespace {

OutputSpecs infer_all_reduce(const InferContext& context) {
  OutputSpecs outputs;
  for (const TensorSpec* input : context.inputs) {
    if (input->dtype != context.input(0).dtype)
      throw_error<ShapeError>("[all_reduce] the operands are {}; expected one dtype", describe_inputs(context));
    outputs.push_back(*input);
  }
  check_reduction("all_reduce", context.input(0).dtype, reduce_of(context.attributes));
  return outputs;
}

// y = Σ x over the ranks  ⇒  dx = Σ dy over them; y = mean x  ⇒  dx = mean dy.
Tensors all_reduce_gradient(const GradientContext& c) {
  const Axis axis = axis_of(c.attributes());
  const Reduce reduce = reduce_of(c.attributes());
  Tensors gradients;
  for (size_t i = 0; i < c.input_count(); ++i) {
    const Tensor& dy = c.gradient(i);
    if (!dy.defined())
      gradients.emplace_back();
    else if (reduce == Reduce::max)
      gradients.push_back(through_maximum(c.input(i), c.output(i), all_reduce(dy, axis, Reduce::sum), axis));
    else
      gradients.push_back(all_reduce(dy, axis, reduce));
  }
  return gradients;
}

// Gradients stay full; activations travel as they are.
AmpRule all_reduce_amp(const Attributes& attributes) {
  return attributes.list("names")[0] >= 0 ? AmpRule::full : AmpRule::follow;
}

// Operands that the group reduces in one call.
struct Stretch {
  std::byte* begin;
  std::byte* end;
};

class AllReduceKernel final : public Kernel {
 public:
  AllReduceKernel(const GraphNode& node, std::vector<Layout> layouts)
      : line_(line_of(node)),
        reduce_(reduce_of(node.attributes)),
        dtype_(node.outputs[0].dtype),
        device_(node.device()),
        layouts_(std::move(layouts)) {
    for (const TensorSpec& output : node.outputs) {
      bytes_.push_back(output.bytes());
      shapes_.push_back(output.shape);
    }
  }

  void run(const Run& run) override {
    const std::shared_ptr<const AxisGroups::Along> along = AxisGroups::of(run).along(line_.axis, device_);
    for (size_t i = 0; i < bytes_.size(); ++i)
      if (run.outputs[i] != run.inputs[i]) std::memcpy(run.outputs[i], run.inputs[i], bytes_[i]);
    const bool differ = along->layouts_differ->load();
    if (differ) rearrange(run, true);
    Group& group = *along->communicators.at(static_cast<size_t>(line_.number));
    for (const Stretch& stretch : stretches(*along, run))
      group.all_reduce({stretch.begin, static_cast<size_t>(stretch.end - stretch.begin) / size_of(dtype_), dtype_},
                       reduce_);
    if (differ) rearrange(run, false);
  }

 private:
  // Into row-major order, or back.
  void rearrange(const Run& run, bool into_row_major) const {
    std::vector<std::byte> copy;
    for (size_t i = 0; i < bytes_.size(); ++i) {
      if (same_places(shapes_[i], layouts_[i], {})) continue;
      auto* data = run.output<std::byte>(i);
      copy.assign(data, data + bytes_[i]);
      const Layout &from = into_row_major ? layouts_[i] : Layout{}, &to = into_row_major ? Layout{} : layouts_[i];
      convert_layout(copy.data(), from, data, to, shapes_[i], dtype_);
    }
  }

  // Only inside one of the axis's memories do neighbours belong together: what lies between other operands is not
  // ours. The order and the gaps there are the same on all ranks.
  std::vector<Stretch> stretches(const AxisGroups::Along& along, const Run& run) const {
    constexpr std::ptrdiff_t kGap = 64;  // bytes: variables side by side are aligned so
    struct Operand {
      size_t memory;
      Stretch stretch;
    };
    std::vector<Operand> list;
    for (size_t i = 0; i < bytes_.size(); ++i) {
      auto* begin = run.output<std::byte>(i);
      Stretch own{begin, begin + bytes_[i]};
      list.push_back({memory_of(along, own), own});
    }
    const size_t nowhere = along.memories.size();
    std::stable_sort(list.begin(), list.end(), [&](const Operand& a, const Operand& b) {
      return a.memory != b.memory ? a.memory < b.memory : a.memory != nowhere && a.stretch.begin < b.stretch.begin;
    });
    std::vector<Stretch> merged;
    for (size_t i = 0; i < list.size(); ++i) {
      const Stretch& one = list[i].stretch;
      if (i > 0 && list[i].memory != nowhere && list[i].memory == list[i - 1].memory &&
          one.begin - merged.back().end < kGap) {
        merged.back().end = one.end;
      } else {
        merged.push_back(one);
      }
    }
    return merged;
  }

  // Which of the memories it lies in; as many as there are: in none.
  static size_t memory_of(const AxisGroups::Along& along, const Stretch& stretch) {
    auto found = std::find_if(along.memories.begin(), along.memories.end(), [&](const AxisGroups::Memory& memory) {
      const std::byte* first = memory.buffer.get();
      return std::greater_equal<>()(stretch.begin, first) && std::less_equal<>()(stretch.end, first + memory.bytes);
    });
    return static_cast<size_t>(found - along.memories.begin());
  }

  Line line_;
  Reduce reduce_;
  DType dtype_;
  Device device_;
  std::vector<Layout> layouts_;
  std::vector<size_t> bytes_;
  std::vector<Shape> shapes_;
};

std::vector<Candidate> all_reduce_candidates(const KernelRequest& request) {
  const Line line = line_of(request.node);
  Candidate candidate = row_major_candidate(request, to_string(line));
  candidate.line = line;
  for (size_t i = 0; i < request.node.inputs.size(); ++i) {
    candidate.in_place.emplace_back(static_cast<int>(i), static_cast<int>(i));
    if (request.arriving[i].block == 0) candidate.input_layouts[i] = candidate.output_layouts[i] = request.arriving[i];
  }
  candidate.build = [&node = request.node, layouts = candidate.output_layouts] {
    return std::make_unique<AllReduceKernel>(node, layouts);
  };
  return {std::move(candidate)};
}

const Op& registered_all_reduce_op = register_collective(
    {.name = "all_reduce",
     .infer = infer_all_reduce,
     .gradient = all_reduce_gradient,
     .shard = shard_one_by_one,
     .traits = Trait::one_by_one,
     .amp_of = all_reduce_amp},
    [](const Attributes& attributes) { return fmt::format("{} of ", name_of(reduce_of(attributes))); });
[[maybe_unused]] const bool registered[] = {
    register_kernel("all_reduce", DeviceType::cpu, all_reduce_candidates),
    register_kernel("all_reduce", DeviceType::cuda, all_reduce_candidates),
};

}  // namespace

const Op& all_reduce_op() { return registered_all_reduce_op; }

Attributes all_reduce_attributes(Axis axis, Reduce reduce, int64_t name) {
  return {{"reduce", static_cast<int>(reduce)},
          {"axis", static_cast<int>(axis)},
          {"communicator", 0},
          {"names", std::span(&name, 1)}};
}

Tensor all_reduce_named(const Tensor& value, Axis axis, Reduce reduce, int64_t name) {
  if (ranks_along(axis) == 1) return value;
  return trace_op(all_reduce_op(), {value}, all_reduce_attributes(axis, reduce, name));
}

Tensor all_reduce(const Tensor& value, Axis axis, Reduce reduce) { return all_reduce_named(value, axis, reduce, -1); }

}  // namespace bonfire::comm
