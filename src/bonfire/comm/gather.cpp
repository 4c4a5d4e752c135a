// all_gather, reduce_scatter and all_to_all: collectives.h.
//
// All three move parts of an array along one of its dimensions. A part lies in one piece where that dimension is the
// slowest in memory; then the group reads and writes the operands themselves. Elsewhere parts are brought side by side
// first, and put into their places at the end.
#include "bonfire/base/error.h"
#include "bonfire/comm/collective_op.h"
#include "bonfire/comm/reduce.h"
#include "bonfire/kernel/kernel.h"
#include "bonfire/ops/elementwise.h"

namespace bonfire::comm {
namespace {

int dim_of(const Attributes& attributes, const char* name = "dim") {
  return static_cast<int>(attributes.integer(name));
}

// The extent along a dimension that is shared out among the ranks.
int64_t shared(const InferContext& context, int dim) {
  const int64_t extent = context.input(0).shape[dim], ranks = ranks_of(context.attributes);
  if (extent % ranks != 0)
    throw_error<ShapeError>("[{}] dimension {} of {} cannot be shared out evenly among {} ranks along {}",
                            context.op.name, dim, to_string(context.input(0).shape), ranks,
                            name_of(axis_of(context.attributes)));
  return extent / ranks;
}

OutputSpecs infer_all_gather(const InferContext& context) {
  TensorSpec spec = context.input(0);
  spec.shape[dim_of(context.attributes)] *= ranks_of(context.attributes);
  return {spec};
}

OutputSpecs infer_reduce_scatter(const InferContext& context) {
  TensorSpec spec = context.input(0);
  const int dim = dim_of(context.attributes);
  check_reduction("reduce_scatter", spec.dtype, reduce_of(context.attributes));
  spec.shape[dim] = shared(context, dim);
  return {spec};
}

OutputSpecs infer_all_to_all(const InferContext& context) {
  TensorSpec spec = context.input(0);
  const int split = dim_of(context.attributes, "split");
  spec.shape[split] = shared(context, split);
  spec.shape[dim_of(context.attributes, "join")] *= ranks_of(context.attributes);
  return {spec};
}

// y = all x, side by side  ⇒  dx = this rank's part of Σ dy.
Tensors all_gather_gradient(const GradientContext& c) {
  return {reduce_scatter(c.gradient(), axis_of(c.attributes()), dim_of(c.attributes()), Reduce::sum)};
}

// y = this rank's part of Σ x  ⇒  dx = all dy, side by side; of a mean, their share of it.
Tensors reduce_scatter_gradient(const GradientContext& c) {
  const Axis axis = axis_of(c.attributes());
  const int dim = dim_of(c.attributes());
  const Reduce reduce = reduce_of(c.attributes());
  const Tensor all = all_gather(c.gradient(), axis, dim);
  if (reduce == Reduce::sum) return {all};
  if (reduce == Reduce::mean) return {all / static_cast<double>(ranks_of(c.attributes()))};
  return {through_maximum(c.input(0), all_gather(c.output(), axis, dim), all, axis)};
}

// What went out along one dimension comes back along it.
Tensors all_to_all_gradient(const GradientContext& c) {
  return {all_to_all(c.gradient(), axis_of(c.attributes()), dim_of(c.attributes(), "join"),
                     dim_of(c.attributes(), "split"))};
}

// One that moves parts: `layout` is that of its operand and of its result.
class PartsKernel : public Kernel {
 public:
  PartsKernel(const GraphNode& node, const Layout& layout)
      : line_(line_of(node)),
        device_(node.device()),
        ranks_(static_cast<size_t>(ranks_of(node.attributes))),
        in_(node.inputs[0].spec()),
        out_(node.outputs[0]),
        layout_(layout) {}

  void run(const Run& run) override {
    const std::shared_ptr<const AxisGroups::Along> along = AxisGroups::of(run).along(line_.axis, device_);
    const auto* from = run.input<std::byte>(0);
    auto* to = run.output<std::byte>();
    if (!along->layouts_differ->load() || layout_.row_major()) return move(along->group(), from, to, layout_);
    std::byte* plain_from = row_major_from_.room(in_.bytes());
    std::byte* plain_to = row_major_to_.room(out_.bytes());
    convert_layout(from, layout_, plain_from, {}, in_.shape, in_.dtype);
    move(along->group(), plain_from, plain_to, {});
    convert_layout(plain_to, {}, to, layout_, out_.shape, out_.dtype);
  }

 protected:
  virtual void move(Group& group, const std::byte* from, std::byte* to, const Layout& layout) = 0;

  ConstValues values(const std::byte* data, size_t bytes) const {
    return {data, bytes / size_of(in_.dtype), in_.dtype};
  }
  Values values(std::byte* data, size_t bytes) const { return {data, bytes / size_of(in_.dtype), in_.dtype}; }

  // The parts of an array along the dimension, side by side.
  const std::byte* parts_of(const std::byte* array, const Around& around) {
    if (around.parts_are_whole()) return array;
    std::byte* parts = taken_.room(around.bytes());
    take_parts(array, around, ranks_, parts);
    return parts;
  }
  // Where such parts may be written, which put() brings to the array.
  std::byte* room_for(std::byte* array, const Around& around) {
    return around.parts_are_whole() ? array : given_.room(around.bytes());
  }
  void put(const std::byte* parts, const Around& around, std::byte* array) const {
    if (!around.parts_are_whole()) put_parts(parts, around, ranks_, array);
  }

