#pragma once
// Variable: memory with a name that training changes: parameters, gradients, optimizer state, running statistics.
// Reading one gives the value of its newest version; assigning appends the update to the trace. An update happens in
// place unless the version it replaces is still wanted, by a handle or by a history whose backward pass will read it:
// then that version gets memory of its own first.
//
// Making one, giving it first values and moving it take no memory: that comes with the first submission that uses it,
// or when it is loaded or saved. A variable may hold a slice of what it stands for (graph/slice.h). Users still see the
// whole: its shape, its first values, its value in a step (which a pass must share out, graph/sliced_value.h). What is
// there is stored(); nothing here asks other ranks for the rest, which fleet::gather() does.

#include <memory>
#include <span>
#include <string>

#include "bonfire/graph/first_values.h"
#include "bonfire/graph/node.h"
#include "bonfire/graph/slice.h"
#include "bonfire/graph/step_state.h"
#include "bonfire/graph/tensor.h"

namespace bonfire {

class Variable;

class VariableState : public base::RefCounted<VariableState> {
 public:
  explicit VariableState(const TensorSpec& variable_spec) : spec(variable_spec), stored(variable_spec) {}
  ~VariableState();

  TensorSpec spec;                     // of the whole
  TensorSpec stored;                   // of what the memory has of it
  std::shared_ptr<const Slice> slice;  // null: all of it
  Packing packing;
  std::string name;
  Layout layout;  // of the memory; fixed by the first plan that uses the variable
  bool layout_fixed = false;
  Buffer buffer;             // null, or not allocated yet, until it has values
  bool has_values = false;   // in the buffer
  FirstValues first_values;  // until then; empty: zeros
  uint64_t version = 0;
  StepState<bool> requires_grad{false};
  std::shared_ptr<Completion> ready;  // the submission that last wrote it
  std::string failure;                // why its content cannot be trusted, until it is loaded again

  Node* leaf = nullptr;  // this version's leaf node while someone holds it
  Value pending;         // what the current trace has assigned
  uint64_t pending_trace = 0;
  uint32_t pending_position = 0;  // of the pending assignment in that trace

  base::IntrusivePtr<VariableState> gradient;  // once made, always the same
  StepState<bool> gradient_is_clear{true};     // the next backward writes instead of adding

  Buffer& memory() {  // with its values, which it gets now if it has none
    if (!has_values) [[unlikely]]
      make_first_values();
    return buffer;
  }

 private:
  void make_first_values();
};

class Variable {
 public:
  Variable() = default;                                              // undefined
  explicit Variable(const TensorSpec& spec, std::string name = {});  // zeros, which take no memory yet
  explicit Variable(base::IntrusivePtr<VariableState> state) : state_(std::move(state)) {}
  template <class T>
  static Variable from(std::span<const T> values, const Shape& shape, Device device = {}) {
    Variable variable({shape, dtype_of<T>(), device});
    variable.load(std::as_bytes(values));
    return variable;
  }

  bool defined() const { return static_cast<bool>(state_); }
  // Whatever is asked of an undefined variable (the bias of a layer that has none) is a GraphError that names the call.
  const TensorSpec& spec() const { return known("spec").spec; }
  const Shape& shape() const { return known("shape").spec.shape; }
  DType dtype() const { return known("dtype").spec.dtype; }
  Device device() const { return known("device").spec.device; }
  const std::string& name() const { return known("name").name; }

  Tensor value() const;
  operator Tensor() const { return value(); }
  void assign(const Tensor& value) const;                 // traced; ShapeError when the specs differ
  void load(std::span<const std::byte> row_major) const;  // all of it, at once; waits for submissions that use it
  std::vector<std::byte> save() const;                    // at once, row-major; GraphError where this is a slice
  void move_to(Device device) const;                      // keeps the value; clears the gradient
  // From now on, by rule: what has no memory yet gets none for it.
  void set_first_values(FirstValues values) const;
  const FirstValues& first_values() const { return known("first_values").first_values; }  // empty: zeros, or it is used

  // What of it is here, which for most variables is all of it.
  Slice slice() const;
  // The axis packs that many matrices of equal size (query, key and value; the gates of an LSTM): a part of it has its
  // share of each. ShapeError where they do not divide it.
  void set_packed(int axis, int64_t blocks) const;
  const Packing& packing() const { return known("packing").packing; }
  // Of `parts` parts of an axis the one that is number `index`, as Slice::part cuts it.
  Slice part(int axis, int64_t index, int64_t parts) const;
  const TensorSpec& stored_spec() const { return known("stored_spec").stored; }
  Tensor stored() const;                                         // in the step
  void assign_stored(const Tensor& value) const;                 // in the step
  void load_stored(std::span<const std::byte> row_major) const;  // at once
  std::vector<std::byte> save_stored() const;                    // at once, row-major
  Layout save_as_it_lies(std::span<std::byte> target) const;     // the same without reordering: returns the order
  // Keeps that slice of what is here, of its values or first values, and its gradient likewise, which is cleared.
  // ShapeError where the slice is of another shape, GraphError where values are not here.
  void keep_slice(const Slice& slice) const;

  bool requires_grad() const { return known("requires_grad").requires_grad; }
  void set_requires_grad(bool required) const { known("set_requires_grad").requires_grad = required; }
  Tensor grad() const;             // undefined when there is none, or it is cleared
  Tensor stored_grad() const;      // what of it is here, likewise
  Variable grad_variable() const;  // made at first use
  void clear_grad() const;         // sets a flag: the next backward writes

  // Gives the variable the memory `buffer` (same bytes as are stored), with its value, if any, moved there. For
  // contiguous groups.
  void rebase(Buffer buffer) const;

  // Whoever still wants the current version gets memory of their own, because an update in place is coming.
  void keep_version_for_holders() const;

  VariableState& state() const { return known("state"); }
  const base::IntrusivePtr<VariableState>& pointer() const { return state_; }
  friend bool operator==(const Variable&, const Variable&) = default;

 private:
  VariableState& known(const char* call) const {
    if (!defined()) [[unlikely]]
      fail_undefined(call);
    return *state_;
  }
  [[noreturn]] static void fail_undefined(const char* call);

  base::IntrusivePtr<VariableState> state_;
};

// A variable that is trained.
class Parameter : public Variable {
 public:
  Parameter() = default;
  explicit Parameter(Variable variable) : Variable(std::move(variable)) { set_requires_grad(true); }
};

// Lays the variables out one after the other (each aligned to 64 bytes), in the order given: in one allocation, which
// is made when one of them has values or gets them, or in `storage`, which has contiguous_bytes() at least.
void make_contiguous(std::span<const Variable> variables, std::shared_ptr<Storage> storage = nullptr);
size_t contiguous_bytes(std::span<const Variable> variables);

}  // namespace bonfire
