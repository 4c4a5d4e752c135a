#include "bonfire/comm/flat_parts.h"

#include <algorithm>
#include <cstring>

#include "bonfire/base/error.h"
#include "bonfire/comm/all_reduce.h"
#include "bonfire/comm/collective_op.h"
#include "bonfire/comm/reduce.h"
#include "bonfire/kernel/kernel.h"

namespace bonfire::comm {
namespace {

constexpr int64_t kTogether = 16;  // elements that are never parted

int64_t part_elements(int64_t count, int64_t parts) {
  return (count + parts * kTogether - 1) / (parts * kTogether) * kTogether;
}

int64_t place_of(const Attributes& attributes) { return attributes.integer("place"); }

int64_t own_elements(const Shape& whole, const Attributes& attributes) {
  return flat_part(whole, place_of(attributes), ranks_of(attributes)).count();
}

void require_one_dtype(const InferContext& context) {
  for (const TensorSpec* input : context.inputs)
    if (input->dtype != context.input(0).dtype)
      throw_error<ShapeError>("[{}] the operands are {} and {}; expected one dtype", context.op.name,
                              to_string(context.input(0)), to_string(*input));
}

OutputSpecs infer_scatter(const InferContext& context) {
  require_one_dtype(context);
  check_reduction("scatter_flat", context.input(0).dtype, reduce_of(context.attributes));
  OutputSpecs outputs;
  for (const TensorSpec* input : context.inputs) {
    TensorSpec part = *input;
    part.shape = {own_elements(input->shape, context.attributes)};
    outputs.push_back(part);
  }
  return outputs;
}

OutputSpecs infer_gather(const InferContext& context) {
  require_one_dtype(context);
  std::span<const int64_t> words = context.attributes.list("shapes");
  OutputSpecs outputs;
  for (const TensorSpec* input : context.inputs) {
    const auto rank = static_cast<size_t>(words.front());
    TensorSpec whole = *input;
    whole.shape = Shape(words.subspan(1, rank));
    words = words.subspan(1 + rank);
    if (input->shape != Shape{own_elements(whole.shape, context.attributes)})
      throw_error<ShapeError>("[gather_flat] the part of {} at place {} of {} is {}; expected {} elements",
                              to_string(whole.shape), place_of(context.attributes), ranks_of(context.attributes),
                              to_string(*input), own_elements(whole.shape, context.attributes));
    outputs.push_back(whole);
  }
  return outputs;
}

Tensors gather_gradient(const GradientContext& c) {
  Tensors parts;
  for (size_t i = 0; i < c.input_count(); ++i)
    parts.push_back(c.gradient(i).defined() ? scatter_flat(c.gradient(i), axis_of(c.attributes()), Reduce::mean,
                                                           c.attributes().list("names")[i])
                                            : Tensor());
  return parts;
}

// Gradients and weights stay full.
AmpRule flat_amp(const Attributes& /*attributes*/) { return AmpRule::full; }

// How the operands of a node travel. Large ones whose parts are all equal are read and written where they lie; the
// others side by side.
struct Load {
  struct Operand {
    size_t bytes = 0;    // of the whole
    size_t part = 0;     // of a rank that has a full one
    size_t own = 0;      // of this one
    bool alone = false;  // it has a call of its own
    size_t at = 0;       // else: where it is in what a rank has of those that travel together

    size_t begin(size_t rank) const { return std::min(rank * part, bytes); }
    size_t size(size_t rank) const { return std::min((rank + 1) * part, bytes) - begin(rank); }
  };

  explicit Load(const GraphNode& node) : ranks(static_cast<size_t>(ranks_of(node.attributes))) {
    constexpr int64_t kWorthACall = 64 << 10;  // bytes
    const bool gathers = node.op == &gather_flat_op();
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      const TensorSpec& whole = gathers ? node.outputs[i] : node.inputs[i].spec();
      const TensorSpec& own = gathers ? node.inputs[i].spec() : node.outputs[i];
      const int64_t count = whole.shape.count(), part = part_elements(count, static_cast<int64_t>(ranks));
      Operand one{.bytes = whole.bytes(), .part = static_cast<size_t>(part) * size_of(whole.dtype), .own = own.bytes()};
      one.alone = part * static_cast<int64_t>(ranks) == count && static_cast<int64_t>(one.part) >= kWorthACall;
      if (!one.alone) {
        one.at = together;
        together += one.part;
      }
      operands.push_back(one);
    }
  }

  size_t ranks;
  std::vector<Operand> operands;
  size_t together = 0;  // bytes of a rank
  size_t workspace() const { return (1 + ranks) * together; }
};

class FlatKernel : public Kernel {
 public:
  explicit FlatKernel(const GraphNode& node)
      : line_(line_of(node)), device_(node.device()), dtype_(node.outputs[0].dtype), load_(node) {}

 protected:
  using Operand = Load::Operand;

  std::shared_ptr<Group> group(const Run& run) const {
    return AxisGroups::of(run).along(line_.axis, device_)->communicators.at(static_cast<size_t>(line_.number));
  }
  ConstValues values(const void* data, size_t bytes) const { return {data, bytes / size_of(dtype_), dtype_}; }
  Values values(void* data, size_t bytes) const { return {data, bytes / size_of(dtype_), dtype_}; }

  // What a rank has of those that travel together, then that of all ranks. Where the step's own workspace is not the
  // host's there is none.
  std::byte* together(const Run& run) {
    return run.workspace != nullptr ? static_cast<std::byte*>(run.workspace) : scratch_.room(load_.workspace());
  }

  Line line_;
  Device device_;
  DType dtype_;
  Load load_;

