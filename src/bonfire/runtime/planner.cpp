#include "bonfire/runtime/planner.h"

#include <algorithm>
#include <map>
#include <set>
#include <unordered_set>

#include "bonfire/base/error.h"
#include "bonfire/comm/agreement.h"
#include "bonfire/runtime/memory.h"
#include "bonfire/runtime/profile.h"
#include "bonfire/runtime/separate_outputs.h"

namespace bonfire::runtime {

namespace {

struct ValueHash {
  size_t operator()(const GraphValue& value) const {
    return std::hash<const void*>()(value.node) + static_cast<size_t>(value.index);
  }
};

// A piece of memory and everything that is known of it while planning. Views share their input's.
struct Cell {
  Device device;
  size_t bytes = 0;
  int first = -1, last = -1;  // positions of the step that writes it, and of the last that reads it
  bool placed = false;        // location is final
  Location location;
  int arena_slot = -1;  // interval, when it is a temporary
};

class Planner {
 public:
  Planner(std::unique_ptr<Graph> graph, std::span<const LeafLayout> leaves, bool fast_math)
      : graph_(*graph), plan_(std::make_unique<Plan>()) {
    separate_outputs(graph_);
    choices_ = choose_candidates(graph_, leaves, fast_math);
    plan_->graph = std::move(graph);
  }

  std::unique_ptr<Plan> run() {
    order_nodes();
    make_cells();
    place_inputs();
    defer_unsafe_assignments();
    place_results();
    place_temporaries();
    build_programs();
    plan_->leaf_layouts = choices_.leaf_layouts;
    plan_->leaf_layout_used = choices_.leaf_layout_used;
    return std::move(plan_);
  }

 private:
  // --- order -------------------------------------------------------------------------------------------------------
  // Programs alternate between devices only where values cross: a node's level counts the crossings before it, and all
  // nodes of one device and level form one program.
  void order_nodes() {
    std::map<const GraphNode*, int> level;
    std::map<std::pair<int, Device>, std::vector<GraphNode*>> groups;
    for (GraphNode& node : graph_.nodes()) {
      int own = 0;
      for (const GraphValue& input : node.inputs) {
        bool crosses = !input.node->is_input() && input.node->device() != node.device();
        own = std::max(own, level[input.node] + (crosses ? 1 : 0));
      }
      level[&node] = own;
      if (!node.is_input()) groups[{own, node.device()}].push_back(&node);
    }
    for (auto& [key, nodes] : groups) {
      for (GraphNode* node : nodes) {
        position_[node] = static_cast<int>(order_.size());
        program_of_.push_back(static_cast<int>(program_devices_.size()));
        order_.push_back(node);
      }
      program_devices_.push_back(key.second);
    }
  }

  void append_last(GraphNode* node, Candidate candidate) {
    int program = -1;
    for (size_t i = 0; i < program_devices_.size(); ++i)
      if (program_devices_[i] == node->device()) program = static_cast<int>(i);
    BONFIRE_CHECK(program >= 0);
    position_[node] = static_cast<int>(order_.size());
    program_of_.push_back(program);
    order_.push_back(node);
    choices_.of_node[node] = {std::move(candidate), false};
  }

  // --- memory ------------------------------------------------------------------------------------------------------
  int new_cell(const GraphValue& value, const Layout& layout) {
    Cell cell;
    cell.device = value.spec().device;
    cell.bytes = std::max<size_t>(1, bytes_of(value.spec().shape, value.spec().dtype, layout));
    cells_.push_back(cell);
    return cell_of_[value] = static_cast<int>(cells_.size()) - 1;
  }

  void make_cells() {
    for (GraphNode& node : graph_.nodes())
      if (node.is_input()) new_cell({&node, 0}, {});
    for (GraphNode* node : order_) make_cells_of(*node);
  }

