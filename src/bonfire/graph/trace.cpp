#include "bonfire/graph/trace.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <unordered_map>

#include "bonfire/base/error.h"
#include "bonfire/graph/engine.h"
#include "bonfire/graph/recompute.h"

namespace bonfire {

namespace {

// A loop that never reads or updates anything would grow its trace for ever.
constexpr size_t kMostPendingNodes = 20'000;

std::atomic<uint64_t> next_trace_id{1};
TracingPlace& place() { return StepContext::current().place; }

std::atomic<bool>& check_numbers_flag() {
  static std::atomic<bool> flag = [] {
    const char* text = std::getenv("BONFIRE_CHECK_NUMBERS");
    return text != nullptr && std::string_view(text) == "1";
  }();
  return flag;
}

size_t slot_hash(const Node* node, uint32_t index) {
  uint64_t bits = reinterpret_cast<uintptr_t>(node) + index * 0x9e3779b97f4a7c15ULL;
  return static_cast<size_t>((bits * 0xff51afd7ed558ccdULL) >> 32);
}

OutputSpecs infer_random_key(const InferContext& context) { return {context.input(0)}; }

const Op& random_key_op = register_op({.name = "random_key", .infer = infer_random_key});

}  // namespace

Trace::Trace() : context_(StepContext::current()), id_(next_trace_id.fetch_add(1)), leaf_table_(256) {}

Trace::~Trace() { clear(); }

Trace& Trace::current() {
  TracingPlace& here = place();
  if (here.other != nullptr) return *here.other;
  if (here.trace != nullptr) return *here.trace;
  thread_local Trace trace;
  here.trace = &trace;
  return trace;
}

uint32_t Trace::leaf_position(const Value& value) {
  size_t mask = leaf_table_.size() - 1;
  size_t slot = slot_hash(value.node.get(), value.index) & mask;
  while (leaf_table_[slot].node != nullptr) {
    if (leaf_table_[slot].node == value.node.get() && leaf_table_[slot].index == value.index)
      return leaf_table_[slot].position;
    slot = (slot + 1) & mask;
  }
  uint32_t position = static_cast<uint32_t>(leaves_.size());
  leaf_table_[slot] = {value.node.get(), value.index, position};
  leaves_.push_back(value);
  hash_.mix(0x1eafULL + static_cast<uint64_t>(value.node->leaf));
  mix_spec(hash_, value.spec());
  if (const VariableState* state = value.node->variable.get(); state != nullptr && state->slice != nullptr)
    state->slice->mix_into(hash_);
  if (leaves_.size() * 2 > leaf_table_.size()) {
    leaf_table_.assign(leaf_table_.size() * 4, {});
    mask = leaf_table_.size() - 1;
    for (uint32_t i = 0; i < leaves_.size(); ++i) {
      slot = slot_hash(leaves_[i].node.get(), leaves_[i].index) & mask;
      while (leaf_table_[slot].node != nullptr) slot = (slot + 1) & mask;
      leaf_table_[slot] = {leaves_[i].node.get(), leaves_[i].index, i};
    }
  }
  return position;
}

uint64_t Trace::encode(const Value& value) {
  if (pending(value)) return (static_cast<uint64_t>(value.node->position) << 32) | value.index;
  return (1ULL << 63) | leaf_position(value);
}

const NodePtr& Trace::append(const Op& op, NodeInputs&& inputs, Attributes&& attributes) {
  if (nodes_.size() >= kMostPendingNodes && !TraceScope::active()) engine().commit(*this);
  base::InlineVector<const TensorSpec*, 8> specs;
  specs.reserve(inputs.size());
  for (const Value& input : inputs) specs.push_back(&input.spec());

  TracingPlace& place = context_.place;
  auto node = base::make_intrusive<Node>();
  OutputSpecs outputs = op.infer({op, {specs.data(), specs.size()}, attributes});
  hash_.mix((static_cast<uint64_t>(op.id) << 32) | (static_cast<uint64_t>(place.phase) << 24) | inputs.size());
  if (place.origin.trace == id_) hash_.mix(place.origin.position);
  attributes.mix_into(hash_);
  bool input_requires_grad = false;
  for (const Value& input : inputs) {
    hash_.mix(encode(input));
    place.next_sequence = std::max(place.next_sequence, input.node->sequence + 1);
    input_requires_grad |= input.node->outputs[input.index].requires_grad;
  }
  node->inputs = std::move(inputs);
  node->op = &op;
  node->attributes = std::move(attributes);
  bool floats = false;  // a node without a float to its name (a comparison, argmax) has no history
  for (const TensorSpec& spec : outputs) floats |= is_floating(spec.dtype);
  node->recorded = input_requires_grad && place.grad_enabled && floats;
  node->outputs.reserve(outputs.size());
  for (const TensorSpec& spec : outputs) {
    NodeOutput& output = node->outputs.emplace_back(spec);
    output.requires_grad = node->recorded && is_floating(spec.dtype);
  }
  if (place.recompute != nullptr && place.phase == Phase::forward) [[unlikely]]
    mark_recomputed(*node, *place.recompute);
  node->path = place.path;
  node->phase = place.phase;
  node->origin = place.origin;
  node->sequence = place.next_sequence++;
  node->trace = id_;
  node->position = static_cast<uint32_t>(nodes_.size());
  return nodes_.emplace_back(std::move(node));
}

void Trace::mark_recomputed(Node& node, RecomputeScope& scope) {
  node.recomputed_part = scope.part_in(*this);
  hash_.mix(0x5ecaULL + node.recomputed_part);
}

uint32_t Trace::add_recomputed_part(uint32_t outer) {
  hash_.mix(0x0a27ULL + outer);
  std::vector<int> parts = outer == 0 ? std::vector<int>() : recomputed_parts(outer);
  const auto part = static_cast<uint32_t>(recomputed_parts_.size() + 1);
  parts.push_back(static_cast<int>(part));
  recomputed_parts_.push_back(std::move(parts));
  return part;
}

void Trace::assign(const Variable& variable, const Value& value) {
  VariableState& state = variable.state();
  uint32_t leaf;
  if (state.pending_trace == id_ && state.pending) {
    Assignment& assignment = assignments_[state.pending_position];
    leaf = assignment.leaf;
    assignment.value = value;
  } else {
    leaf = leaf_position(read(variable));
    state.pending_position = static_cast<uint32_t>(assignments_.size());
    assignments_.push_back({variable, value, leaf});
  }
  hash_.mix((0xa55ULL << 48) | leaf);
  hash_.mix(encode(value));
  state.pending = value;
  state.pending_trace = id_;
}

Value Trace::read(const Variable& variable) {
  VariableState& state = variable.state();
  if (state.pending_trace == id_ && state.pending) return state.pending;
  if (state.leaf == nullptr) {
    auto node = base::make_intrusive<Node>();
    node->leaf = LeafKind::variable;
    node->variable = variable.pointer();
    node->outputs.emplace_back(state.stored);
    node->sequence = context_.place.next_sequence++;
    node->version = state.version;
    state.leaf = node.get();
    node->outputs[0].requires_grad = state.requires_grad;
    return {std::move(node), 0};
  }
  state.leaf->outputs[0].requires_grad = state.requires_grad;
  return {NodePtr(state.leaf), 0};
}

Value Trace::scalar(std::shared_ptr<double> cell, DType dtype, Device device) {
  auto node = base::make_intrusive<Node>();
  node->leaf = LeafKind::scalar;
  node->scalar = std::move(cell);
  node->outputs.emplace_back(TensorSpec{{}, dtype, device});
  node->sequence = context_.place.next_sequence++;
  return {std::move(node), 0};
}

Value Trace::random_key(Device device) {
  for (const Value& key : random_keys_)
    if (key.spec().device == device) return key;
  auto leaf = base::make_intrusive<Node>();
  leaf->leaf = LeafKind::random;
  leaf->outputs.emplace_back(TensorSpec{{4}, DType::i64, device});
  leaf->sequence = context_.place.next_sequence++;
  Value input{std::move(leaf), 0};
  random_keys_.push_back({append(random_key_op, {input}, {}), 0});
  return random_keys_.back();
}

void Trace::clear() {
  for (Assignment& assignment : assignments_) {
    VariableState& state = assignment.variable.state();
    if (state.pending_trace == id_) state.pending = {};
  }
  assignments_.clear();
  random_keys_.clear();
  recomputed_parts_.clear();
  leaf_table_.assign(leaf_table_.size(), {});
  std::vector<Value> leaves = std::move(leaves_);
  std::vector<NodePtr> nodes = std::move(nodes_);
  leaves_.clear();
  nodes_.clear();
  hash_ = {};
  random_numbers_ = 0;
  has_backward = false;
  id_ = next_trace_id.fetch_add(1);
  // Nodes go last and newest first, so that each is freed by its own reference and not through a chain of users.
  while (!nodes.empty()) nodes.pop_back();
}

TraceScope::TraceScope(Trace& trace) : before_(std::exchange(place().other, &trace)) {}
bool TraceScope::active() { return place().other != nullptr; }
TraceScope::~TraceScope() { place().other = before_; }

namespace {

// Paths are few and live as long as their thread; a call finds its path by its parent's address and its own name.
struct PathKey {
  const std::string* parent;
  std::string_view name;  // of the path itself: its last part
  friend bool operator==(const PathKey&, const PathKey&) = default;
};
struct PathKeyHash {
  size_t operator()(const PathKey& key) const {
    return std::hash<std::string_view>()(key.name) ^ (reinterpret_cast<uintptr_t>(key.parent) * 0x9e3779b97f4a7c15ULL);
  }
};

const std::string* intern_path(const std::string* parent, std::string_view name) {
  thread_local std::unordered_map<PathKey, std::unique_ptr<std::string>, PathKeyHash> paths;
  if (auto found = paths.find({parent, name}); found != paths.end()) return found->second.get();
  auto path = std::make_unique<std::string>(parent == nullptr ? std::string(name) : *parent + "." + std::string(name));
  PathKey key{parent, std::string_view(*path).substr(path->size() - name.size())};
  return paths.emplace(key, std::move(path)).first->second.get();
}

}  // namespace

PathScope::PathScope(std::string_view name) : before_(place().path) {
  if (!name.empty()) place().path = intern_path(before_, name);
}
PathScope::~PathScope() { place().path = before_; }

PhaseScope::PhaseScope(Phase phase) : before_(std::exchange(place().phase, phase)) {}
PhaseScope::~PhaseScope() { place().phase = before_; }

const char* to_string(Phase phase) {
  switch (phase) {
    case Phase::forward: return "forward";
    case Phase::backward: return "backward";
    case Phase::update: return "update";
  }
  return "?";
}

std::string in_current_module() { return place().path == nullptr ? "" : " in module " + *place().path; }

bool grad_enabled() { return place().grad_enabled; }
void set_grad_enabled(bool enabled) { place().grad_enabled = enabled; }

NoGrad::NoGrad() : before_(std::exchange(place().grad_enabled, false)) {}
NoGrad::~NoGrad() { place().grad_enabled = before_; }

void set_check_numbers(bool on) { check_numbers_flag() = on; }
bool check_numbers() { return check_numbers_flag(); }

namespace {
Engine* registered_engine = nullptr;
}

Engine& engine() {
  BONFIRE_CHECK(registered_engine != nullptr, "no engine is registered");
  return *registered_engine;
}
void register_engine(Engine* engine) { registered_engine = engine; }

void commit() {
  if (!Trace::current().compiling) engine().commit(Trace::current());
}
void synchronize() {
  commit();
  engine().synchronize();
}
}  // namespace bonfire
