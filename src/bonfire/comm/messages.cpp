// A message travels as two: a header of fixed size, which says what comes, then the values in row-major order. What is
// sent lies in a slot, memory of the kernel's own, until both are gone: neither the arena nor the program waits
// for the receiver. Under mixed precision the sender's values may be narrower than they were traced with; the receiver
// widens them again.
#include "bonfire/comm/messages.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <mutex>
#include <vector>

#include "bonfire/base/error.h"
#include "bonfire/comm/collective_op.h"
#include "bonfire/graph/trace.h"
#include "bonfire/kernel/kernel.h"

namespace bonfire::comm {
namespace {

struct MessageHeader {
  int64_t extents[Shape::kMaxRank] = {};
  int64_t tag = 0;
  int32_t rank = 0;
  DType traced = DType::f32, sent = DType::f32;  // element types

  MessageHeader() = default;
  MessageHeader(const Shape& shape, DType traced, DType sent, int64_t tag)
      : tag(tag), rank(shape.rank()), traced(traced), sent(sent) {
    for (int i = 0; i < shape.rank(); ++i) extents[i] = shape[i];
  }

  Shape shape() const { return Shape(std::span(extents, static_cast<size_t>(rank))); }
  size_t bytes() const { return static_cast<size_t>(shape().count()) * size_of(sent); }
  std::string text() const { return fmt::format("{} {} with tag {}", name_of(traced), to_string(shape()), tag); }
  bool same_as(const MessageHeader& other) const {
    return shape() == other.shape() && traced == other.traced && tag == other.tag;
  }
};

OutputSpecs infer_send(const InferContext& context) { return {{{}, DType::f32, context.input(0).device}}; }

// The gradient of what was sent is what the receiver sends back.
Tensors send_gradient(const GradientContext& c) {
  const TensorSpec& spec = c.input_spec(0);
  if (!is_floating(spec.dtype)) return {Tensor()};
  const Attributes& attributes = c.attributes();
  return {receive(spec, axis_of(attributes), static_cast<int>(attributes.integer("peer")),
                  {.tag = attributes.integer("tag")})};
}

OutputSpecs infer_receive(const InferContext& context) {
  const Attributes& a = context.attributes;
  return {{a.ints("shape"),
           a.dtype("dtype"),
           {static_cast<DeviceType>(a.integer("device_type")), static_cast<int16_t>(a.integer("device_index"))}}};
}

Tensors receive_gradient(const GradientContext& c) {
  const Attributes& attributes = c.attributes();
  send(c.gradient(), axis_of(attributes), static_cast<int>(attributes.integer("peer")), attributes.integer("tag"));
  return {Tensor()};
}

Line line_to(const Attributes& attributes, Line::Kind kind) {
  return {.axis = axis_of(attributes), .kind = kind, .number = static_cast<int>(attributes.integer("peer"))};
}

// Memory of messages under way, all of one size, which comes back when they are gone: there are as many slots as were
// under way at a time.
class Slots : public std::enable_shared_from_this<Slots> {
 public:
  std::shared_ptr<std::byte> take(size_t bytes) {
    std::unique_ptr<std::byte[]> memory;
    {
      std::lock_guard lock(mutex_);
      if (!free_.empty()) {
        memory = std::move(free_.back());
        free_.pop_back();
      }
    }
    if (memory == nullptr) memory.reset(new std::byte[std::max<size_t>(1, bytes)]);
    return {memory.release(), [self = shared_from_this()](std::byte* data) {
              std::lock_guard lock(self->mutex_);
              self->free_.emplace_back(data);
            }};
  }

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<std::byte[]>> free_;
};

class SendKernel final : public Kernel {
 public:
  SendKernel(const GraphNode& node, const Layout& layout)
      : line_(line_to(node.attributes, Line::Kind::send)),
        spec_(node.inputs[0].spec()),
        layout_(layout),
        header_(spec_.shape, node.attributes.dtype("dtype"), spec_.dtype, node.attributes.integer("tag")) {}

  void run(const Run& run) override {
    AxisGroups& groups = AxisGroups::of(run);
    std::shared_ptr<std::byte> slot = slots_->take(spec_.bytes());
    if (!same_places(spec_.shape, layout_, {}))
      convert_layout(run.inputs[0], layout_, slot.get(), {}, spec_.shape, spec_.dtype);
    else if (spec_.bytes() > 0)
      std::memcpy(slot.get(), run.inputs[0], spec_.bytes());
    *run.output<float>() = 0;
    groups.post(*run.outbox, line_, [slot, header = header_, peer = line_.number](Group& group) {
      group.send({&header, sizeof header, DType::u8}, peer);
      group.send({slot.get(), header.bytes(), DType::u8}, peer);
    });
  }

 private:
  Line line_;
  TensorSpec spec_;
  Layout layout_;
  MessageHeader header_;
  std::shared_ptr<Slots> slots_ = std::make_shared<Slots>();
};

class ReceiveKernel final : public Kernel {
 public:
  explicit ReceiveKernel(const GraphNode& node)
      : receiver_(line_to(node.attributes, Line::Kind::receive), node.outputs[0], node.attributes.integer("tag")) {}