  void make_cells_of(GraphNode& node) {
    int now = position_.at(&node);
    for (const GraphValue& input : node.inputs) {
      Cell& cell = cells_[cell_of_.at(input)];
      cell.last = std::max(cell.last, now);
    }
    const Choice& choice = choices_.of_node.at(&node);
    if (choice.alias) {
      cell_of_[{&node, 0}] = cell_of_.at(node.inputs[0]);
      return;
    }
    for (int i = 0; i < static_cast<int>(node.outputs.size()); ++i) {
      Cell& cell = cells_[new_cell({&node, i}, choice.candidate.output_layouts[i])];
      cell.first = cell.last = now;
    }
  }

  Cell& cell(const GraphValue& value) { return cells_[cell_of_.at(value)]; }

  static void settle(Cell& cell, Location location) {
    cell.location = location;
    cell.placed = true;
  }

  void place_inputs() {
    std::map<Device, size_t> scalar_bytes;
    for (GraphNode& node : graph_.nodes()) {
      if (!node.is_input()) continue;
      Cell& here = cell({&node, 0});
      switch (node.leaf) {
        case LeafKind::variable: settle(here, {Source::variable, node.leaf_position, 0}); break;
        case LeafKind::feed: settle(here, {Source::feed, node.leaf_position, 0}); break;
        default: {
          size_t& offset = scalar_bytes[node.device()];
          settle(here, {Source::scalar, node.leaf_position, offset});
          scalar_slots_[node.device()].push_back({node.leaf_position, offset});
          offset += (here.bytes + 15) / 16 * 16;
        }
      }
    }
    scalar_bytes_ = scalar_bytes;
  }

  // Whether the producer of `value` may write straight over the variable: nobody reads the old version afterwards, and
  // if the producer itself reads it, it must be able to work in place.
  bool may_write_over(const GraphAssignment& assignment) {
    const Cell& old = cell({assignment.variable, 0});
    const Cell& fresh = cell(assignment.value);
    if (old.last < fresh.first) return true;
    if (old.last > fresh.first) return false;
    return writes_in_place(*order_[fresh.first], cell_of_.at(assignment.value), cell_of_.at({assignment.variable, 0}));
  }

  bool writes_in_place(const GraphNode& node, int output_cell, int input_cell) {
    const Candidate& candidate = choices_.of_node.at(&node).candidate;
    int read = 0, allowed = 0;
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      if (cell_of_.at(node.inputs[i]) != input_cell) continue;
      ++read;
      for (const auto& [output, input] : candidate.in_place)
        if (input == static_cast<int>(i) && cell_of_.at({const_cast<GraphNode*>(&node), output}) == output_cell)
          ++allowed;
    }
    return read == 1 && allowed == 1;
  }

  // The others are computed into a temporary, and copied over the variable when everything else is done.
  void defer_unsafe_assignments() {
    std::vector<size_t> unsafe;
    for (size_t i = 0; i < graph_.assignments.size(); ++i)
      if (!may_write_over(graph_.assignments[i])) unsafe.push_back(i);
    for (size_t i : unsafe) {
      const GraphAssignment& assignment = graph_.assignments[i];
      const Layout& layout = choices_.leaf_layouts[assignment.variable->leaf_position];
      GraphNode* copy = graph_.add(copy_op(), {assignment.value});
      copy->path = assignment.variable->path;
      std::vector<Layout> arriving{layout};
      append_last(copy, std::move(candidates_for({*copy, arriving}).front()));
      make_cells_of(*copy);
      graph_.set_assigned(i, {copy, 0});
    }
  }

  void place_results() {
    for (const GraphAssignment& assignment : graph_.assignments) {
      settle(cell(assignment.value), {Source::variable, assignment.variable->leaf_position, 0});
      place_sources(assignment);
    }
    for (size_t i = 0; i < graph_.outputs.size(); ++i) {
      plan_->outputs.push_back(graph_.outputs[i].spec());
      settle(cell(graph_.outputs[i]), {Source::output, static_cast<int>(i), 0});
    }
    for (GraphNode* node : order_) {
      for (const GraphValue& input : node->inputs) {
        Cell& source = cell(input);
        if (source.placed || source.device == node->device()) continue;
        settle(source, {Source::crossing, static_cast<int>(plan_->crossings.size()), 0});
        plan_->crossings.push_back({{static_cast<int64_t>(source.bytes)}, DType::u8, source.device});
      }
    }
  }