  Line line_;
  Device device_;
  size_t ranks_;
  TensorSpec in_, out_;

 private:
  Layout layout_;
  Scratch row_major_from_, row_major_to_, taken_, given_;
};

class AllGatherKernel final : public PartsKernel {
 public:
  AllGatherKernel(const GraphNode& node, const Layout& layout)
      : PartsKernel(node, layout), dim_(dim_of(node.attributes)) {}

 private:
  void move(Group& group, const std::byte* from, std::byte* to, const Layout& layout) override {
    const Around around(out_, layout, dim_);
    std::byte* parts = room_for(to, around);
    group.all_gather(values(from, in_.bytes()), values(parts, out_.bytes()));
    put(parts, around, to);
  }

  int dim_;
};

class ReduceScatterKernel final : public PartsKernel {
 public:
  ReduceScatterKernel(const GraphNode& node, const Layout& layout)
      : PartsKernel(node, layout), dim_(dim_of(node.attributes)), reduce_(reduce_of(node.attributes)) {}

 private:
  void move(Group& group, const std::byte* from, std::byte* to, const Layout& layout) override {
    const std::byte* parts = parts_of(from, Around(in_, layout, dim_));
    group.reduce_scatter(values(parts, in_.bytes()), values(to, out_.bytes()), reduce_);
  }

  int dim_;
  Reduce reduce_;
};

class AllToAllKernel final : public PartsKernel {
 public:
  AllToAllKernel(const GraphNode& node, const Layout& layout)
      : PartsKernel(node, layout), split_(dim_of(node.attributes, "split")), join_(dim_of(node.attributes, "join")) {}

 private:
  void move(Group& group, const std::byte* from, std::byte* to, const Layout& layout) override {
    const std::byte* out = parts_of(from, Around(in_, layout, split_));
    const Around around(out_, layout, join_);
    std::byte* in = room_for(to, around);
    group.all_to_all(values(out, in_.bytes()), values(in, out_.bytes()));
    put(in, around, to);
  }

  int split_, join_;
};

template <class PartsKind>
std::vector<Candidate> parts_candidates(const KernelRequest& request) {
  const Line line = line_of(request.node);
  Candidate candidate = row_major_candidate(request, to_string(line));
  candidate.line = line;
  if (request.arriving[0].block == 0) candidate.input_layouts[0] = candidate.output_layouts[0] = request.arriving[0];
  candidate.build = [&node = request.node, layout = candidate.output_layouts[0]] {
    return std::make_unique<PartsKind>(node, layout);
  };
  return {std::move(candidate)};
}

const Op& all_gather_op = register_collective(
    {.name = "all_gather", .infer = infer_all_gather, .gradient = all_gather_gradient},
    [](const Attributes& attributes) { return fmt::format("gather along dimension {} of ", dim_of(attributes)); });
const Op& reduce_scatter_op = register_collective(
    {.name = "reduce_scatter", .infer = infer_reduce_scatter, .gradient = reduce_scatter_gradient},
    [](const Attributes& attributes) {
      return fmt::format("scattered {} along dimension {} of ", name_of(reduce_of(attributes)), dim_of(attributes));
    });
const Op& all_to_all_op =
    register_collective({.name = "all_to_all", .infer = infer_all_to_all, .gradient = all_to_all_gradient},
                        [](const Attributes& attributes) {
                          return fmt::format("exchange from dimension {} to {} of ", dim_of(attributes, "split"),
                                             dim_of(attributes, "join"));
                        });
[[maybe_unused]] const bool parts_registered[] = {
    register_kernel("all_gather", DeviceType::cpu, parts_candidates<AllGatherKernel>),
    register_kernel("all_gather", DeviceType::cuda, parts_candidates<AllGatherKernel>),
    register_kernel("reduce_scatter", DeviceType::cpu, parts_candidates<ReduceScatterKernel>),
    register_kernel("reduce_scatter", DeviceType::cuda, parts_candidates<ReduceScatterKernel>),
    register_kernel("all_to_all", DeviceType::cpu, parts_candidates<AllToAllKernel>),
    register_kernel("all_to_all", DeviceType::cuda, parts_candidates<AllToAllKernel>),
};

}  // namespace

Tensor all_gather(const Tensor& value, Axis axis, int dim) {
  dim = normalize_axis("all_gather", dim, value.rank());
  const int ranks = ranks_along(axis);
  if (ranks == 1) return value;
  return trace_op(all_gather_op, {value}, {{"axis", static_cast<int>(axis)}, {"ranks", ranks}, {"dim", dim}});
}

Tensor reduce_scatter(const Tensor& value, Axis axis, int dim, Reduce reduce) {
  dim = normalize_axis("reduce_scatter", dim, value.rank());
  const int ranks = ranks_along(axis);
  if (ranks == 1) return value;
  return trace_op(
      reduce_scatter_op, {value},
      {{"axis", static_cast<int>(axis)}, {"ranks", ranks}, {"dim", dim}, {"reduce", static_cast<int>(reduce)}});
}

Tensor all_to_all(const Tensor& value, Axis axis, int split, int join) {
  split = normalize_axis("all_to_all", split, value.rank());
  join = normalize_axis("all_to_all", join, value.rank());
  const int ranks = ranks_along(axis);
  if (ranks == 1) return value;
  return trace_op(all_to_all_op, {value},
                  {{"axis", static_cast<int>(axis)}, {"ranks", ranks}, {"split", split}, {"join", join}});
}

}  // namespace bonfire::comm