  void run(const Run& run) override { receiver_.receive(AxisGroups::of(run), run.output<std::byte>()); }

 private:
  MessageReceiver receiver_;
};

std::vector<Candidate> send_candidates(const KernelRequest& request) {
  Candidate candidate = row_major_candidate(request, to_string(line_to(request.node.attributes, Line::Kind::send)));
  candidate.line = line_to(request.node.attributes, Line::Kind::pack);
  if (request.arriving[0].block == 0) candidate.input_layouts[0] = request.arriving[0];
  candidate.build = [&node = request.node, layout = candidate.input_layouts[0]] {
    return std::make_unique<SendKernel>(node, layout);
  };
  return {std::move(candidate)};
}

std::vector<Candidate> receive_candidates(const KernelRequest& request) {
  const Line line = line_to(request.node.attributes, Line::Kind::receive);
  Candidate candidate = row_major_candidate(request, to_string(line));
  candidate.line = line;
  candidate.build = [&node = request.node] { return std::make_unique<ReceiveKernel>(node); };
  return {std::move(candidate)};
}

const Op& registered_send_op =
    register_collective({.name = "send", .infer = infer_send, .gradient = send_gradient}, kComparedByTag);
const Op& registered_receive_op =
    register_collective({.name = "receive", .infer = infer_receive, .gradient = receive_gradient}, kComparedByTag);
[[maybe_unused]] const bool messages_registered[] = {
    register_kernel("send", DeviceType::cpu, send_candidates),
    register_kernel("send", DeviceType::cuda, send_candidates),
    register_kernel("receive", DeviceType::cpu, receive_candidates),
    register_kernel("receive", DeviceType::cuda, receive_candidates),
};

}  // namespace

struct MessageReceiver::Inside {
  Line line;
  TensorSpec spec;
  MessageHeader header;
  Scratch scratch;

  void widen(const void* narrow, DType dtype, void* values) const {
    const auto count = static_cast<size_t>(spec.shape.count());
    dispatch(dtype, [&](auto from) {
      dispatch(spec.dtype, [&](auto to) {
        using From = typename decltype(from)::type;
        using To = typename decltype(to)::type;
        for (size_t i = 0; i < count; ++i)
          static_cast<To*>(values)[i] = static_cast<To>(static_cast<float>(static_cast<const From*>(narrow)[i]));
      });
    });
  }
};

MessageReceiver::MessageReceiver(const Line& line, const TensorSpec& spec, int64_t tag)
    : inside_(std::make_unique<Inside>(Inside{line, spec, {spec.shape, spec.dtype, spec.dtype, tag}, {}})) {}
MessageReceiver::~MessageReceiver() = default;

void MessageReceiver::receive(AxisGroups& groups, std::byte* values) {
  const Line& line = inside_->line;
  const TensorSpec& spec = inside_->spec;
  const std::shared_ptr<Group> group = groups.for_messages(line);
  MessageHeader found;
  group->receive({&found, sizeof found, DType::u8}, line.number);
  if (!found.same_as(inside_->header))
    throw_error<CommError>(
        "rank {} along {} has sent {}, and rank {} expects {} from it: ranks must send and receive the same values "
        "in the same order",
        line.number, name_of(line.axis), found.text(), group->rank(), inside_->header.text());
  if (found.sent == spec.dtype) return group->receive({values, spec.bytes(), DType::u8}, line.number);
  std::byte* narrow = inside_->scratch.room(found.bytes());
  group->receive({narrow, found.bytes(), DType::u8}, line.number);
  inside_->widen(narrow, found.sent, values);
}

const Op& send_op() { return registered_send_op; }
const Op& receive_op() { return registered_receive_op; }

Tensor send(const Tensor& value, Axis axis, int to, int64_t tag) {
  require_other("send", axis, to);
  return trace_op(send_op(), {value},
                  {{"axis", static_cast<int>(axis)}, {"peer", to}, {"tag", tag}, {"dtype", value.dtype()}});
}

Tensor receive(const TensorSpec& spec, Axis axis, int from, ReceiveOptions options) {
  require_other("receive", axis, from);
  Attributes attributes{{"axis", static_cast<int>(axis)},
                        {"peer", from},
                        {"tag", options.tag},
                        {"shape", spec.shape},
                        {"dtype", spec.dtype},
                        {"device_type", static_cast<int>(spec.device.type)},
                        {"device_index", static_cast<int>(spec.device.index)}};
  if (!options.requires_grad) return trace_op(receive_op(), std::initializer_list<OpInput>{}, std::move(attributes));
  // A history begins where something requires a gradient.
  Tensor beginning = Tensor::from<float>({0}, {1}, spec.device);
  beginning.set_requires_grad(true);
  return trace_op(receive_op(), {beginning}, std::move(attributes));
}

}  // namespace bonfire::comm