  // What an op in place turns into a variable's new version (a gradient that is all-reduced) is made in the variable's
  // memory from the start, where nobody reads the old version any more.
  void place_sources(const GraphAssignment& assignment) {
    const int last_read = cell({assignment.variable, 0}).last;
    for (GraphValue made = assignment.value; !made.node->is_input();) {
      const Choice& choice = choices_.of_node.at(made.node);
      GraphValue source;
      for (const auto& [output, input] : choice.candidate.in_place)
        if (!choice.alias && output == made.index) source = made.node->inputs[input];
      if (!source) return;
      Cell& before = cell(source);
      bool dies = before.last == position_.at(made.node) && before.device == made.node->device();
      if (before.placed || !dies || before.bytes != cell(made).bytes || last_read >= before.first ||
          !writes_in_place(*made.node, cell_of_.at(made), cell_of_.at(source)))
        return;
      settle(before, {Source::variable, assignment.variable->leaf_position, 0});
      made = source;
      while (choices_.of_node.at(made.node).alias) made = made.node->inputs[0];  // whoever made the viewed memory
    }
  }

  void place_temporaries() {
    for (Device device : std::set<Device>(program_devices_.begin(), program_devices_.end())) {
      Placement placement = place_apart(lifetimes(device, Reuse::no));
      if (placement.total > queue_of(device).spread_bytes()) {
        std::vector<Interval> slots = lifetimes(device, Reuse::yes);
        for (Interval& slot : slots) slot.last += queue_of(device).steps_in_flight() - 1;
        placement = place(slots);
      }
      arena_bytes_[device] = placement.total;
      slot_offsets_[device] = std::move(placement.offsets);
    }
  }

  enum class Reuse { no, yes };  // of an input's memory for an output

  // Gives each temporary of the device a slot, and says from when to when each slot is needed.
  std::vector<Interval> lifetimes(Device device, Reuse reuse) {
    std::vector<Interval> slots;
    for (GraphNode* node : order_) {
      const Choice& choice = choices_.of_node.at(node);
      if (choice.alias || node->device() != device) continue;
      int now = position_.at(node);
      for (int i = 0; i < static_cast<int>(node->outputs.size()); ++i) {
        Cell& output = cell({node, i});
        if (output.placed) continue;
        int slot = reuse == Reuse::yes ? reusable_slot(*node, i, now) : -1;
        if (slot >= 0) {
          output.arena_slot = slot;
          slots[slot].last = std::max(slots[slot].last, output.last);
        } else {
          output.arena_slot = static_cast<int>(slots.size());
          slots.push_back({output.first, output.last, output.bytes});
        }
      }
      if (choice.candidate.workspace_bytes > 0) {
        workspace_slot_[node] = static_cast<int>(slots.size());
        slots.push_back({now, now, choice.candidate.workspace_bytes});
      }
    }
    keep_for_lines(device, slots);
    return slots;
  }

  // What a step in a line reads is not free after it in the order: it runs on beside the steps that follow, until one
  // of them reads a result.
  void keep_for_lines(Device device, std::vector<Interval>& slots) {
    auto in_line = [&](const GraphNode* node) { return choices_.of_node.at(node).candidate.line.has_value(); };
    if (std::none_of(order_.begin(), order_.end(), in_line)) return;
    std::map<const GraphNode*, int> first_reader;
    for (auto node = order_.rbegin(); node != order_.rend(); ++node)
      for (const GraphValue& input : (*node)->inputs) first_reader[input.node] = position_.at(*node);
    for (const GraphNode* node : order_) {
      if (!in_line(node) || node->device() != device) continue;
      auto reader = first_reader.find(node);
      const int done = reader == first_reader.end() ? static_cast<int>(order_.size()) : reader->second;
      for (const GraphValue& input : node->inputs)
        if (int slot = cell(input).arena_slot; slot >= 0) {
          int& last = slots[static_cast<size_t>(slot)].last;
          last = std::max(last, done);
        }
    }
  }

