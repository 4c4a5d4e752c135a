#include "bonfire/graph/variable.h"

#include "bonfire/base/error.h"
#include "bonfire/graph/engine.h"
#include "bonfire/graph/trace.h"
#include "bonfire/graph/variable_copies.h"
#include "bonfire/graph/variable_moves.h"

namespace bonfire {

namespace {

std::atomic<uint64_t> moves{0};

const Variable* copy_here(const Variable& variable) {
  const VariableCopies* copies = StepContext::current().place.copies;
  return copies == nullptr ? nullptr : copies->find(variable);
}

// Until nothing that runs uses the variable: nothing of this thread, and not the launch that last wrote it, which may
// be another thread's.
void wait_for_launches(VariableState& state) {
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
  wait_for_launches(state);
}

void ensure_buffer(VariableState& state) {
  if (state.buffer) return;
  state.buffer = {std::make_shared<Storage>(state.spec.device, state.spec.bytes())};
  memory_of(state.spec.device).fill_zero(state.buffer.data(), state.spec.bytes());
}

// Whoever still holds the current version keeps it, in memory of its own.
void keep_for_holders(VariableState& state) {
  if (state.leaf == nullptr) return;
  Node& leaf = *state.leaf;
  std::vector<std::byte> bytes = Variable(base::IntrusivePtr<VariableState>(&state)).save();
  Buffer buffer{std::make_shared<Storage>(state.spec.device, bytes.size())};
  memory_of(state.spec.device).copy_from_host(buffer.data(), bytes.data(), bytes.size());
  leaf.leaf = LeafKind::feed;
  leaf.committed = true;
  leaf.outputs[0].buffer = std::move(buffer);
  state.leaf = nullptr;
}

}  // namespace

VariableState::~VariableState() = default;

uint64_t variable_moves() { return moves.load(std::memory_order_relaxed); }
void note_variable_move() { moves.fetch_add(1, std::memory_order_relaxed); }

void VariableCopies::add(const Variable& original, Device device) {
  Variable& copy = copies_[&original.state()];
  if (copy.defined()) return;
  copy = Variable({original.shape(), original.dtype(), device}, original.name());
  copy.set_requires_grad(original.requires_grad());
}

const Variable* VariableCopies::find(const Variable& variable) const {
  auto found = copies_.find(variable.pointer().get());
  return found == copies_.end() ? nullptr : &found->second;
}

UseCopies::UseCopies(const VariableCopies& copies)
    : before_(std::exchange(StepContext::current().place.copies, &copies)) {}
UseCopies::~UseCopies() { StepContext::current().place.copies = before_; }

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

Tensor Variable::value() const {
  if (const Variable* copy = copy_here(*this)) return copy->value();
  if (!known("value").failure.empty()) throw_error<GraphError>("{}", state_->failure);
  ensure_buffer(*state_);
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
  ensure_buffer(*state_);
  Trace::current().assign(*this, value.value());
}

void Variable::load(std::span<const std::byte> row_major) const {
  if (const Variable* copy = copy_here(*this)) return copy->load(row_major);
  if (row_major.size() != known("load").spec.bytes())
    throw_error<ShapeError>("[load] variable {} is {} ({} bytes), {} bytes were given", name(), to_string(spec()),
                            spec().bytes(), row_major.size());
  settle(*state_);
  ensure_buffer(*state_);
  keep_for_holders(*state_);
  std::vector<std::byte> raw(row_major.size());
  convert_layout(row_major.data(), {}, raw.data(), state_->layout, shape(), dtype());
  memory_of(device()).copy_from_host(state_->buffer.data(), raw.data(), raw.size());
  state_->ready = nullptr;
  state_->failure.clear();
  ++state_->version;
}

Layout Variable::save_as_it_lies(std::span<std::byte> target) const {
  if (const Variable* copy = copy_here(*this)) return copy->save_as_it_lies(target);
  if (size_t bytes = known("save_as_it_lies").spec.bytes(); target.size() != bytes)
    throw_error<ShapeError>("[save_as_it_lies] the target has {} bytes, variable {} has {}", target.size(), name(),
                            bytes);
  settle(*state_);
  if (!state_->failure.empty()) throw_error<GraphError>("{}", state_->failure);
  ensure_buffer(*state_);
  memory_of(device()).copy_to_host(target.data(), state_->buffer.data(), target.size());
  return state_->layout;
}

std::vector<std::byte> Variable::save() const {
  std::vector<std::byte> raw(known("save").spec.bytes()), row_major(raw.size());
  Layout layout = save_as_it_lies(raw);
  convert_layout(raw.data(), layout, row_major.data(), {}, shape(), dtype());
  return row_major;
}

void Variable::move_to(Device target) const {
  if (target == known("move_to").spec.device) return;
  require_device(target);
  std::vector<std::byte> bytes = save();
  keep_for_holders(*state_);
  state_->spec.device = target;
  state_->layout = {};
  state_->layout_fixed = false;
  note_variable_move();
  state_->gradient_is_clear = true;
  state_->buffer = {std::make_shared<Storage>(target, bytes.size())};
  load(bytes);
  if (state_->gradient) Variable(state_->gradient).move_to(target);
}

Tensor Variable::grad() const {
  if (const Variable* copy = copy_here(*this)) return copy->grad();
  if (known("grad").gradient_is_clear || !state_->gradient) return {};
  return Variable(state_->gradient).value();
}

Variable Variable::grad_variable() const {
  if (const Variable* copy = copy_here(*this)) return copy->grad_variable();
  if (!known("grad_variable").gradient) {
    Variable gradient(spec(), name().empty() ? std::string() : name() + ".grad");
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
  BONFIRE_CHECK(buffer.storage->device() == device() && buffer.offset + spec().bytes() <= buffer.storage->bytes());
  wait_for_launches(*state_);  // what is pending finds the memory when it is launched
  DeviceMemory& memory = memory_of(device());
  if (state_->buffer) {
    std::vector<std::byte> bytes(spec().bytes());  // layout and all
    memory.copy_to_host(bytes.data(), state_->buffer.data(), bytes.size());
    memory.copy_from_host(buffer.data(), bytes.data(), bytes.size());
  } else {
    memory.fill_zero(buffer.data(), spec().bytes());
  }
  state_->buffer = std::move(buffer);
}

namespace {
size_t aligned_bytes(const Variable& variable) {
  constexpr size_t kAlignment = 64;
  return (variable.spec().bytes() + kAlignment - 1) / kAlignment * kAlignment;
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
  if (storage == nullptr) storage = std::make_shared<Storage>(variables[0].device(), total);
  size_t offset = 0;
  memory_of(variables[0].device()).fill_zero(storage->data(), total);
  for (const Variable& variable : variables) {
    variable.rebase({storage, offset});
    offset += aligned_bytes(variable);
  }
}

}  // namespace bonfire
