#include "bonfire/graph/tensor.h"

#include <cstring>
#include <ostream>
#include <sstream>

#include "bonfire/base/error.h"
#include "bonfire/graph/engine.h"
#include "bonfire/graph/fetched.h"
#include "bonfire/graph/node.h"
#include "bonfire/graph/trace.h"
#include "bonfire/graph/variable.h"

namespace bonfire {

namespace {

OutputSpecs infer_detach(const InferContext& context) { return {context.input(0)}; }
const Op& detach_op = register_op({.name = "detach", .infer = infer_detach, .traits = Trait::view});

NodePtr make_feed(Buffer buffer, const TensorSpec& spec) {
  auto node = base::make_intrusive<Node>();
  node->leaf = LeafKind::feed;
  node->committed = true;
  node->outputs.emplace_back(spec).buffer = std::move(buffer);
  return node;
}

// Where the bytes of a value lie once everything that writes them is done, and how they are laid out.
struct Located {
  Buffer buffer;
  Layout layout;
};

void wait_for(Completion* submission) {
  if (submission == nullptr) return;
  try {
    submission->wait();
  } catch (...) {
    submission->reported = true;
    throw;
  }
}

Located locate(const Value& value) {
  Node& node = *value.node;
  if (Trace::current().compiling)
    throw_error<GraphError>(
        "[item] a value is read inside a compiled step; return it from the step and read it outside");
  if (node.leaf == LeafKind::scalar || node.leaf == LeafKind::random)
    throw_error<GraphError>("[item] this tensor is an input of the step, not a result: read the Scalar instead");
  if (node.leaf == LeafKind::variable) {
    VariableState& state = *node.variable;
    BONFIRE_CHECK(state.leaf == &node, "a replaced version of a variable was not kept");
    if (state.pending_trace == Trace::current().id() && state.pending) commit();
    if (node.leaf == LeafKind::variable) {
      if (!state.failure.empty()) throw_error<GraphError>("{}", state.failure);
      wait_for(state.ready.get());
      return {state.memory(), state.layout};
    }
  }
  if (!node.committed) {
    if (node.trace != Trace::current().id())
      throw_error<GraphError>(
          "[item] this tensor was traced by another thread or inside a compiled step and has no value here");
    commit();
  }
  NodeOutput& output = node.outputs[value.index];
  BONFIRE_CHECK(static_cast<bool>(output.buffer), "a live value was not kept");
  wait_for(output.ready.get());
  return {output.buffer, {}};
}

template <class T>
constexpr bool kHalf = std::is_same_v<T, bfloat16> || std::is_same_v<T, float16>;

template <class From, class To>
void convert(const From* source, To* target, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    if constexpr (kHalf<From> || kHalf<To>) {
      target[i] = static_cast<To>(static_cast<float>(source[i]));
    } else {
      target[i] = static_cast<To>(source[i]);
    }
  }
}

}  // namespace

void Tensor::fail_undefined(const char* call) {
  throw_error<GraphError>("[{}] the tensor is undefined{}; give it a value first", call, in_current_module());
}

void Tensor::fail_axis(int axis) const {
  throw_error<ShapeError>("[size] axis {} is out of range for {}{}", axis, to_string(spec()), in_current_module());
}

uint64_t values_fetched() { return StepContext::current().place.values_fetched; }

Tensor::Tensor(Value value) : value_(std::move(value)) {
  if (value_) value_.node->outputs[value_.index].handles.fetch_add(1, std::memory_order_relaxed);
}
Tensor::Tensor(const Tensor& other) : Tensor(other.value_) {}
Tensor::~Tensor() {
  if (value_) value_.node->outputs[value_.index].handles.fetch_sub(1, std::memory_order_relaxed);
}

Tensor Tensor::from_bytes(std::span<const std::byte> bytes, const TensorSpec& spec) {
  if (bytes.size() != spec.bytes())
    throw_error<ShapeError>("[from] {} bytes were given, shape {} of {} needs {}", bytes.size(), to_string(spec.shape),
                            name_of(spec.dtype), spec.bytes());
  Buffer buffer{std::make_shared<Storage>(spec.device, bytes.size())};
  memory_of(spec.device).copy_from_host(buffer.data(), bytes.data(), bytes.size());
  return from_buffer(std::move(buffer), spec);
}

