#include "bonfire/passes/lstm_stack.h"

#include <algorithm>

namespace bonfire::passes {

namespace {

constexpr TimeAxis kFirstAxis{0, 1};  // of the operands of recurrences: [T, N, …]

bool has_name(const GraphNode& node, std::string_view name) { return !node.is_input() && node.name() == name; }

bool is_same_constant(const GraphNode& a, const GraphNode& b) {
  return has_name(a, "constant") && has_name(b, "constant") && a.attributes.has("value") && b.attributes.has("value") &&
         a.attributes.integer("value") == b.attributes.integer("value");
}

// Mixed precision puts casts between.
GraphValue before_casts(GraphValue value) {
  while (has_name(*value.node, "cast")) value = value.node->inputs[0];
  return value;
}

// [1, N, H], made of [N, H]?
bool is_state_as_a_time(const GraphValue& value, const GraphValue& state) {
  const GraphNode &as_a_time = *before_casts(value).node, &own = *before_casts(state).node;
  return (has_name(as_a_time, "reshape") && before_casts(as_a_time.inputs[0]) == before_casts(state)) ||
         is_same_constant(as_a_time, own);
}

}  // namespace

LstmStack::LstmStack(Graph& graph, const GraphNode& last, const std::vector<TimeSpan>& spans)
    : graph_(graph), spans_(spans), times_(last.inputs[0].spec().shape[0]), part_(last.recomputed_parts.back()) {}

std::optional<LstmStack> LstmStack::of(Graph& graph, GraphNode& last, const std::vector<TimeSpan>& spans) {
  LstmStack stack(graph, last, spans);
  const bool is_whole =
      stack.find_forward(last) && stack.put_in_order(0) && stack.find_backward() && stack.put_in_order(1);
  if (!is_whole) return {};
  for (const GraphNode* node : stack.forward())
    for (int activated : {3, 4})
      if (is_layer(*node) && stack.is_read_whole({const_cast<GraphNode*>(node), activated})) return {};
  return stack;
}

std::optional<TimeAxis> LstmStack::time_of(const GraphValue& value) const {
  const auto found = times_of_values_.find({value.node, value.index});
  return found == times_of_values_.end() ? std::nullopt : std::optional(found->second);
}

TimeAxes LstmStack::inputs_of(const GraphNode& node) const {
  if (const auto sum = sums_.find(&node); sum != sums_.end()) return sum->second;
  return *times_of_inputs(node, *time_of({const_cast<GraphNode*>(&node), 0}), times_);
}

GraphNode* LstmStack::shifted_layer(const GraphNode& node) const {
  if (!has_name(node, "concat") || node.inputs.size() != 2 || node.attributes.integer("axis") != 0) return nullptr;
  const GraphNode& earlier = *before_casts(node.inputs[1]).node;
  if (!has_name(earlier, "slice")) return nullptr;
  GraphNode* layer = earlier.inputs[0].node;
  const bool is_shifted =
      is_layer(*layer) && inside_.contains(layer) && earlier.inputs[0].index == 0 &&
      earlier.attributes.ints("begin") == Shape{0, 0, 0} && earlier.attributes.ints("steps") == Shape{1, 1, 1} &&
      node.outputs[0].shape == layer->outputs[0].shape && is_state_as_a_time(node.inputs[0], layer->inputs[1]);
  return is_shifted ? layer : nullptr;
}

bool LstmStack::is_padding(const GraphNode& node, TimeAxis time) {
  if (!has_name(node, "pad") || node.attributes.integer("value") != 0 || time.each != 1) return false;
  const Shape before = node.attributes.ints("before"), after = node.attributes.ints("after");
  for (int i = 0; i < before.rank(); ++i)
    if (i != time.axis && (before[i] != 0 || after[i] != 0)) return false;
  return node.attributes.ints("steps")[time.axis] == 1;
}

bool LstmStack::is_read_whole(const GraphValue& value) const {
  if (!dependent_.contains(value.node)) return false;
  const std::vector<GraphNode*>& users = graph_.users(value);
  return graph_.graph_uses(value) > 0 || std::any_of(users.begin(), users.end(), [&](const GraphNode* user) {
           return !inside_.contains(user) && !sliced_.contains(user);
         });
}

// ---- what belongs to it ----

bool LstmStack::find_forward(GraphNode& last) {
  if (!add_layer(last)) return false;
  find_slices();
  return true;
}

// Rows of a small table are looked up again sooner than they are kept.
bool LstmStack::is_cheap(const GraphNode& node) const {
  if (has_name(node, "permute") || has_name(node, "reshape") || has_name(node, "cast")) return true;
  return has_name(node, "embedding") && node.inputs[0].spec().bytes() <= node.outputs[0].bytes() / spans_.size();
}

bool LstmStack::is_between(const GraphNode& node) const {
  if (is_cheap(node) && (node.phase == Phase::forward || pass_ == 1)) return true;
  if (pass_ == 1) return node.phase != Phase::forward && numbers_.contains(node.origin);
  return node.phase == Phase::forward && !node.recomputed_parts.empty() && node.recomputed_parts.back() == part_;
}

void LstmStack::add_inside(GraphNode& node) {
  inside_.emplace(&node, pass_);
  if (pass_ == 0 && node.number >= 0) numbers_.insert(node.number);
}

// Value and what it is made of; false where it is read along two axes.
bool LstmStack::add(const GraphValue& value, TimeAxis time) {
  GraphNode& node = *value.node;
  if (inside_.contains(&node)) return time_of(value) == time;
  if (is_layer(node)) {
    const bool is_of_stack = pass_ == 0 && node.phase == Phase::forward && !node.recomputed_parts.empty() &&
                             node.recomputed_parts.back() == part_ && value.index == 0 && time == kFirstAxis;
    return !is_of_stack || add_layer(node);
  }
  if (is_gradient(node)) return !inside_.contains(layer_of(node)) || (value.index == 0 && add_gradient(node));
  const bool is_shifted = pass_ == 1 && shifted_layer(node) != nullptr && time == kFirstAxis;
  if (is_shifted || (pass_ == 1 && is_padding(node, time))) {
    add_inside(node);
    times_of_values_.emplace(std::pair(&node, 0), time);
    if (is_shifted) note_shift(node);
    return true;
  }
  if (node.is_input() || !is_between(node)) return true;
  const std::optional<TimeAxes> inputs = times_of_inputs(node, time, times_);
  if (!inputs) return true;
  add_inside(node);
  times_of_values_.emplace(std::pair(&node, 0), time);
  return add_inputs(node, *inputs);
}

// The slice is not made, unless somebody else reads it.
void LstmStack::note_shift(const GraphNode& shifted) {
  const GraphNode* reader = &shifted;
  GraphValue value = shifted.inputs[1];
  for (; graph_.only_user(value, reader); value = reader->inputs[0]) {
    reader = value.node;
    if (!has_name(*reader, "cast")) break;
  }
  if (has_name(*reader, "slice")) sliced_.insert(reader);
}

bool LstmStack::add_inputs(const GraphNode& node, const TimeAxes& inputs) {
  for (size_t i = 0; i < inputs.size(); ++i)
    if (inputs[i] && !add(node.inputs[i], *inputs[i])) return false;
  return true;
}

bool LstmStack::add_layer(GraphNode& layer) {
  add_inside(layer);
  for (int along_time : {0, 3, 4}) times_of_values_.emplace(std::pair(&layer, along_time), kFirstAxis);
  return add(layer.inputs[0], kFirstAxis);
}

bool LstmStack::add_gradient(GraphNode& gradient) {
  add_inside(gradient);
  times_of_values_.emplace(std::pair(&gradient, 0), kFirstAxis);
  return !gradient.attributes.flag("has_dy") || add(gradient.inputs[4], kFirstAxis);
}

// Those that can be computed span by span, or add up over time.
bool LstmStack::add_readers(const GraphValue& value) {
  const TimeAxis time = *time_of(value);
  const Nodes users = graph_.users(value);
  for (GraphNode* user : users) {
    if (inside_.contains(user) || is_gradient(*user) || !is_between(*user)) continue;
    const auto slot =
        static_cast<size_t>(std::find(user->inputs.begin(), user->inputs.end(), value) - user->inputs.begin());
    const std::optional<TimeReader> reader = reader_over_time(*user, slot, time, times_);
    if (!reader) continue;
    if (!reader->result) sums_.emplace(user, reader->inputs);
    add_inside(*user);
    if (reader->result) times_of_values_.emplace(std::pair(user, 0), *reader->result);
    if (!add_inputs(*user, reader->inputs)) return false;
  }
  return true;
}

bool LstmStack::find_backward() {
  pass_ = 1;
  bool has_gradient = false;
  for (GraphNode& node : graph_.nodes()) {
    if (!is_gradient(node) || !inside_.contains(layer_of(node))) continue;
    has_gradient = true;
    if (!add({&node, 0}, kFirstAxis)) return false;
  }
  // What is added because another operand is read may have readers that have been passed.
  for (size_t before = 0; before != inside_.size();) {
    before = inside_.size();
    for (GraphNode& node : graph_.nodes()) {
      const auto found = inside_.find(&node);
      if (found == inside_.end() || found->second != 1) continue;
      note_dependence(node);
      if (dependent_.contains(&node) && !is_sum(node) && !add_readers({&node, 0})) return false;
    }
  }
  return has_gradient;
}

void LstmStack::note_dependence(const GraphNode& node) {
  const bool depends = is_layer(node) || is_gradient(node) || shifted_layer(node) != nullptr ||
                       std::any_of(node.inputs.begin(), node.inputs.end(),
                                   [&](const GraphValue& input) { return dependent_.contains(input.node); });
  if (depends) dependent_.insert(&node);
}

// ---- slices ----

// A model that goes on with the last state alone does not need the others, which would be kept for it.
void LstmStack::find_slices() {
  for (GraphNode& node : graph_.nodes()) {
    if (!inside_.contains(&node)) continue;
    note_dependence(node);
    const GraphValue value{&node, 0};
    const std::optional<TimeAxis> time = time_of(value);
    if (!dependent_.contains(&node) || !time) continue;
    const Nodes users = graph_.users(value);
    for (GraphNode* user : users) {
      if (inside_.contains(user) || sliced_.contains(user)) continue;
      if (const std::optional<size_t> span = span_of_slice(*user, *time)) {
        slices_.emplace_back(user, *span);
        sliced_.insert(user);
        continue;
      }
      const std::optional<TimeReader> reader = reader_over_time(*user, 0, *time, times_);
      if (!is_cheap(*user) || user->phase != Phase::forward || !reader || !is_only_sliced({user, 0}, *reader->result))
        continue;
      add_inside(*user);
      times_of_values_.emplace(std::pair(user, 0), *reader->result);
    }
  }
}

std::optional<size_t> LstmStack::span_of_slice(const GraphNode& slice, TimeAxis time) const {
  if (!has_name(slice, "slice") || slice.phase != Phase::forward) return {};
  const int64_t first = slice.attributes.ints("begin")[time.axis];
  const int64_t last =
      first + (slice.attributes.ints("extents")[time.axis] - 1) * slice.attributes.ints("steps")[time.axis];
  for (size_t i = 0; i < spans_.size(); ++i)
    if (spans_[i].begin * time.each <= first && first <= last && last < spans_[i].end * time.each) return i;
  return {};
}

bool LstmStack::is_only_sliced(const GraphValue& value, TimeAxis time) const {
  const std::vector<GraphNode*>& users = graph_.users(value);
  return graph_.graph_uses(value) == 0 && std::all_of(users.begin(), users.end(), [&](const GraphNode* user) {
           if (span_of_slice(*user, time)) return true;
           const std::optional<TimeReader> reader = reader_over_time(*user, 0, time, times_);
           return is_cheap(*user) && reader && reader->result &&
                  is_only_sliced({const_cast<GraphNode*>(user), 0}, *reader->result);
         });
}

// ---- its place ----

// False where something outside stands between two members, or one reads all times of another.
bool LstmStack::put_in_order(size_t pass) {
  std::unordered_set<const GraphNode*> later;  // outside, and depends on members
  Nodes waiting;
  for (GraphNode& node : graph_.nodes()) {
    const auto found = inside_.find(&node);
    const bool is_member = found != inside_.end() && found->second == pass;
    const bool is_later = std::any_of(node.inputs.begin(), node.inputs.end(),
                                      [&](const GraphValue& input) { return later.contains(input.node); });
    if (is_member) {
      if (is_later) return false;
      for (const GraphValue& input : node.inputs)
        if (dependent_.contains(input.node) && shifted_layer(node) == nullptr && !time_of(input)) return false;
      note_dependence(node);
      members_[pass].push_back(&node);
      after_[pass].insert(after_[pass].end(), waiting.begin(), waiting.end());
      waiting.clear();
      continue;
    }
    const bool reads_members = std::any_of(node.inputs.begin(), node.inputs.end(), [&](const GraphValue& input) {
      const auto member = inside_.find(input.node);
      return member != inside_.end() && member->second == pass && dependent_.contains(input.node);
    });
    if (!is_later && !reads_members) continue;
    later.insert(&node);
    waiting.push_back(&node);
  }
  return true;
}

}  // namespace bonfire::passes
