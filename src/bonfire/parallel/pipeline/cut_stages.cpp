#include "bonfire/parallel/pipeline/cut_stages.h"

#include <algorithm>
#include <set>
#include <unordered_map>
#include <unordered_set>

#include "bonfire/base/error.h"
#include "bonfire/comm/group.h"
#include "bonfire/comm/messages.h"
#include "bonfire/graph/mesh.h"

namespace bonfire::pipeline {
namespace {

struct Place {
  int stage = -1;  // none: it is computed wherever it is read
  Part part = Part::forward;
};

// A value that one stage reads of another.
struct Crossing {
  GraphValue value;
  int from, to;
  Phase phase;  // backward: it is sent after B
};

std::string named(const GraphNode& node) {
  return fmt::format("[{}]{}", node.name(), node.path.empty() ? "" : " in module " + node.path);
}

class Cutter {
 public:
  Cutter(Graph& graph, const ForwardStages& forward, const CutStagesOptions& options)
      : graph_(graph), forward_(forward), options_(options) {}

  CutStep run() {
    for (GraphNode& node : graph_.nodes()) order_.emplace(&node, static_cast<int>(order_.size()));
    for (GraphNode& node : graph_.nodes()) places_[&node] = place_of(node);
    bring_to_readers();
    share_out_sums();
    for (size_t i = 0; i < graph_.outputs.size(); ++i) result_stages_.push_back(stage_of_result(graph_.outputs[i]));
    find_crossings();
    if (options_.splits_weights) split_weights();
    CutStep cut;
    for (int stage = 0; stage < options_.stages; ++stage) cut.stages.push_back(build_stage(stage));
    cut.holders = holders();
    for (const Crossing& one : crossings_) {
      const Edge edge = one.phase == Phase::forward ? Edge{one.from, one.to} : Edge{one.to, one.from};
      if (std::find(cut.edges.begin(), cut.edges.end(), edge) == cut.edges.end()) cut.edges.push_back(edge);
    }
    std::sort(cut.edges.begin(), cut.edges.end(),
              [](const Edge& a, const Edge& b) { return std::pair(a.from, a.to) < std::pair(b.from, b.to); });
    return cut;
  }

 private:
  struct Assigned {
    GraphNode* variable;
    GraphValue value;
    Place place;
  };

  // --- where a node is computed
  // ----------------------------------------------------------------------------------------

  bool is_everywhere(const GraphNode* node) const { return node->is_input() || places_.at(node).stage < 0; }

  // Made of inputs alone; of parameters too where that costs next to nothing.
  bool may_be_everywhere(const GraphNode& node) {
    if (node.op->has(Trait::stateful | Trait::collective)) return false;
    bool has_variable = false;
    for (const GraphValue& input : node.inputs) {
      if (!is_everywhere(input.node)) return false;
      has_variable |= input.node->leaf == LeafKind::variable || of_variables_.contains(input.node);
    }
    if (!has_variable) return true;
    if (!node.op->has(Trait::view | Trait::elementwise)) return false;
    of_variables_.insert(&node);
    return true;
  }

  Place place_of(const GraphNode& node) {
    if (node.is_input() || may_be_everywhere(node)) return {};
    Part part = node.phase == Phase::forward ? Part::forward : Part::backward;
    int first = options_.stages, last = -1;  // of what it reads, that of the same pass if there is any
    for (const GraphValue& input : node.inputs) {
      if (is_everywhere(input.node)) continue;
      const Place& other = places_.at(input.node);
      part = std::max(part, other.part);
      last = std::max(last, other.stage);
      if (other.part == Part::backward) first = std::min(first, other.stage);
    }
    int stage = forward_.of_number(node.phase == Phase::forward ? node.number : node.origin);
    if (stage < 0 && node.phase == Phase::forward) stage = forward_.of_path(node.path);
    if (stage < 0) stage = part == Part::backward && first < options_.stages ? first : last;
    if (stage < 0) stage = options_.stages - 1;
    return {stage, part};
  }

