// broadcast: collectives.h.
#include <cstring>

#include "bonfire/base/error.h"
#include "bonfire/comm/collective_op.h"
#include "bonfire/kernel/kernel.h"
#include "bonfire/ops/creation.h"

namespace bonfire::comm {
namespace {

OutputSpecs infer_broadcast(const InferContext& context) { return {context.input(0)}; }

// y = x of the root  ⇒  there dx = Σ dy over the ranks, elsewhere 0.
Tensors broadcast_gradient(const GradientContext& c) {
  const Axis axis = axis_of(c.attributes());
  const Tensor sum = all_reduce(c.gradient(), axis, Reduce::sum);
  return {place_along(axis) == c.attributes().integer("root") ? sum : zeros_like(sum)};
}

class BroadcastKernel final : public Kernel {
 public:
  BroadcastKernel(const GraphNode& node, const Layout& layout)
      : line_(line_of(node)),
        root_(static_cast<int>(node.attributes.integer("root"))),
        device_(node.device()),
        spec_(node.outputs[0]),
        layout_(layout) {}

  void run(const Run& run) override {
    const std::shared_ptr<const AxisGroups::Along> along = AxisGroups::of(run).along(line_.axis, device_);
    auto* value = run.output<std::byte>();
    if (run.inputs[0] != value && spec_.bytes() > 0) std::memcpy(value, run.inputs[0], spec_.bytes());
    const bool differ = along->layouts_differ->load() && !same_places(spec_.shape, layout_, {});
    if (differ) rearrange(value, layout_, {});
    along->group().broadcast({value, spec_.bytes() / size_of(spec_.dtype), spec_.dtype}, root_);
    if (differ) rearrange(value, {}, layout_);
  }

 private:
  void rearrange(std::byte* value, const Layout& from, const Layout& to) {
    std::byte* copy = scratch_.room(spec_.bytes());
    std::memcpy(copy, value, spec_.bytes());
    convert_layout(copy, from, value, to, spec_.shape, spec_.dtype);
  }

  Line line_;
  int root_;
  Device device_;
  TensorSpec spec_;
  Layout layout_;
  Scratch scratch_;
};

std::vector<Candidate> broadcast_candidates(const KernelRequest& request) {
  const Line line = line_of(request.node);
  Candidate candidate = row_major_candidate(request, to_string(line));
  candidate.line = line;
  candidate.in_place = {{0, 0}};
  if (request.arriving[0].block == 0) candidate.input_layouts[0] = candidate.output_layouts[0] = request.arriving[0];
  candidate.build = [&node = request.node, layout = candidate.output_layouts[0]] {
    return std::make_unique<BroadcastKernel>(node, layout);
  };
  return {std::move(candidate)};
}

const Op& broadcast_op = register_collective(
    {.name = "broadcast", .infer = infer_broadcast, .gradient = broadcast_gradient, .traits = Trait::one_by_one},
    [](const Attributes& attributes) { return fmt::format("broadcast from rank {} of ", attributes.integer("root")); });
[[maybe_unused]] const bool broadcast_registered[] = {
    register_kernel("broadcast", DeviceType::cpu, broadcast_candidates),
    register_kernel("broadcast", DeviceType::cuda, broadcast_candidates),
};

}  // namespace

Tensor broadcast(const Tensor& value, Axis axis, int root) {
  require_place("broadcast", axis, root);
  if (ranks_along(axis) == 1) return value;
  return trace_op(broadcast_op, {value}, {{"axis", static_cast<int>(axis)}, {"root", root}});
}

}  // namespace bonfire::comm
