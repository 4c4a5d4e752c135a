#pragma once
// Tensor: a handle to a value in a graph that may not have run yet. Calling an op appends a node; reading a value runs
// what is pending and waits for it. Copies share the value; a value never changes.
//
//   Tensor x = Tensor::from<float>({1, 2, 3, 4}, {2, 2});
//   float total = sum(x * x).item<float>();

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <iosfwd>
#include <span>
#include <string>
#include <vector>

#include "bonfire/base/intrusive_ptr.h"
#include "bonfire/tensor/storage.h"

namespace bonfire {

class Node;

// An internal reference to output `index` of a node. It keeps the node, but does not make the value live as a Tensor
// does.
struct Value {
  base::IntrusivePtr<Node> node;
  uint32_t index = 0;

  explicit operator bool() const { return static_cast<bool>(node); }
  const TensorSpec& spec() const;
  friend bool operator==(const Value&, const Value&) = default;
};

struct BackwardOptions {
  bool retain_graph = false;  // keep the history, so that backward can run through it again
  bool create_graph = false;  // record the gradients' own history, for second derivatives
};

class Tensor {
 public:
  Tensor() = default;
  explicit Tensor(Value value);
  Tensor(const Tensor& other);
  Tensor(Tensor&& other) noexcept : value_(std::move(other.value_)) {}
  Tensor& operator=(Tensor other) noexcept {
    std::swap(value_, other.value_);
    return *this;
  }
  ~Tensor();

  // Copies `values` (row-major) to `device`. ShapeError when their number does not fit the shape.
  template <class T>
  static Tensor from(std::span<const T> values, const Shape& shape, Device device = {}) {
    return from_bytes(std::as_bytes(values), {shape, dtype_of<T>(), device});
  }
  template <class T>
  static Tensor from(std::initializer_list<T> values, const Shape& shape, Device device = {}) {
    return from<T>(std::span<const T>(values.begin(), values.size()), shape, device);
  }
  static Tensor from_bytes(std::span<const std::byte> bytes, const TensorSpec& spec);
  static Tensor from_buffer(Buffer buffer, const TensorSpec& spec);  // row-major; shares the memory

  bool defined() const { return static_cast<bool>(value_); }
  // Of an undefined tensor these are GraphErrors that name the call and the module it is made in.
  const TensorSpec& spec() const { return known("spec"); }
  const Shape& shape() const { return known("shape").shape; }
  DType dtype() const { return known("dtype").dtype; }
  Device device() const { return known("device").device; }
  int64_t size(int axis) const {  // ShapeError when there is no such axis; it may count from the end
    const Shape& extents = known("size").shape;
    if (axis < -extents.rank() || axis >= extents.rank()) [[unlikely]]
      fail_axis(axis);
    return extents[axis];
  }
  int rank() const { return known("rank").shape.rank(); }
  const Value& value() const { return value_; }

  // Reading: commits what is pending, waits, and copies to the host.
  template <class T>
  T item() const {  // of a tensor with one element
    T result;
    read_item(dtype_of<T>(), &result);
    return result;
  }
  double item() const { return item<double>(); }
  template <class T>
  std::vector<T> to_vector() const {          // row-major, converted to T
    if constexpr (std::is_same_v<T, bool>) {  // std::vector<bool> has no bytes to write into
      std::vector<uint8_t> bytes = to_vector<uint8_t>();
      return {bytes.begin(), bytes.end()};
    } else {
      std::vector<T> values(static_cast<size_t>(shape().count()));
      read_into(dtype_of<T>(), values.data(), values.size());
      return values;
    }
  }
  void copy_to_host(std::span<std::byte> target) const;  // raw elements, row-major

  // Gradients. backward() adds to (or, after clear_grad, sets) the gradient of every variable and every leaf that
  // requires one; the loss must have one element.
  void backward(BackwardOptions options = {}) const;
  bool requires_grad() const;
  Tensor& set_requires_grad(bool required);  // of a leaf: a tensor without a history
  Tensor grad() const;                       // of a leaf after backward(); undefined before
  Tensor detach() const;                     // the same value without its history

  Tensor to(Device device) const;
  Tensor to(DType dtype) const;

 private:
  const TensorSpec& known(const char* call) const {
    if (!defined()) [[unlikely]]
      fail_undefined(call);
    return value_.spec();
  }
  [[noreturn]] static void fail_undefined(const char* call);
  [[noreturn]] void fail_axis(int axis) const;
  void read_item(DType dtype, void* target) const;
  void read_into(DType dtype, void* target, size_t count) const;

  Value value_;
};

std::ostream& operator<<(std::ostream& out, const Tensor& tensor);
std::string to_string(const Tensor& tensor);

// While one lives, ops on this thread record no history.
class NoGrad {
 public:
  NoGrad();
  ~NoGrad();
  NoGrad(const NoGrad&) = delete;
  NoGrad& operator=(const NoGrad&) = delete;

 private:
  bool before_;
};

// A number that may vary from step to step without changing the graph (a learning rate, a temperature): it is read each
// time a plan is submitted, also one that `compile` traced long ago. Copies share the number.
class Scalar {
 public:
  Scalar(double value = 0) : cell_(std::make_shared<double>(value)) {}
  void set(double value) const { *cell_ = value; }
  double get() const { return *cell_; }
  const void* number() const { return cell_.get(); }  // whose address tells it from others
  // As an operand of an op: a tensor of rank 0. `like` says which element type and device it must have.
  Tensor tensor(DType dtype, Device device) const;

 private:
  std::shared_ptr<double> cell_;
};

void commit();  // submits what this thread has pending
// Commits, and waits for every device; not for what other threads have submitted as ranks of a job: that waits for
// ranks, one of which may be this thread.
void synchronize();
void manual_seed(uint64_t seed);  // commits, and begins the random numbers again

}  // namespace bonfire