  // What is gathered or cut over the tensor axis for several readers was put in for one of them, and has its module. It
  // stands where none has to wait for a later stage: a forward pass goes on to later ones, a backward pass to earlier.
  void bring_to_readers() {
    for (auto node = graph_.nodes().rbegin(); node != graph_.nodes().rend(); ++node) {
      if (is_everywhere(&*node) || !is_moved(*node)) continue;
      Place& own = places_.at(&*node);
      for (const GraphNode* reader : graph_.users({&*node, 0})) {
        const Place& other = places_.at(reader);
        if (other.part != own.part) continue;
        own.stage = own.part == Part::forward ? std::min(own.stage, other.stage) : std::max(own.stage, other.stage);
      }
    }
  }

  int stage_of_result(const GraphValue& value) const {
    return is_everywhere(value.node) ? options_.stages - 1 : places_.at(value.node).stage;
  }

  // --- the gradients of parameters that several stages use
  // ---------------------------------------------------------------

  // Each stage sums what it has itself. Assignments of one variable by several stages are apart from then on.
  void share_out_sums() {
    for (const GraphAssignment& one : graph_.assignments) {
      const std::map<int, GraphValue> of_stage = parts_of(one.value);
      if (of_stage.size() < 2) assigned_.push_back({one.variable, one.value, place_of_assigned(one)});
      if (of_stage.size() > 1)
        for (const auto& [stage, total] : of_stage) assigned_.push_back({one.variable, total, {stage, Part::backward}});
    }
  }

  // What each stage has of a gradient: of a sum its terms, and likewise of what sums become afterwards (a cast, a sum
  // over the tensor axis, a slice). Where several have something, that takes nodes of their own, and the others go.
  std::map<int, GraphValue> parts_of(const GraphValue& value) {
    const GraphNode& node = *value.node;
    if (node.is_input() || is_everywhere(&node) || node.phase != Phase::backward) return {};
    const bool is_sum = node.op == &add_ && node.inputs[0].spec().shape == node.inputs[1].spec().shape;
    if (!is_sum && !is_linear(node)) return {};
    std::map<int, std::vector<GraphValue>> terms;
    for (const GraphValue& term : node.inputs) {
      const std::map<int, GraphValue> of_term = is_read_once(term) ? parts_of(term) : std::map<int, GraphValue>{};
      for (const auto& [stage, part] : of_term) terms[stage].push_back(part);
      if (of_term.empty()) terms[places_.at(is_everywhere(term.node) ? &node : term.node).stage].push_back(term);
    }
    if (terms.size() < 2) return {};
    replaced_.insert(&node);
    std::map<int, GraphValue> of_stage;
    for (auto& [stage, list] : terms) of_stage[stage] = is_sum ? sum_of(node, stage, list) : again(node, stage, list);
    return of_stage;
  }

  // Of one operand, and its value for a sum is the sum of the values.
  bool is_linear(const GraphNode& node) const {
    if (node.inputs.size() != 1) return false;
    if (node.op == &all_reduce_ || node.op == &reduce_scatter_)
      return node.attributes.integer("reduce") == static_cast<int64_t>(comm::Reduce::sum);
    return node.op == &cast_ || is_moved(node);
  }

  // Between ranks or in itself.
  bool is_moved(const GraphNode& node) const {
    return node.op->has(Trait::view) || node.op == &slice_ || node.op == &permute_ || node.op == &all_gather_;
  }

  bool is_read_once(const GraphValue& value) const {
    return graph_.users(value).size() == 1 && graph_.graph_uses(value) == 0;
  }

  GraphValue sum_of(const GraphNode& like, int stage, std::span<const GraphValue> terms) {
    GraphValue total = terms[0];
    for (const GraphValue& term : terms.subspan(1)) total = again(like, stage, {{total, term}});
    return total;
  }

  // The node for other operands, in that stage.
  GraphValue again(const GraphNode& node, int stage, std::span<const GraphValue> inputs) {
    GraphNode* made = graph_.add_like(node, *node.op, {inputs.begin(), inputs.end()}, node.attributes);
    order_.emplace(made, static_cast<int>(order_.size()));
    places_[made] = {stage, Part::backward};
    return {made, 0};
  }

