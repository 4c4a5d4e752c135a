#include "bonfire/passes/split_over_time.h"

#include <algorithm>
#include <cmath>
#include <tuple>

#include "bonfire/kernel/kernel.h"
#include "bonfire/passes/activation.h"
#include "bonfire/passes/dead_code.h"
#include "bonfire/passes/lstm_stack.h"

namespace bonfire::passes {

namespace {

constexpr int64_t kFewestTimes = 64;  // below, what is kept is little, and products would be small
constexpr int64_t kMostSpans = 32;    // more save little: a span needs a 32nd of what all would

// About the square root of the length: as much is kept between spans as in one.
std::vector<TimeSpan> spans_of(int64_t times) {
  const auto root = static_cast<int64_t>(std::sqrt(static_cast<double>(times)));
  const int64_t count = std::min(root, kMostSpans), length = (times + count - 1) / count;
  std::vector<TimeSpan> spans;
  for (int64_t begin = 0; begin < times; begin += length) spans.push_back({begin, std::min(begin + length, times)});
  return spans;
}

// Numbers that no node, or no part, of a graph has yet.
struct FreshNumbers {
  int node = 0, part = 1;

  explicit FreshNumbers(const Graph& graph) {
    for (const GraphNode& one : graph.nodes()) {
      node = std::max({node, one.number + 1, one.origin + 1});
      for (int each : one.recomputed_parts) part = std::max(part, each + 1);
    }
  }
};

class StackInSpans {
 public:
  StackInSpans(Graph& graph, const LstmStack& stack, const std::vector<TimeSpan>& spans, FreshNumbers& fresh)
      : graph_(graph), stack_(stack), spans_(spans), fresh_(fresh) {
    for (const GraphNode* node : stack.forward())
      if (LstmStack::is_layer(*node)) parts_ = node->recomputed_parts;
  }

  void build() {
    before_ = after(stack_.forward().back());
    for (size_t s = 0; s < spans_.size(); ++s) build_forward(s);
    for (const auto& [slice, span] : stack_.slices()) build_slice(*slice, span);
    for (GraphNode* node : stack_.after_forward()) graph_.move_before(node, before_);
    before_ = after(stack_.backward().back());
    in_backward_ = true;
    for (size_t s = spans_.size(); s-- > 0;) build_backward(s);
    for (GraphNode* node : stack_.after_backward()) graph_.move_before(node, before_);
    put_in_place();
  }

 private:
  using Place = std::pair<const GraphNode*, int>;
  static Place place_of(const GraphValue& value) { return {value.node, value.index}; }

  GraphNode* after(const GraphNode* node) {
    auto& nodes = graph_.nodes();
    auto next = std::find_if(nodes.begin(), nodes.end(), [&](const GraphNode& one) { return &one == node; });
    return ++next == nodes.end() ? nullptr : &*next;
  }

  // ---- nodes of a span ----

  void build_forward(size_t s) {
    span_ = s;
    own_parts_ = parts_;
    own_parts_.pop_back();
    // The gradients of the last span come first: what it computes is still there.
    if (s + 1 < spans_.size()) own_parts_.push_back(fresh_.part++);
    for (GraphNode* node : stack_.forward()) {
      if (LstmStack::is_layer(*node)) {
        build_layer(*node);
      } else {
        build_between(*node);
      }
      gather_whole({node, 0});
    }
  }

  void build_backward(size_t s) {
    span_ = s;
    for (GraphNode* node : stack_.backward()) {
      if (LstmStack::is_gradient(*node)) {
        build_gradient(*node);
      } else if (stack_.is_sum(*node)) {
        build_term(*node);
        continue;
      } else if (const GraphNode* layer = stack_.shifted_layer(*node)) {
        build_shifted(*node, *layer);
      } else if (const TimeAxis time = *stack_.time_of({node, 0}); LstmStack::is_padding(*node, time)) {
        build_padded(*node, time);
      } else {
        build_between(*node);
      }
      gather_whole({node, 0});
    }
  }