  // The interval of an input that dies here and that output `index` may be written over, or -1.
  int reusable_slot(const GraphNode& node, int index, int now) {
    int output_cell = cell_of_.at({const_cast<GraphNode*>(&node), index});
    for (const auto& [output, input] : choices_.of_node.at(&node).candidate.in_place) {
      if (output != index) continue;
      int input_cell = cell_of_.at(node.inputs[input]);
      const Cell& dying = cells_[input_cell];
      bool dies = dying.arena_slot >= 0 && dying.last == now && dying.device == node.device();
      if (dies && dying.bytes == cells_[output_cell].bytes && writes_in_place(node, output_cell, input_cell) &&
          taken_over_.insert(input_cell).second)
        return dying.arena_slot;
    }
    return -1;
  }

  Location location_of(const Cell& cell) {
    if (cell.placed) return cell.location;
    return {Source::arena, 0, slot_offsets_.at(cell.device).at(static_cast<size_t>(cell.arena_slot))};
  }

  // --- programs ----------------------------------------------------------------------------------------------------
  void build_programs() {
    for (Device device : program_devices_) {
      PlanProgram program;
      program.program = std::make_shared<Program>();
      program.program->device = device;
      program.scalars = scalar_slots_[device];
      program.scalar_bytes = scalar_bytes_[device];
      program.arena_bytes = arena_bytes_[device];
      plan_->programs.push_back(std::move(program));
    }
    for (size_t i = 0; i < plan_->programs.size(); ++i) add_agreements(static_cast<int>(i));
    std::map<int, int> written_by;  // cell → program
    for (size_t i = 0; i < order_.size(); ++i) {
      GraphNode& node = *order_[i];
      PlanProgram& program = plan_->programs[program_of_[i]];
      for (const GraphValue& input : node.inputs)
        if (auto writer = written_by.find(cell_of_.at(input));
            writer != written_by.end() && writer->second != program_of_[i])
          note_dependency(program, writer->second);
      for (int output = 0; output < static_cast<int>(node.outputs.size()); ++output)
        written_by[cell_of_.at({&node, output})] = program_of_[i];
      add_step(program, node);
    }
  }

  // A program with collectives begins with its ranks' agreement on them, one for each axis.
  void add_agreements(int program) {
    std::vector<comm::PlannedCollective> collectives;
    for (size_t i = 0; i < order_.size(); ++i)
      if (program_of_[i] == program && order_[i]->op->has(Trait::collective))
        collectives.push_back({order_[i], choices_.of_node.at(order_[i]).candidate.input_layouts});
    std::vector<ProgramStep>& steps = plan_->programs[static_cast<size_t>(program)].program->steps;
    for (comm::Agreement& agreement : comm::agreements(collectives)) {
      PlanNote note{.node = "agree", .path = "", .candidate = to_string(agreement.line), .output_layouts = {}};
      note.program = program;
      note.step = static_cast<int>(steps.size());
      plan_->notes.push_back(std::move(note));
      steps.push_back({.kernel = std::move(agreement.kernel),
                       .inputs = {},
                       .outputs = {},
                       .line = agreement.line,
                       .agrees = true,
                       .label = "[agree]"});
    }
  }

  void note_dependency(PlanProgram& program, int earlier) {
    bool same_queue = plan_->programs[earlier].program->device == program.program->device;
    bool known = std::find(program.after.begin(), program.after.end(), earlier) != program.after.end();
    if (!same_queue && !known) program.after.push_back(earlier);
  }