  Place place_of_assigned(const GraphAssignment& one) const {
    const GraphNode* node = one.value.node;
    if (!is_everywhere(node)) return places_.at(node);
    const int stage = node->is_input() ? -1 : forward_.of_number(node->origin >= 0 ? node->origin : node->number);
    return {std::max(stage, 0), node->phase == Phase::forward ? Part::forward : Part::backward};
  }

  // --- what is sent
  // ----------------------------------------------------------------------------------------------------

  bool is_used(const GraphNode& node) const { return !node.is_input() && !replaced_.contains(&node); }

  void find_crossings() {
    std::set<std::tuple<int, int, int>> seen;  // node, output, to
    std::vector<std::pair<std::tuple<int, int, int>, Crossing>> found;
    for (const GraphNode& node : graph_.nodes()) {
      if (!is_used(node) || is_everywhere(&node)) continue;
      const Place to = places_.at(&node);
      for (const GraphValue& input : node.inputs) {
        if (is_everywhere(input.node)) continue;
        const Place from = places_.at(input.node);
        if (from.stage == to.stage) continue;
        require_direction(node, to, *input.node, from);
        const std::tuple key(order_.at(input.node), input.index, to.stage);
        const Phase phase = from.part == Part::forward && from.stage < to.stage ? Phase::forward : Phase::backward;
        if (seen.insert(key).second) found.emplace_back(key, Crossing{input, from.stage, to.stage, phase});
      }
    }
    std::sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
    for (const auto& [key, crossing] : found) crossings_.push_back(crossing);
  }

  static void require_direction(const GraphNode& reader, const Place& to, const GraphNode& made, const Place& from) {
    const bool goes_on = from.stage < to.stage;
    if (from.part == Part::forward && (goes_on || to.part != Part::forward)) return;
    if (from.part == Part::backward && !goes_on && to.part == Part::backward) return;
    throw_error<ConfigError>(
        "[pipeline] {} of stage {} reads what {} of stage {} computes in its {} pass: values go to later stages in the "
        "forward pass and to earlier ones in the backward pass; cut so that both are in one stage",
        named(reader), to.stage, named(made), from.stage, from.part == Part::forward ? "forward" : "backward");
  }

  // B keeps what the gradients that are sent are made of.
  void split_weights() {
    std::unordered_set<const GraphNode*> sent;
    std::vector<const GraphNode*> left;
    for (const Crossing& one : crossings_)
      if (one.phase == Phase::backward) left.push_back(one.value.node);
    while (!left.empty()) {
      const GraphNode* node = left.back();
      left.pop_back();
      if (is_everywhere(node) || !sent.insert(node).second) continue;
      for (const GraphValue& input : node->inputs)
        if (!is_everywhere(input.node) && places_.at(input.node).stage == places_.at(node).stage)
          left.push_back(input.node);
    }
    for (auto& [node, place] : places_)
      if (place.stage >= 0 && place.part == Part::backward && !sent.contains(node)) place.part = Part::weights;
    for (Assigned& one : assigned_)
      if (one.place.part == Part::backward) one.place.part = Part::weights;
  }

  // --- the programs of a stage
  // -----------------------------------------------------------------------------------------

  StageStep build_stage(int stage) {
    StageStep made;
    slots_.clear();
    in_slots_.clear();
    for (size_t i = 0; i < crossings_.size(); ++i) {
      const Crossing& one = crossings_[i];
      if (one.from != stage && one.to != stage) continue;
      MessageOf message{
          .from = one.from, .to = one.to, .phase = one.phase, .tag = static_cast<int64_t>(i), .spec = one.value.spec()};
      if (one.to == stage) {
        message.value = slot_of(made, one.value);
        SlotValue& slot = made.values[static_cast<size_t>(message.value)];
        slot.from = one.from;
        slot.phase = one.phase;
        slot.tag = message.tag;
      }
      made.messages.push_back(message);
    }
    for (size_t i = 0; i < result_stages_.size(); ++i)
      made.results.push_back(result_stages_[i] == stage ? slot_of(made, graph_.outputs[i]) : -1);
    made.result_stages = result_stages_;
    note_kept(made, stage);
    bool any = false;
    for (int part = 0; part < kParts; ++part) {
      made.writing[static_cast<size_t>(part)] = build(stage, static_cast<Part>(part), false);
      if (part > 0) made.adding[static_cast<size_t>(part)] = build(stage, static_cast<Part>(part), true);
      any |= made.writing[static_cast<size_t>(part)].graph != nullptr;
    }
    if (!any)
      throw_error<ConfigError>("[pipeline] the cut leaves stage {} without anything to compute; cut elsewhere", stage);
    return made;
  }