  // A node that stands for `like` in this span: of a part by itself, so that `recompute` knows whose gradients are
  // whose.
  GraphNode* add(const GraphNode& like, const Op& op, std::vector<GraphValue> inputs, Attributes attributes) {
    GraphNode* node = graph_.add_like(like, op, std::move(inputs), std::move(attributes), before_);
    if (in_backward_) {
      node->phase = std::max(Phase::backward, like.phase);
      node->number = -1;
      node->origin = numbers_.at(span_);
      node->recomputed_parts.clear();
      return node;
    }
    node->number = numbers_.try_emplace(span_, fresh_.node).first->second;
    fresh_.node = std::max(fresh_.node, node->number + 1);
    node->recomputed_parts = own_parts_;
    return node;
  }

  GraphValue cast(const GraphNode& like, const GraphValue& value, DType dtype) {
    if (value.spec().dtype == dtype) return value;
    return {add(like, find_op("cast"), {value}, {{"dtype", dtype}}), 0};
  }

  static DType wide(DType dtype) { return dtype == DType::f64 ? DType::f64 : DType::f32; }

  // Of a value along time. Without a node: zeros.
  GraphValue of_span(const GraphNode& reader, const GraphValue& value, TimeAxis time) {
    if (stack_.time_of(value) == time) return built_.at({place_of(value), span_});
    const auto key = std::tuple(place_of(value), time.axis, time.each, span_);
    if (const auto made = slices_.find(key); made != slices_.end()) return made->second;
    const GraphValue slice{slice_of(reader, value, time, spans_[span_]), 0};
    slices_[key] = slice;
    return slice;
  }

  GraphNode* slice_of(const GraphNode& like, const GraphValue& value, TimeAxis time, const TimeSpan& span) {
    const Shape extents = shape_of_span(value.spec().shape, time, span);
    Shape begin = extents, steps = extents;
    for (int i = 0; i < extents.rank(); ++i) begin[i] = 0;
    for (int i = 0; i < extents.rank(); ++i) steps[i] = 1;
    begin[time.axis] = span.begin * time.each;
    return add(like, find_op("slice"), {value}, {{"begin", begin}, {"extents", extents}, {"steps", steps}});
  }

  GraphValue zeros(const GraphNode& like, TensorSpec spec, TimeAxis time) {
    spec.shape = shape_of_span(spec.shape, time, spans_[span_]);
    return {add(like, find_op("constant"), {},
                {{"shape", spec.shape},
                 {"value", 0},
                 {"dtype", spec.dtype},
                 {"device_type", static_cast<int>(spec.device.type)},
                 {"device_index", spec.device.index}}),
            0};
  }

  void set_built(const GraphValue& value, const GraphValue& of_this_span) {
    built_[{place_of(value), span_}] = of_this_span;
  }

  void build_layer(GraphNode& layer) {
    const GraphNode* earlier = span_ == 0 ? nullptr : built_.at({{&layer, 0}, span_ - 1}).node;
    const GraphValue projected = of_span(layer, layer.inputs[0], {0, 1});
    // A narrow c is kept wide from span to span, as it is within one.
    const GraphValue h = earlier == nullptr ? layer.inputs[1] : GraphValue{const_cast<GraphNode*>(earlier), 1};
    const GraphValue c = earlier == nullptr ? cast(layer, layer.inputs[2], wide(layer.inputs[2].spec().dtype))
                                            : GraphValue{const_cast<GraphNode*>(earlier), 2};
    GraphNode* node = add(layer, *layer.op, {projected, h, c, layer.inputs[3]}, layer.attributes);
    for (int i = 0; i < static_cast<int>(layer.outputs.size()); ++i) set_built({&layer, i}, {node, i});
  }