Tensor Tensor::from_buffer(Buffer buffer, const TensorSpec& spec) {
  if (buffer.storage == nullptr || buffer.offset + spec.bytes() > buffer.storage->bytes())
    throw_error<ShapeError>("[from_buffer] the buffer has {} bytes from offset {}, {} needs {}",
                            buffer.storage == nullptr ? 0 : buffer.storage->bytes(), buffer.offset, to_string(spec),
                            spec.bytes());
  return Tensor(Value{make_feed(std::move(buffer), spec), 0});
}

void Tensor::copy_to_host(std::span<std::byte> target) const {
  if (size_t bytes = known("copy_to_host").bytes(); target.size() != bytes)
    throw_error<ShapeError>("[copy_to_host] the target has {} bytes, {} has {}", target.size(), to_string(spec()),
                            bytes);
  Located located = locate(value_);
  ++StepContext::current().place.values_fetched;
  DeviceMemory& memory = memory_of(device());
  if (located.layout.row_major()) {
    memory.copy_to_host(target.data(), located.buffer.data(), target.size());
    return;
  }
  std::vector<std::byte> raw(target.size());
  memory.copy_to_host(raw.data(), located.buffer.data(), raw.size());
  convert_layout(raw.data(), located.layout, target.data(), {}, shape(), dtype());
}

void Tensor::read_item(DType as, void* target) const {
  if (int64_t count = known("item").shape.count(); count != 1)
    throw_error<ShapeError>("[item] the tensor has {} elements (shape {}); item() needs exactly one", count,
                            to_string(shape()));
  read_into(as, target, 1);
}

void Tensor::read_into(DType as, void* target, size_t count) const {
  if (as == dtype()) {
    copy_to_host({static_cast<std::byte*>(target), count * size_of(as)});
    return;
  }
  std::vector<std::byte> raw(spec().bytes());
  copy_to_host(raw);
  dispatch(dtype(), [&](auto from) {
    dispatch(as, [&](auto to) {
      convert(reinterpret_cast<const typename decltype(from)::type*>(raw.data()),
              static_cast<typename decltype(to)::type*>(target), count);
    });
  });
}

bool Tensor::requires_grad() const {
  known("requires_grad");
  return value_.node->outputs[value_.index].requires_grad;
}

Tensor& Tensor::set_requires_grad(bool required) {
  known("set_requires_grad");
  if (value_.node->recorded)
    throw_error<GraphError>("[requires_grad] only a tensor without a history can be told; use detach() for this one");
  value_.node->outputs[value_.index].requires_grad = required;
  return *this;
}

Tensor Tensor::grad() const {
  known("grad");
  const Node& node = *value_.node;
  if (node.variable) return Variable(node.variable).grad();
  return node.leaf_gradient ? Variable(node.leaf_gradient).value() : Tensor();
}

Tensor Tensor::detach() const {
  // A node of its own, so that the value has no history; the planner makes it an alias.
  NoGrad no_grad;
  return trace_op(detach_op, {*this});
}

Tensor Scalar::tensor(DType dtype, Device device) const {
  return Tensor(Trace::current().scalar(cell_, dtype, device));
}

namespace {

void print_level(std::ostream& out, const std::vector<double>& values, const Shape& shape, int axis, int64_t offset,
                 bool floating) {
  constexpr int64_t kEdge = 3;  // elements shown at each end of a long axis
  if (axis == shape.rank()) {
    if (floating) {
      out << values[static_cast<size_t>(offset)];
    } else {
      out << static_cast<int64_t>(values[static_cast<size_t>(offset)]);
    }
    return;
  }
  int64_t stride = 1;
  for (int i = axis + 1; i < shape.rank(); ++i) stride *= shape[i];
  bool last = axis == shape.rank() - 1;
  out << '[';
  for (int64_t i = 0; i < shape[axis]; ++i) {
    if (i > 0) out << (last ? ", " : ",\n" + std::string(static_cast<size_t>(axis) + 1, ' '));
    if (shape[axis] > 2 * kEdge && i == kEdge) {
      out << "...";
      i = shape[axis] - kEdge - 1;
      continue;
    }
    print_level(out, values, shape, axis + 1, offset + i * stride, floating);
  }
  out << ']';
}

}  // namespace

std::ostream& operator<<(std::ostream& out, const Tensor& tensor) {
  if (!tensor.defined()) return out << "undefined";
  print_level(out, tensor.to_vector<double>(), tensor.shape(), 0, 0, is_floating(tensor.dtype()));
  return out << " (" << to_string(tensor.spec()) << ")";
}

std::string to_string(const Tensor& tensor) {
  std::ostringstream out;
  out << tensor;
  return out.str();
}

}  // namespace bonfire
