#include "bonfire/graph/variable.h"

#include "bonfire/base/error.h"
#include "bonfire/graph/engine.h"
#include "bonfire/graph/sliced_value.h"
#include "bonfire/graph/step_context.h"
#include "bonfire/graph/trace.h"
#include "bonfire/graph/variable_copies.h"
#include "bonfire/graph/variable_moves.h"
#include "bonfire/graph/variable_shares.h"

namespace bonfire {

namespace {

std::atomic<uint64_t> moves{0};

const Variable* copy_here(const Variable& variable) {
  const VariableCopies* copies = StepContext::current().place.copies;
  return copies == nullptr ? nullptr : copies->find(variable);
}

// Until nothing that runs uses the variable: nothing of this thread, and not the submission that last wrote it, which
// may be another thread's.
void wait_for_submissions(VariableState& state) {
  engine().synchronize();
  if (state.ready == nullptr || !state.failure.empty()) return;
  try {
    state.ready->wait();
  } catch (const std::exception& error) {
    state.failure = error.what();
  }
}

// Host-side changes wait for what is pending too.
void settle(VariableState& state) {
  commit();
  wait_for_submissions(state);
}

std::shared_ptr<Storage> late_storage(Device device, size_t bytes) {
  return std::make_shared<Storage>(device, bytes, Storage::WhenUsed());
}

// Nobody has used it: no submission, no handle.
bool is_untouched(const VariableState& state) { return !state.has_values && state.leaf == nullptr; }

std::string called(const VariableState& state) { return state.name.empty() ? "without a name" : state.name; }

// Whatever was found out about its place in memory holds no longer.
void take_new_place(VariableState& state) {
  state.layout = {};
  state.layout_fixed = false;
  state.buffer = {};
  note_variable_move();
}

// Whoever still holds the current version keeps it, in memory of its own.
void keep_for_holders(VariableState& state) {
  if (state.leaf == nullptr) return;
  Node& leaf = *state.leaf;
  std::vector<std::byte> bytes = Variable(base::IntrusivePtr<VariableState>(&state)).save_stored();
  Buffer buffer{std::make_shared<Storage>(state.spec.device, bytes.size())};
  memory_of(state.spec.device).copy_from_host(buffer.data(), bytes.data(), bytes.size());
  leaf.leaf = LeafKind::feed;
  leaf.committed = true;
  leaf.outputs[0].buffer = std::move(buffer);
  state.leaf = nullptr;
}

}  // namespace

VariableState::~VariableState() = default;

void VariableState::make_first_values() {
  if (!buffer) buffer = {late_storage(stored.device, stored.bytes())};
  if (first_values) {
    const Slice here = slice == nullptr ? Slice(spec.shape) : *slice;
    if (stored.device.type == DeviceType::cpu && layout.row_major()) {
      fill_slice(first_values, here, stored.dtype, static_cast<std::byte*>(buffer.data()));
    } else {
      std::vector<std::byte> row_major(stored.bytes()), raw(stored.bytes());
      fill_slice(first_values, here, stored.dtype, row_major.data());
      convert_layout(row_major.data(), {}, raw.data(), layout, stored.shape, stored.dtype);
      memory_of(stored.device).copy_from_host(buffer.data(), raw.data(), raw.size());
    }
    first_values = nullptr;
  }
  has_values = true;
}

uint64_t variable_moves() { return moves.load(std::memory_order_relaxed); }
void note_variable_move() { moves.fetch_add(1, std::memory_order_relaxed); }

void VariableCopies::add(const Variable& original, Device device) {
  Variable& copy = copies_[&original.state()];
  if (copy.defined()) return;
  copy = Variable({original.shape(), original.dtype(), device}, original.name());
  copy.state().packing = original.packing();
  copy.keep_slice(original.slice());
  copy.set_requires_grad(original.requires_grad());
  elsewhere_ |= device != original.device();
}

const Variable* VariableCopies::find(const Variable& variable) const {
  auto found = copies_.find(variable.pointer().get());
  return found == copies_.end() ? nullptr : &found->second;
}

UseCopies::UseCopies(const VariableCopies& copies)
    : before_(std::exchange(StepContext::current().place.copies, &copies)) {}
UseCopies::~UseCopies() { StepContext::current().place.copies = before_; }

bool copies_are_elsewhere() {
  const VariableCopies* copies = StepContext::current().place.copies;
  return copies != nullptr && copies->are_elsewhere();
}

Variable here(const Variable& variable) {
  const Variable* copy = copy_here(variable);
  return copy == nullptr ? variable : *copy;
}

Variable::Variable(const TensorSpec& spec, std::string name) : state_(base::make_intrusive<VariableState>(spec)) {
  require_device(spec.device);
  state_->name = std::move(name);
}

void Variable::fail_undefined(const char* call) {
  throw_error<GraphError>(
      "[{}] the variable is undefined{}: it was never made (a layer without a bias has an undefined one); ask "
      "defined() first",
      call, in_current_module());
}

namespace {
VariableShares* shares() { return StepContext::current().shares; }
bool is_shared_out(const VariableState& state) { return state.slice->is_range() && shares() != nullptr; }
}  // namespace

Tensor Variable::value() const {
  if (const Variable* copy = copy_here(*this)) return copy->value();
  if (known("value").slice != nullptr) [[unlikely]]
    return is_shared_out(*state_) ? shares()->whole(*this) : whole_of_slice(stored(), *state_->slice);
  if (!state_->failure.empty()) throw_error<GraphError>("{}", state_->failure);
  return Tensor(Trace::current().read(*this));
}

Tensor Variable::stored() const {
  if (const Variable* copy = copy_here(*this)) return copy->stored();
  if (!known("stored").failure.empty()) throw_error<GraphError>("{}", state_->failure);
  return Tensor(Trace::current().read(*this));
}

void Variable::assign(const Tensor& value) const {
  if (const Variable* copy = copy_here(*this)) return copy->assign(value);
  known("assign");
  if (!value.defined())
    throw_error<GraphError>("[assign] the value for variable {} is an undefined tensor{}", name(), in_current_module());
  if (!(value.spec() == spec()))
    throw_error<ShapeError>("[assign] variable {} is {}, the value is {}", name(), to_string(spec()),
                            to_string(value.spec()));
  Tensor own = value;
  if (const Slice* slice = state_->slice.get())
    own = is_shared_out(*state_) ? shares()->part(value, *slice) : slice_of_whole(value, *slice);
  Trace::current().assign(*this, own.value());
}

void Variable::assign_stored(const Tensor& value) const {
  if (const Variable* copy = copy_here(*this)) return copy->assign_stored(value);
  if (known("assign_stored").slice == nullptr) return assign(value);
  if (!value.defined() || !(value.spec() == state_->stored))
    throw_error<ShapeError>("[assign_stored] of variable {} {} is here, {}; the value is {}", name(),
                            to_string(*state_->slice), to_string(state_->stored),
                            value.defined() ? to_string(value.spec()) : "undefined");
  Trace::current().assign(*this, value.value());
}

void Variable::load(std::span<const std::byte> row_major) const {
  if (const Variable* copy = copy_here(*this)) return copy->load(row_major);
  if (row_major.size() != known("load").spec.bytes())
    throw_error<ShapeError>("[load] variable {} is {} ({} bytes), {} bytes were given", name(), to_string(spec()),
                            spec().bytes(), row_major.size());
  if (state_->slice == nullptr) return load_stored(row_major);
  std::vector<std::byte> part(state_->stored.bytes());
  copy_overlaps(overlaps(Slice(shape()), *state_->slice), size_of(dtype()), row_major.data(), part.data());
  load_stored(part);
}

void Variable::load_stored(std::span<const std::byte> row_major) const {
  if (const Variable* copy = copy_here(*this)) return copy->load_stored(row_major);
  VariableState& state = known("load_stored");
  const TensorSpec& stored = state.stored;
  if (row_major.size() != stored.bytes())
    throw_error<ShapeError>("[load_stored] of variable {} {} is here ({} bytes), {} bytes were given", name(),
                            to_string(slice()), stored.bytes(), row_major.size());
  settle(state);
  keep_for_holders(state);
  if (!state.buffer) state.buffer = {late_storage(stored.device, stored.bytes())};
  std::vector<std::byte> raw(row_major.size());
  convert_layout(row_major.data(), {}, raw.data(), state.layout, stored.shape, stored.dtype);
  memory_of(stored.device).copy_from_host(state.buffer.data(), raw.data(), raw.size());
  state.first_values = nullptr;
  state.has_values = true;
  state.ready = nullptr;
  state.failure.clear();
  ++state.version;
}

void Variable::set_first_values(FirstValues values) const {
  if (const Variable* copy = copy_here(*this)) return copy->set_first_values(std::move(values));
  VariableState& state = known("set_first_values");
  if (!is_untouched(state)) {
    settle(state);
    keep_for_holders(state);
    if (!values && state.buffer && state.buffer.storage->is_allocated())
      memory_of(device()).fill_zero(state.buffer.data(), state.stored.bytes());
  }
  state.first_values = std::move(values);
  state.has_values = false;
  state.ready = nullptr;
  state.failure.clear();
  ++state.version;
}

Layout Variable::save_as_it_lies(std::span<std::byte> target) const {
  if (const Variable* copy = copy_here(*this)) return copy->save_as_it_lies(target);
  if (size_t bytes = known("save_as_it_lies").stored.bytes(); target.size() != bytes)
    throw_error<ShapeError>("[save_as_it_lies] the target has {} bytes, variable {} has {}", target.size(), name(),
                            bytes);
  settle(*state_);
  if (!state_->failure.empty()) throw_error<GraphError>("{}", state_->failure);
  memory_of(device()).copy_to_host(target.data(), state_->memory().data(), target.size());
  return state_->layout;
}

std::vector<std::byte> Variable::save_stored() const {
  if (const Variable* copy = copy_here(*this)) return copy->save_stored();
  const TensorSpec& stored = known("save").stored;
  std::vector<std::byte> raw(stored.bytes());
  Layout layout = save_as_it_lies(raw);
  if (same_places(stored.shape, layout, {})) return raw;
  std::vector<std::byte> row_major(raw.size());
  convert_layout(raw.data(), layout, row_major.data(), {}, stored.shape, stored.dtype);
  return row_major;
}

std::vector<std::byte> Variable::save() const {
  if (const Variable* copy = copy_here(*this)) return copy->save();
  if (known("save").slice != nullptr)
    throw_error<GraphError>(
        "[save] of variable {} only {} is here; fleet::gather() puts it together (a collective call), save_stored() "
        "gives what is here",
        called(*state_), to_string(*state_->slice));
  return save_stored();
}

Slice Variable::slice() const {
  const VariableState& state = known("slice");
  return state.slice == nullptr ? Slice(state.spec.shape) : *state.slice;
}

void Variable::set_packed(int axis, int64_t blocks) const {
  VariableState& state = known("set_packed");
  const int rank = state.spec.shape.rank(), packed = axis < 0 ? axis + rank : axis;
  if (packed < 0 || packed >= rank || blocks < 1 || state.spec.shape[packed] % blocks != 0)
    throw_error<ShapeError>("[set_packed] variable {} is {}: its axis {} is not {} blocks of equal size", called(state),
                            to_string(state.spec), axis, blocks);
  state.packing = {packed, blocks};
}

Slice Variable::part(int axis, int64_t index, int64_t parts) const {
  const VariableState& state = known("part");
  const int rank = state.spec.shape.rank(), cut = axis < 0 ? axis + rank : axis;
  if (cut < 0 || cut >= rank)
    throw_error<ShapeError>("[part] variable {} is {}: it has no axis {}", called(state), to_string(state.spec), axis);
  return Slice::part(state.spec.shape, cut, index, parts, cut == state.packing.axis ? state.packing.blocks : 1);
}

void Variable::keep_slice(const Slice& kept) const {
  if (const Variable* copy = copy_here(*this)) return copy->keep_slice(kept);
  VariableState& state = known("keep_slice");
  const Slice before = slice();
  if (kept.whole() != shape())
    throw_error<ShapeError>("[keep_slice] variable {} is {}, the slice is {}", name(), to_string(spec()),
                            to_string(kept));
  if (kept == before) return;
  std::vector<std::byte> values;
  if (!is_untouched(state)) {
    const std::vector<Overlap> common = overlaps(before, kept);
    if (count_of(common) != kept.count())
      throw_error<GraphError>("[keep_slice] of variable {} only {} is here, not all of {}; fleet::gather() it first",
                              called(state), to_string(before), to_string(kept));
    const std::vector<std::byte> all = save_stored();
    values.resize(static_cast<size_t>(kept.count()) * size_of(dtype()));
    copy_overlaps(common, size_of(dtype()), all.data(), values.data());
    keep_for_holders(state);
  }
  state.slice = kept.is_all() ? nullptr : std::make_shared<const Slice>(kept);
  state.stored.shape = kept.local();
  take_new_place(state);
  if (state.has_values) load_stored(values);
  state.gradient_is_clear = true;
  if (!state.gradient) return;
  const Variable gradient(state.gradient);
  gradient.set_first_values({});
  gradient.keep_slice(kept);
}

void Variable::move_to(Device target) const {
  VariableState& state = known("move_to");
  if (target == state.spec.device) return;
  require_device(target);
  std::vector<std::byte> bytes;
  if (!is_untouched(state)) {
    bytes = save_stored();
    keep_for_holders(state);
  }
  state.spec.device = state.stored.device = target;
  take_new_place(state);
  if (state.has_values) load_stored(bytes);
  state.gradient_is_clear = true;
  if (state.gradient) Variable(state.gradient).move_to(target);
}

Tensor Variable::grad() const {
  if (const Variable* copy = copy_here(*this)) return copy->grad();
  if (known("grad").gradient_is_clear || !state_->gradient) return {};
  return Variable(state_->gradient).value();
}

Tensor Variable::stored_grad() const {
  if (const Variable* copy = copy_here(*this)) return copy->stored_grad();
  if (known("stored_grad").gradient_is_clear || !state_->gradient) return {};
  return Variable(state_->gradient).stored();
}

Variable Variable::grad_variable() const {
  if (const Variable* copy = copy_here(*this)) return copy->grad_variable();
  if (!known("grad_variable").gradient) {
    Variable gradient(spec(), name().empty() ? std::string() : name() + ".grad");
    gradient.keep_slice(slice());
    state_->gradient = gradient.pointer();
  }
  return Variable(state_->gradient);
}

void Variable::clear_grad() const {
  if (const Variable* copy = copy_here(*this)) return copy->clear_grad();
  known("clear_grad").gradient_is_clear = true;
}

void Variable::keep_version_for_holders() const {
  if (state_->leaf != nullptr && state_->leaf->wanted()) keep_for_holders(*state_);
}

void Variable::rebase(Buffer buffer) const {
  VariableState& state = known("rebase");
  const size_t bytes = state.stored.bytes();
  BONFIRE_CHECK(buffer.storage->device() == device() && buffer.offset + bytes <= buffer.storage->bytes());
  DeviceMemory& memory = memory_of(device());
  if (state.has_values) {
    wait_for_submissions(state);           // what is pending finds the memory when it is submitted
    std::vector<std::byte> values(bytes);  // layout and all
    memory.copy_to_host(values.data(), state.buffer.data(), bytes);
    memory.copy_from_host(buffer.data(), values.data(), bytes);
  } else if (buffer.storage->is_allocated()) {
    memory.fill_zero(buffer.data(), bytes);
  }
  state.buffer = std::move(buffer);
}

namespace {
size_t aligned_bytes(const Variable& variable) {
  constexpr size_t kAlignment = 64;
  return (variable.stored_spec().bytes() + kAlignment - 1) / kAlignment * kAlignment;
}
}  // namespace

size_t contiguous_bytes(std::span<const Variable> variables) {
  size_t total = 0;
  for (const Variable& variable : variables) total += aligned_bytes(variable);
  return total;
}

void make_contiguous(std::span<const Variable> variables, std::shared_ptr<Storage> storage) {
  if (variables.empty()) return;
  const size_t total = contiguous_bytes(variables);
  if (storage == nullptr) {
    storage = late_storage(variables[0].device(), total);
  } else {
    memory_of(variables[0].device()).fill_zero(storage->data(), total);
  }
  size_t offset = 0;
  for (const Variable& variable : variables) {
    variable.rebase({storage, offset});
    offset += aligned_bytes(variable);
  }
}

}  // namespace bonfire