  void build_between(GraphNode& node) {
    const TimeAxis time = *stack_.time_of({&node, 0});
    const TimeAxes times = stack_.inputs_of(node);
    std::vector<GraphValue> inputs;
    for (size_t i = 0; i < times.size(); ++i)
      inputs.push_back(times[i] ? of_span(node, node.inputs[i], *times[i]) : node.inputs[i]);
    if (const GraphValue narrow = before_widening(node, inputs[0])) return set_built({&node, 0}, narrow);
    const auto is_zero = [](const GraphValue& value) { return value.node == nullptr; };
    if (std::any_of(inputs.begin(), inputs.end(), is_zero)) {
      const GraphValue rest = without_zeros(node, inputs);
      if (rest || inputs.size() == 1) return set_built({&node, 0}, rest);
      for (size_t i = 0; i < inputs.size(); ++i)
        if (is_zero(inputs[i])) inputs[i] = zeros(node, node.inputs[i].spec(), *times[i]);
    }
    Attributes attributes = attributes_of_span(node, time, spans_[span_]);
    set_built({&node, 0}, {add(node, *node.op, std::move(inputs), std::move(attributes)), 0});
  }

  // Where the node casts back what has been widened.
  static GraphValue before_widening(const GraphNode& node, const GraphValue& input) {
    if (node.name() != "cast" || input.node == nullptr || input.node->is_input() || input.node->name() != "cast")
      return {};
    const GraphValue& narrow = input.node->inputs[0];
    const bool is_exact = narrow.spec().dtype == DType::bf16 && input.spec().dtype == DType::f32;
    return is_exact && narrow.spec().dtype == node.outputs[0].dtype ? narrow : GraphValue();
  }

  // 0 + x of x's type. Where the only input is zeros so is what permutes or casts them.
  static GraphValue without_zeros(const GraphNode& node, const std::vector<GraphValue>& inputs) {
    if (!is_addition(node) || inputs.size() != 2) return {};
    const size_t other = inputs[0].node == nullptr ? 1 : 0;
    const bool is_same = inputs[other].node != nullptr && node.inputs[other].spec() == node.outputs[0];
    return is_same ? inputs[other] : GraphValue();
  }

  // The part of a padded value that lies in this span, with what is left of the zeros.
  void build_padded(GraphNode& node, TimeAxis time) {
    const GraphValue value = node.inputs[0];
    const int64_t first = node.attributes.ints("before")[time.axis], end = first + value.spec().shape[time.axis];
    const TimeSpan& span = spans_[span_];
    const int64_t from = std::max(first, span.begin), to = std::min(end, span.end);
    if (from >= to) return set_built({&node, 0}, GraphValue());
    GraphValue inside = value;
    if (from > first || to < end) inside = {slice_of(node, value, time, {from - first, to - first}), 0};
    if (to - from == span.length()) return set_built({&node, 0}, inside);
    Attributes attributes = node.attributes;
    Shape before = attributes.ints("before"), after = attributes.ints("after");
    before[time.axis] = from - span.begin;
    after[time.axis] = span.end - to;
    attributes.set({"before", before});
    attributes.set({"after", after});
    set_built({&node, 0}, {add(node, *node.op, {inside}, std::move(attributes)), 0});
  }

  GraphNode* layer_in_span(const GraphNode& layer) const { return built_.at({{&layer, 0}, span_}).node; }

  void build_gradient(GraphNode& gradient) {
    const GraphNode& whole = *LstmStack::layer_of(gradient);
    GraphNode* layer = layer_in_span(whole);
    const GraphNode* later = span_ + 1 == spans_.size() ? nullptr : built_.at({{&gradient, 0}, span_ + 1}).node;
    std::vector<GraphValue> inputs{gradient.inputs[0], layer->inputs[2], {layer, 3}, {layer, 4}};
    Attributes attributes = gradient.attributes;
    size_t next = inputs.size();
    GraphValue dy;
    if (attributes.flag("has_dy")) dy = of_span(gradient, gradient.inputs[next++], {0, 1});
    attributes.set({"has_dy", static_cast<bool>(dy)});
    if (dy) inputs.push_back(dy);
    int index = 1;
    for (const char* has : {"has_dh", "has_dc"}) {
      GraphValue state{const_cast<GraphNode*>(later), index++};
      if (attributes.flag(has)) {
        const GraphValue at_the_end = gradient.inputs[next++];
        if (later == nullptr) state = at_the_end;
      }
      attributes.set({has, static_cast<bool>(state)});
      if (state) inputs.push_back(state);
    }
    GraphNode* node = add(gradient, *gradient.op, std::move(inputs), std::move(attributes));
    for (int i = 0; i < static_cast<int>(gradient.outputs.size()); ++i) set_built({&gradient, i}, {node, i});
  }

