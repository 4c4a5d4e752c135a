#include "bonfire/parallel/pipeline/cut_stages.h"

#include <algorithm>
#include <set>
#include <unordered_map>
#include <unordered_set>

#include "bonfire/base/error.h"
#include "bonfire/comm/group.h"
#include "bonfire/comm/messages.h"
#include "bonfire/graph/mesh.h"
#include "bonfire/parallel/pipeline/stage_graph.h"

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
    require_work_everywhere();
    CutStep cut;
    for (int stage = 0; stage < options_.stages; ++stage)
      cut.stages.push_back(stage % options_.ranks == options_.rank ? build_stage(stage) : StageStep{});
    cut.result_stages = result_stages_;
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

  // --- where a node is computed --------------------------------------------------------------------------------------

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

  // --- the gradients of parameters that several stages use -----------------------------------------------------------

  // Each stage sums what it has itself. Assignments of one variable by several stages are apart from then on.
  void share_out_sums() {
    for (const GraphAssignment& one : graph_.assignments) {
      const std::map<int, GraphValue> of_stage = parts_of(one.value);
      if (of_stage.size() < 2) assigned_.push_back({one.variable, one.value, place_of_assigned(one)});
      if (of_stage.size() > 1) require_other_ranks(*one.variable, of_stage);
      if (of_stage.size() > 1)
        for (const auto& [stage, total] : of_stage) assigned_.push_back({one.variable, total, {stage, Part::backward}});
    }
  }

  // Of two programs of a rank each would write the gradient, or each add to it.
  void require_other_ranks(const GraphNode& variable, const std::map<int, GraphValue>& of_stage) const {
    std::map<int, int> stage_on;
    for (const auto& [stage, total] : of_stage)
      if (auto [other, fresh] = stage_on.emplace(stage % options_.ranks, stage); !fresh)
        throw_error<ConfigError>(
            "[pipeline] stages {} and {} share the parameter of {}, and rank {} has both stages; cut so that they are "
            "on two ranks, or use fewer chunks",
            other->second, stage, variable.path.empty() ? "an unnamed gradient" : variable.path, other->first);
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

  // --- what is sent --------------------------------------------------------------------------------------------------

  bool is_used(const GraphNode& node) const { return !node.is_input() && !replaced_.contains(&node); }

  void find_crossings() {
    std::set<std::tuple<int, int, int>> seen;  // to, node, output: as schedules group what a rank sends another
    std::vector<std::pair<std::tuple<int, int, int>, Crossing>> found;
    for (const GraphNode& node : graph_.nodes()) {
      if (!is_used(node) || is_everywhere(&node)) continue;
      const Place to = places_.at(&node);
      for (const GraphValue& input : node.inputs) {
        if (is_everywhere(input.node)) continue;
        const Place from = places_.at(input.node);
        if (from.stage == to.stage) continue;
        require_direction(node, to, *input.node, from);
        const std::tuple key(to.stage, order_.at(input.node), input.index);
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

  void require_work_everywhere() const {
    std::set<int> busy;
    for (const auto& [node, place] : places_) busy.insert(place.stage);
    for (int stage = 0; stage < options_.stages; ++stage)
      if (!busy.contains(stage))
        throw_error<ConfigError>("[pipeline] the cut leaves stage {} without anything to compute; cut elsewhere",
                                 stage);
  }

  // --- a stage as one graph ------------------------------------------------------------------------------------------

  using ValueKey = std::pair<const GraphNode*, int>;

  struct Building {
    StageGraph made;
    int stage;
    std::map<ValueKey, GraphValue> of_value;
    std::unordered_map<const GraphNode*, GraphNode*> of_node;
    std::vector<GraphValue> forward_ends = {};  // once it is computed
    std::map<ValueKey, int> received = {};      // values of the step
  };

  StageStep build_stage(int stage) {
    Building to{.made = {}, .stage = stage, .of_value = {}, .of_node = {}};
    StageGraph& made = to.made;
    made.graph = std::make_unique<Graph>();
    for (size_t i = 0; i < crossings_.size(); ++i) note_message(to, static_cast<int>(i));
    copy_nodes(to, Part::forward);
    send(to, Phase::forward);
    for (size_t i = 0; i < result_stages_.size(); ++i) {
      if (result_stages_[i] != stage || part_of(graph_.outputs[i]) != Part::forward) continue;
      to.forward_ends.push_back(copied(to, graph_.outputs[i]));
    }
    copy_nodes(to, Part::backward);
    send(to, Phase::backward);
    for (size_t i = 0; i < result_stages_.size(); ++i) {
      const bool is_here = result_stages_[i] == stage;
      made.step.results.push_back(is_here ? static_cast<int>(made.step.values.size()) : -1);
      if (!is_here) continue;
      made.step.values.push_back({.spec = graph_.outputs[i].spec()});
      made.graph->add_output(copied(to, graph_.outputs[i]));
      made.result_parts.push_back(part_of(graph_.outputs[i]));
    }
    for (const Assigned& one : assigned_)
      if (one.place.stage == stage) assign(to, one);
    passes::run_pipeline(*made.graph, options_.passes);
    return cut_programs(std::move(made), options_.splits_weights);
  }

  void note_message(Building& to, int number) {
    StageStep& step = to.made.step;
    const Crossing& one = crossings_[static_cast<size_t>(number)];
    if (one.from != to.stage && one.to != to.stage) return;
    MessageOf message{.from = one.from, .to = one.to, .phase = one.phase, .tag = number, .spec = one.value.spec()};
    if (one.to == to.stage) {
      message.value = static_cast<int>(step.values.size());
      to.received[{one.value.node, one.value.index}] = message.value;
      step.values.push_back({.spec = one.value.spec(), .from = one.from, .phase = one.phase});
    }
    step.messages.push_back(message);
  }

  Part part_of(const GraphValue& value) const {  // a result may be computed anywhere
    return is_everywhere(value.node) ? Part::forward : places_.at(value.node).part;
  }

  void copy_nodes(Building& to, Part part) {
    for (const GraphNode& node : graph_.nodes())
      if (is_used(node) && !is_everywhere(&node) && places_.at(&node).stage == to.stage &&
          places_.at(&node).part == part)
        copy_node(to, node);
  }

  void send(Building& to, Phase phase) {
    for (size_t i = 0; i < crossings_.size(); ++i) {
      const Crossing& one = crossings_[i];
      if (one.from != to.stage || one.phase != phase) continue;
      GraphNode* sent = to.made.graph->add(comm::send_op(), {copied(to, one.value)},
                                           {{"axis", static_cast<int>(Axis::pipeline)},
                                            {"peer", one.to % options_.ranks},
                                            {"tag", static_cast<int64_t>(i)},
                                            {"dtype", one.value.spec().dtype}});
      to.made.sent[sent] = phase;
      if (phase == Phase::forward) to.forward_ends.push_back({sent, 0});
    }
  }

  GraphValue input_of(Building& to, const GraphValue& value, LeafKind kind, LeafSource source) {
    GraphNode* leaf = to.made.graph->add_input(kind, value.spec());
    leaf->leaf_position = static_cast<int>(to.made.leaves.size());
    leaf->path = value.node->is_input() ? value.node->path : "";
    to.made.leaves.push_back(source);
    return {leaf, 0};
  }

  // A gradient of another stage comes after all that this one computes before it: what fuses must not mix the two.
  GraphValue received(Building& to, const GraphValue& value) {
    const int slot = to.received.at({value.node, value.index});
    const GraphValue leaf = input_of(to, value, LeafKind::feed, {.value = slot});
    if (to.made.step.values[static_cast<size_t>(slot)].phase == Phase::forward || to.forward_ends.empty()) return leaf;
    std::vector<GraphValue> inputs{leaf};
    inputs.insert(inputs.end(), to.forward_ends.begin(), to.forward_ends.end());
    GraphNode* after = to.made.graph->add(after_forward_op, std::move(inputs));
    after->phase = Phase::backward;
    return {after, 0};
  }

  GraphValue copied(Building& to, const GraphValue& value) {
    const ValueKey key(value.node, value.index);
    if (auto found = to.of_value.find(key); found != to.of_value.end()) return found->second;
    const GraphNode& node = *value.node;
    if (node.is_input()) return to.of_value[key] = input_of(to, value, node.leaf, {.leaf = node.leaf_position});
    const Place& place = places_.at(&node);
    if (place.stage >= 0 && place.stage != to.stage) return to.of_value[key] = received(to, value);
    return {copy_node(to, node), value.index};
  }

  GraphNode* copy_node(Building& to, const GraphNode& node) {
    if (auto found = to.of_node.find(&node); found != to.of_node.end()) return found->second;
    std::vector<GraphValue> inputs;
    for (const GraphValue& input : node.inputs) inputs.push_back(copied(to, input));
    GraphNode* made = to.made.graph->add_like(node, *node.op, std::move(inputs), node.attributes);
    return to.of_node[&node] = made;
  }

  void assign(Building& to, const Assigned& one) {
    Graph& graph = *to.made.graph;
    GraphValue value = copied(to, one.value);
    const GraphValue variable = copied(to, {one.variable, 0});
    if (value.spec().dtype != variable.spec().dtype)  // under mixed precision, of a sum of both types a narrow part
      value = {graph.add_like(*one.value.node, cast_, {value}, {{"dtype", variable.spec().dtype}}), 0};
    graph.assign(variable.node, value);
    to.made.assigned_parts.push_back(one.place.part);
  }

  // --- who holds what ------------------------------------------------------------------------------------------------

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
};

}  // namespace

CutStep cut_stages(Graph& graph, const ForwardStages& forward, const CutStagesOptions& options) {
  return Cutter(graph, forward, options).run();
}

}  // namespace bonfire::pipeline