  using ValueKey = std::pair<const GraphNode*, int>;

  int slot_of(StageStep& made, const GraphValue& value) {
    auto [place, fresh] = slots_.emplace(ValueKey(value.node, value.index), static_cast<int>(made.values.size()));
    if (fresh) made.values.push_back({.spec = value.spec()});
    if (fresh) in_slots_.push_back(value);
    return place->second;
  }

  // What one program leaves for a later one of the stage.
  void note_kept(StageStep& made, int stage) {
    auto note = [&](const GraphValue& value, Part reader) {
      if (is_everywhere(value.node)) return;
      const Place& place = places_.at(value.node);
      BONFIRE_CHECK(place.stage != stage || place.part <= reader, "{} is read before it is computed",
                    named(*value.node));
      if (place.stage == stage && place.part != reader) slot_of(made, value);
    };
    for (const GraphNode& node : graph_.nodes())
      if (is_used(node) && !is_everywhere(&node) && places_.at(&node).stage == stage)
        for (const GraphValue& input : node.inputs) note(input, places_.at(&node).part);
    for (const Assigned& one : assigned_)
      if (one.place.stage == stage) note(one.value, one.place.part);
    for (const Crossing& one : crossings_)
      if (one.from == stage) note(one.value, one.phase == Phase::forward ? Part::forward : Part::backward);
  }

  struct Building {
    ProgramGraph program;
    int stage;
    Part part;
    std::map<ValueKey, GraphValue> of_value;
    std::unordered_map<const GraphNode*, GraphNode*> of_node;
  };

  GraphValue input_of(Building& to, const ValueKey& key, LeafKind kind, const TensorSpec& spec, LeafSource source) {
    GraphNode* leaf = to.program.graph->add_input(kind, spec);
    leaf->leaf_position = static_cast<int>(to.program.leaves.size());
    leaf->path = key.first->is_input() ? key.first->path : "";
    to.program.leaves.push_back(source);
    return to.of_value[key] = {leaf, 0};
  }

  GraphValue copied(Building& to, const GraphValue& value) {
    const ValueKey key(value.node, value.index);
    if (auto found = to.of_value.find(key); found != to.of_value.end()) return found->second;
    const GraphNode& node = *value.node;
    if (node.is_input()) return input_of(to, key, node.leaf, node.outputs[0], {.leaf = node.leaf_position});
    const Place& place = places_.at(&node);
    if (place.stage >= 0 && (place.stage != to.stage || place.part != to.part))
      return input_of(to, key, LeafKind::feed, value.spec(), {.value = slots_.at(key)});
    return {copy_node(to, node), value.index};
  }

  GraphNode* copy_node(Building& to, const GraphNode& node) {
    if (auto found = to.of_node.find(&node); found != to.of_node.end()) return found->second;
    std::vector<GraphValue> inputs;
    for (const GraphValue& input : node.inputs) inputs.push_back(copied(to, input));
    GraphNode* made = to.program.graph->add_like(node, *node.op, std::move(inputs), node.attributes);
    return to.of_node[&node] = made;
  }