  // The states that went into the layer in this span.
  void build_shifted(GraphNode& node, const GraphNode& whole) {
    GraphNode* layer = layer_in_span(whole);
    const TensorSpec& state = layer->inputs[1].spec();
    const Shape as_a_time{1, state.shape[0], state.shape[1]};
    GraphValue all{add(node, find_op("reshape"), {layer->inputs[1]}, {{"shape", as_a_time}}), 0};
    const int64_t length = spans_[span_].length();
    if (length > 1) {
      const GraphValue earlier{slice_of(node, {layer, 0}, {0, 1}, {0, length - 1}), 0};
      all = {add(node, *node.op, {all, earlier}, node.attributes), 0};
    }
    set_built({&node, 0}, cast(node, all, node.outputs[0].dtype));
  }

  // ---- what comes out ----

  // Sums over time: in f32 where they are of a narrower type, since each term is rounded.
  void build_term(GraphNode& node) {
    const TimeAxes times = stack_.inputs_of(node);
    std::vector<GraphValue> inputs;
    for (size_t i = 0; i < times.size(); ++i) {
      inputs.push_back(of_span(node, node.inputs[i], *times[i]));
      if (!inputs.back()) inputs.back() = zeros(node, node.inputs[i].spec(), *times[i]);
    }
    GraphValue term{add(node, *node.op, std::move(inputs), node.attributes), 0};
    term = cast(node, term, wide(term.spec().dtype));
    const auto [sum, is_first] = sums_.try_emplace(&node, term);
    if (!is_first) sum->second = {add(node, find_op("add"), {sum->second, term}, {}), 0};
  }

  // Piece by piece, so that no piece is kept: those of each span are written into one that has all times.
  void gather_whole(const GraphValue& value) {
    const std::optional<TimeAxis> time = stack_.time_of(value);
    if (!time || !stack_.is_read_whole(value)) return;
    GraphValue piece = built_.at({place_of(value), span_});
    const auto own_parts = std::exchange(own_parts_, {});  // what is read elsewhere is kept
    if (!piece) piece = zeros(*value.node, value.spec(), *time);
    const auto whole = wholes_.find(place_of(value));
    const int64_t begin = spans_[span_].begin * time->each;
    if (whole == wholes_.end()) {
      const Shape& shape = value.spec().shape;
      Shape before = shape, after = shape, steps = shape;
      for (int i = 0; i < shape.rank(); ++i) {
        before[i] = after[i] = 0;
        steps[i] = 1;
      }
      before[time->axis] = begin;
      after[time->axis] = shape[time->axis] - begin - piece.spec().shape[time->axis];
      wholes_[place_of(value)] = {add(*value.node, find_op("pad"), {piece},
                                      {{"before", before}, {"after", after}, {"steps", steps}, {"value", int64_t{0}}}),
                                  0};
    } else {
      whole->second = {
          add(*value.node, find_op("put_slice"), {whole->second, piece}, {{"axis", time->axis}, {"begin", begin}}), 0};
    }
    own_parts_ = own_parts;
  }

  void build_slice(const GraphNode& slice, size_t span) {
    span_ = span;
    const GraphValue value = slice.inputs[0];
    const TimeAxis time = *stack_.time_of(value);
    Attributes attributes = slice.attributes;
    Shape begin = attributes.ints("begin");
    begin[time.axis] -= spans_[span].begin * time.each;
    attributes.set({"begin", begin});
    new_slices_.push_back(
        graph_.add_like(slice, *slice.op, {built_.at({place_of(value), span})}, std::move(attributes), before_));
  }