  int address(PlanProgram& program, const Location& location, size_t bytes) {
    auto key = std::tuple(program.program.get(), location.source, location.index, location.offset, bytes);
    auto [slot, fresh] = addresses_.emplace(key, static_cast<int>(program.locations.size()));
    if (!fresh) return slot->second;
    Address address{AddressKind::fixed, bytes, 0};
    if (location.source == Source::feed) address.kind = AddressKind::feed;
    if (location.source == Source::output || location.source == Source::crossing) address.kind = AddressKind::output;
    if (location.source == Source::scalar) address = {AddressKind::scalars, bytes, location.offset};
    program.locations.push_back(location);
    program.program->addresses.push_back(address);
    return slot->second;
  }

  void add_step(PlanProgram& program, GraphNode& node) {
    Choice& choice = choices_.of_node.at(&node);
    plan_->notes.push_back(note_of(node, choice.candidate));
    if (choice.alias) return;
    plan_->notes.back().program = static_cast<int>(&program - plan_->programs.data());
    plan_->notes.back().step = static_cast<int>(program.program->steps.size());
    ProgramStep step;
    step.kernel = choice.candidate.build();
    step.line = choice.candidate.line;
    if (step.line) step.in_place = choice.candidate.in_place;
    plan_->waits_for_ranks |= node.op->has(Trait::collective);
    step.label = "[" + std::string(node.name()) + "]" + (node.path.empty() ? "" : " in module " + node.path);
    for (const GraphValue& input : node.inputs) {
      Cell& read = cell(input);
      Location location = location_of(read);
      // What another device wrote is only read here, from a place of its own on each launch.
      if (location.source == Source::crossing && read.device != node.device()) {
        step.inputs.push_back(crossing_address(program, location, read.bytes));
      } else {
        step.inputs.push_back(address(program, location, read.bytes));
      }
    }
    for (int i = 0; i < static_cast<int>(node.outputs.size()); ++i) {
      Cell& written = cell({&node, i});
      step.outputs.push_back(address(program, location_of(written), written.bytes));
    }
    if (auto slot = workspace_slot_.find(&node); slot != workspace_slot_.end()) {
      Location location{Source::arena, 0, slot_offsets_.at(node.device()).at(static_cast<size_t>(slot->second))};
      step.workspace = address(program, location, choice.candidate.workspace_bytes);
    }
    program.program->steps.push_back(std::move(step));
  }

  int crossing_address(PlanProgram& program, const Location& location, size_t bytes) {
    int index = address(program, location, bytes);
    program.program->addresses[static_cast<size_t>(index)].kind = AddressKind::feed;
    return index;
  }

  Graph& graph_;
  std::unique_ptr<Plan> plan_;
  Choices choices_;
  std::vector<GraphNode*> order_;
  std::unordered_map<const GraphNode*, int> position_;
  std::vector<int> program_of_;  // of each node in order_
  std::vector<Device> program_devices_;
  std::vector<Cell> cells_;
  std::unordered_map<GraphValue, int, ValueHash> cell_of_;
  std::map<Device, std::vector<ScalarSlot>> scalar_slots_;
  std::map<Device, size_t> scalar_bytes_;
  std::unordered_map<const GraphNode*, int> workspace_slot_;
  std::unordered_set<int> taken_over_;
  std::map<Device, std::vector<size_t>> slot_offsets_;
  std::map<Device, size_t> arena_bytes_;
  std::map<std::tuple<const Program*, Source, int, size_t, size_t>, int> addresses_;
};

}  // namespace

std::unique_ptr<Plan> make_plan(std::unique_ptr<Graph> graph, std::span<const LeafLayout> leaves,
                                const passes::Options& options) {
  passes::run_pipeline(*graph, options);
  return Planner(std::move(graph), leaves, options.fast_math).run();
}

}  // namespace bonfire::runtime