 private:
  Scratch scratch_;
};

class ScatterFlatKernel final : public FlatKernel {
 public:
  explicit ScatterFlatKernel(const GraphNode& node) : FlatKernel(node), reduce_(reduce_of(node.attributes)) {}

  void run(const Run& run) override {
    const std::shared_ptr<Group> ranks = group(run);
    std::byte *mine = together(run), *all = mine + load_.together;
    for (size_t i = 0; i < load_.operands.size(); ++i) {
      const Operand& one = load_.operands[i];
      const auto* whole = run.input<std::byte>(i);
      if (one.alone) {
        ranks->reduce_scatter(values(whole, one.bytes), values(run.output<std::byte>(i), one.part), reduce_);
        continue;
      }
      for (size_t rank = 0; rank < load_.ranks; ++rank) {
        std::byte* to = all + rank * load_.together + one.at;
        if (one.size(rank) > 0) std::memcpy(to, whole + one.begin(rank), one.size(rank));
        std::memset(to + one.size(rank), 0, one.part - one.size(rank));
      }
    }
    if (load_.together == 0) return;
    ranks->reduce_scatter(values(std::as_const(all), load_.ranks * load_.together), values(mine, load_.together),
                          reduce_);
    for (size_t i = 0; i < load_.operands.size(); ++i)
      if (const Operand& one = load_.operands[i]; !one.alone && one.own > 0)
        std::memcpy(run.output<std::byte>(i), mine + one.at, one.own);
  }

 private:
  Reduce reduce_;
};

class GatherFlatKernel final : public FlatKernel {
 public:
  using FlatKernel::FlatKernel;

  void run(const Run& run) override {
    const std::shared_ptr<Group> ranks = group(run);
    std::byte *mine = together(run), *all = mine + load_.together;
    for (size_t i = 0; i < load_.operands.size(); ++i) {
      const Operand& one = load_.operands[i];
      const auto* part = run.input<std::byte>(i);
      if (one.alone)
        ranks->all_gather(values(part, one.part), values(run.output<std::byte>(i), one.bytes));
      else if (one.own > 0)
        std::memcpy(mine + one.at, part, one.own);
    }
    if (load_.together == 0) return;
    ranks->all_gather(values(std::as_const(mine), load_.together), values(all, load_.ranks * load_.together));
    for (size_t i = 0; i < load_.operands.size(); ++i)
      for (size_t rank = 0; rank < load_.ranks; ++rank)
        if (const Operand& one = load_.operands[i]; !one.alone && one.size(rank) > 0)
          std::memcpy(run.output<std::byte>(i) + one.begin(rank), all + rank * load_.together + one.at, one.size(rank));
  }
};

template <class FlatKind>
std::vector<Candidate> flat_candidates(const KernelRequest& request) {
  const Line line = line_of(request.node);
  Candidate candidate = row_major_candidate(request, to_string(line));
  candidate.line = line;
  if (request.node.device().type == DeviceType::cpu) candidate.workspace_bytes = Load(request.node).workspace();
  candidate.build = [&node = request.node] { return std::make_unique<FlatKind>(node); };
  return {std::move(candidate)};
}

const Op& registered_scatter_op = register_collective(
    {.name = "scatter_flat", .infer = infer_scatter, .amp_of = flat_amp},
    [](const Attributes& attributes) { return fmt::format("parts of the {} of ", name_of(reduce_of(attributes))); });
const Op& registered_gather_op =
    register_collective({.name = "gather_flat", .infer = infer_gather, .gradient = gather_gradient, .amp_of = flat_amp},
                        [](const Attributes& /*attributes*/) { return std::string("gather parts of "); });
[[maybe_unused]] const bool registered[] = {
    register_kernel("scatter_flat", DeviceType::cpu, flat_candidates<ScatterFlatKernel>),
    register_kernel("scatter_flat", DeviceType::cuda, flat_candidates<ScatterFlatKernel>),
    register_kernel("gather_flat", DeviceType::cpu, flat_candidates<GatherFlatKernel>),
    register_kernel("gather_flat", DeviceType::cuda, flat_candidates<GatherFlatKernel>),
};

}  // namespace

const Op& scatter_flat_op() { return registered_scatter_op; }
const Op& gather_flat_op() { return registered_gather_op; }

Slice flat_part(const Shape& whole, int64_t place, int64_t parts) {
  const int64_t count = whole.count(), part = part_elements(count, parts);
  return Slice::range(whole, std::min(place * part, count), std::min((place + 1) * part, count));
}

Tensor scatter_flat(const Tensor& whole, Axis axis, Reduce reduce, int64_t name) {
  return trace_op(scatter_flat_op(), {whole},
                  {{"axis", static_cast<int>(axis)},
                   {"ranks", ranks_along(axis)},
                   {"place", place_along(axis)},
                   {"reduce", static_cast<int>(reduce)},
                   {"communicator", 0},
                   {"names", std::span<const int64_t>(&name, 1)}});
}

Tensor gather_flat(const Tensor& part, const Shape& shape, Axis axis, int64_t name, bool is_parameter) {
  std::vector<int64_t> words{shape.rank()};
  words.insert(words.end(), shape.begin(), shape.end());
  return trace_op(gather_flat_op(), {part},
                  {{"axis", static_cast<int>(axis)},
                   {"ranks", ranks_along(axis)},
                   {"place", place_along(axis)},
                   {"communicator", 0},
                   {"names", std::span<const int64_t>(&name, 1)},
                   {"shapes", std::span<const int64_t>(words)},
                   {"parameter", is_parameter ? 1 : 0}});
}

}  // namespace bonfire::comm