  // Readers of the whole nodes read what stands for them; then nobody reads those.
  void put_in_place() {
    for (size_t i = 0; i < new_slices_.size(); ++i) graph_.replace({stack_.slices()[i].first, 0}, {new_slices_[i], 0});
    for (const auto& nodes : {stack_.forward(), stack_.backward()})
      for (GraphNode* node : nodes) {
        if (const auto whole = wholes_.find({node, 0}); whole != wholes_.end())
          graph_.replace({node, 0}, whole->second);
        if (const auto sum = sums_.find(node); sum != sums_.end()) put_sum_in_place(*node, sum->second);
        if (LstmStack::is_layer(*node)) put_states_in_place(*node, spans_.size() - 1);
        if (LstmStack::is_gradient(*node)) put_states_in_place(*node, 0);
      }
  }

  void put_states_in_place(GraphNode& node, size_t span) {
    for (int i : {1, 2}) {
      if (!stack_.is_read_whole({&node, i})) continue;
      GraphNode* place = built_.at({{&node, i}, span}).node;
      GraphValue state{place, i};
      if (state.spec().dtype != node.outputs[static_cast<size_t>(i)].dtype) {
        auto next = after(place);
        GraphNode* narrow = graph_.add_like(*place, find_op("cast"), {state},
                                            {{"dtype", node.outputs[static_cast<size_t>(i)].dtype}}, next);
        state = {narrow, 0};
      }
      graph_.replace({&node, i}, state);
    }
  }

  void put_sum_in_place(GraphNode& node, const GraphValue& sum) {
    const DType dtype = node.outputs[0].dtype;
    if (sum.spec().dtype == dtype) return graph_.replace({&node, 0}, sum);
    const std::vector<GraphNode*> users = graph_.users({&node, 0});
    for (GraphNode* user : users)
      if (user->name() == "cast" && user->outputs[0] == sum.spec()) graph_.replace({user, 0}, sum);
    GraphNode* narrow = graph_.add_like(*sum.node, find_op("cast"), {sum}, {{"dtype", dtype}}, after(sum.node));
    graph_.replace({&node, 0}, {narrow, 0});
  }

  Graph& graph_;
  const LstmStack& stack_;
  const std::vector<TimeSpan>& spans_;
  FreshNumbers& fresh_;
  std::vector<int> parts_, own_parts_;  // that the stack is in, and nodes of this span
  size_t span_ = 0;
  bool in_backward_ = false;
  GraphNode* before_ = nullptr;    // new nodes stand before it; null: at the end
  std::map<size_t, int> numbers_;  // that forward nodes of a span have
  std::map<std::pair<Place, size_t>, GraphValue> built_;
  std::map<std::tuple<Place, int, int64_t, size_t>, GraphValue> slices_;  // of what is not of the stack
  std::vector<GraphNode*> new_slices_;
  std::map<Place, GraphValue> wholes_;
  std::map<const GraphNode*, GraphValue> sums_;
};

class SplitOverTime final : public Pass {
 public:
  std::string_view name() const override { return "split_over_time"; }

  void run(Graph& graph, const Options& options) const override {
    FreshNumbers fresh(graph);
    const int first_part = fresh.part;
    std::unordered_set<const GraphNode*> left;  // as they are
    while (GraphNode* last = last_layer(graph, left, first_part)) {
      const std::vector<TimeSpan> spans = spans_of(last->inputs[0].spec().shape[0]);
      if (const std::optional<LstmStack> stack = LstmStack::of(graph, *last, spans)) {
        StackInSpans(graph, *stack, spans, fresh).build();
        dead_code()->run(graph, options);
      } else {
        left.insert(last);
      }
    }
  }

 private:
  static GraphNode* last_layer(Graph& graph, const std::unordered_set<const GraphNode*>& left, int first_part) {
    for (auto node = graph.nodes().rbegin(); node != graph.nodes().rend(); ++node) {
      if (!LstmStack::is_layer(*node) || node->phase != Phase::forward || left.contains(&*node)) continue;
      const std::vector<int>& parts = node->recomputed_parts;
      if (parts.empty() || parts.back() >= first_part || node->inputs[0].spec().shape[0] < kFewestTimes) continue;
      if (has_kernel(find_op("put_slice"), node->device())) return &*node;
    }
    return nullptr;
  }
};

}  // namespace

std::unique_ptr<Pass> split_over_time() { return std::make_unique<SplitOverTime>(); }

}  // namespace bonfire::passes