  // `adds`: to the gradients that are there.
  ProgramGraph build(int stage, Part part, bool adds) {
    Building to{.program = {}, .stage = stage, .part = part, .of_value = {}, .of_node = {}};
    to.program.graph = std::make_unique<Graph>();
    Graph& graph = *to.program.graph;
    for (const GraphNode& node : graph_.nodes())
      if (is_used(node) && !is_everywhere(&node) && places_.at(&node).stage == stage && places_.at(&node).part == part)
        copy_node(to, node);
    for (size_t slot = 0; slot < in_slots_.size(); ++slot) {
      const GraphValue& value = in_slots_[slot];  // a result may be computed anywhere
      const Place place = is_everywhere(value.node) ? Place{stage, Part::forward} : places_.at(value.node);
      if (place.stage != stage || place.part != part) continue;
      graph.add_output(copied(to, value));
      to.program.outputs.push_back(static_cast<int>(slot));
    }
    for (size_t i = 0; i < crossings_.size(); ++i) {
      const Crossing& one = crossings_[i];
      if (one.from != stage || part != (one.phase == Phase::forward ? Part::forward : Part::backward)) continue;
      graph.add(comm::send_op(), {copied(to, one.value)},
                {{"axis", static_cast<int>(Axis::pipeline)},
                 {"peer", one.to},
                 {"tag", static_cast<int64_t>(i)},
                 {"dtype", one.value.spec().dtype}});
    }
    assign(to, adds);
    const bool is_empty =
        std::all_of(graph.nodes().begin(), graph.nodes().end(), [](const GraphNode& node) { return node.is_input(); });
    return is_empty && to.program.assigned.empty() ? ProgramGraph{} : std::move(to.program);
  }

  void assign(Building& to, bool adds) {
    Graph& graph = *to.program.graph;
    for (const Assigned& one : assigned_) {
      if (one.place.stage != to.stage || one.place.part != to.part) continue;
      GraphValue value = copied(to, one.value);
      const GraphValue variable = copied(to, {one.variable, 0});
      if (value.spec().dtype != variable.spec().dtype)  // under mixed precision, of a sum of both types a narrow part
        value = {graph.add_like(*one.value.node, cast_, {value}, {{"dtype", variable.spec().dtype}}), 0};
      if (adds && to.part != Part::forward) {
        GraphNode* sum = graph.add(add_, {variable, value});
        sum->phase = Phase::backward;
        sum->path = one.value.node->path;
        value = {sum, 0};
      }
      graph.assign(variable.node, value);
      to.program.assigned.push_back(one.variable->leaf_position);
    }
  }

  // --- who holds what
  // --------------------------------------------------------------------------------------------------

  std::map<int, std::vector<int>> holders() const {
    std::map<int, std::set<int>> all;
    for (const GraphNode& node : graph_.nodes())
      if (is_used(node) && !is_everywhere(&node))
        for (const GraphValue& input : node.inputs) note_variables(input.node, places_.at(&node).stage, all);
    for (size_t i = 0; i < result_stages_.size(); ++i) note_variables(graph_.outputs[i].node, result_stages_[i], all);
    for (const Assigned& one : assigned_) {
      all[one.variable->leaf_position].insert(one.place.stage);
      note_variables(one.value.node, one.place.stage, all);
    }
    std::map<int, std::vector<int>> lists;
    for (const auto& [leaf, stages] : all) lists[leaf] = {stages.begin(), stages.end()};
    return lists;
  }

  void note_variables(const GraphNode* node, int stage, std::map<int, std::set<int>>& all) const {
    if (node->leaf == LeafKind::variable) all[node->leaf_position].insert(stage);
    if (node->is_input() || !is_everywhere(node)) return;
    for (const GraphValue& input : node->inputs) note_variables(input.node, stage, all);
  }

  Graph& graph_;
  const ForwardStages& forward_;
  const CutStagesOptions& options_;
  const Op &add_ = find_op("add"), &cast_ = find_op("cast"), &slice_ = find_op("slice"), &permute_ = find_op("permute");
  const Op &all_reduce_ = find_op("all_reduce"), &reduce_scatter_ = find_op("reduce_scatter"),
           &all_gather_ = find_op("all_gather");
  std::unordered_map<const GraphNode*, int> order_;
  std::unordered_map<const GraphNode*, Place> places_;
  std::unordered_set<const GraphNode*> of_variables_, replaced_;
  std::vector<Assigned> assigned_;
  std::vector<int> result_stages_;
  std::vector<Crossing> crossings_;
  std::map<ValueKey, int> slots_;     // of the stage that is built
  std::vector<GraphValue> in_slots_;  // [slots]
};

}  // namespace

CutStep cut_stages(Graph& graph, const ForwardStages& forward, const CutStagesOptions& options) {
  return Cutter(graph, forward, options).run();
}

}  // namespace bonfire::pipeline
