#include "bonfire/runtime/value_places.h"

#include <algorithm>
#include <set>
#include <unordered_set>

#include "bonfire/base/error.h"
#include "bonfire/kernel/queue.h"
#include "bonfire/runtime/crossings.h"
#include "bonfire/runtime/memory.h"
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
  bool crosses = false;       // another device reads it, at a time that positions do not tell
  bool placed = false;        // location is final
  Location location;
  int arena_slot = -1;  // interval, when it is a temporary
};

}  // namespace

class ValuePlaces::Work {
  friend class ValuePlaces;

 public:
  Work(Graph& graph, NodeOrder& order, Choices& choices, Plan& plan)
      : graph_(graph), order_(order), choices_(choices), plan_(plan) {
    make_cells();
    place_inputs();
    defer_unsafe_assignments();
    place_results();
    place_temporaries();
  }

 private:
  int new_cell(const GraphValue& value, const Layout& layout) {
    Cell cell;
    cell.device = value.spec().device;
    cell.bytes = std::max<size_t>(1, bonfire::bytes_of(value.spec().shape, value.spec().dtype, layout));
    cells_.push_back(cell);
    return cell_of_[value] = static_cast<int>(cells_.size()) - 1;
  }

  void make_cells() {
    for (GraphNode& node : graph_.nodes())
      if (node.is_input()) new_cell({&node, 0}, layout_of_input(node));
    for (GraphNode* node : order_.nodes) make_cells_of(*node);
  }

  Layout layout_of_input(const GraphNode& node) const {
    return node.leaf_position < 0 ? Layout{} : choices_.leaf_layouts[static_cast<size_t>(node.leaf_position)];
  }

  void make_cells_of(GraphNode& node) {
    int now = order_.position.at(&node);
    for (const GraphValue& input : node.inputs) {
      Cell& cell = cells_[cell_of_.at(input)];
      cell.last = std::max(cell.last, now);
      cell.crosses |= cell.device != node.device();
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
    return writes_in_place(*order_.nodes[fresh.first], cell_of_.at(assignment.value),
                           cell_of_.at({assignment.variable, 0}));
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
      order_.append_last(copy);
      choices_.of_node[copy] = {std::move(candidates_for({*copy, arriving}).front()), false};
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
      plan_.outputs.push_back(graph_.outputs[i].spec());
      settle(cell(graph_.outputs[i]), {Source::output, static_cast<int>(i), 0});
    }
    place_crossing_values();
  }

  int program_of(const GraphNode* node) const {
    return order_.program_of[static_cast<size_t>(order_.position.at(node))];
  }

  // A program waits for the one before it on its device, and for those whose values it reads.
  ProgramOrder program_order() {
    ProgramOrder known(order_.program_devices.size());
    std::map<Device, int> last;
    std::vector<std::set<int>> waits(order_.program_devices.size());
    for (GraphNode* node : order_.nodes)
      for (const GraphValue& input : node->inputs)
        if (!input.node->is_input() && program_of(input.node) != program_of(node))
          waits[static_cast<size_t>(program_of(node))].insert(program_of(input.node));
    for (size_t program = 0; program < waits.size(); ++program) {
      auto [before, first] = last.try_emplace(order_.program_devices[program], static_cast<int>(program));
      if (!first) waits[program].insert(std::exchange(before->second, static_cast<int>(program)));
      for (int earlier : waits[program]) known.add(earlier, static_cast<int>(program));
    }
    return known;
  }

  // One buffer for each device, of what others read there.
  void place_crossing_values() {
    std::map<Device, std::vector<int>> cells;  // that another device reads
    std::map<int, CrossingValue> values;       // by cell
    for (GraphNode* node : order_.nodes)
      for (const GraphValue& input : node->inputs) {
        const int number = cell_of_.at(input);
        const Cell& source = cells_[static_cast<size_t>(number)];
        if (source.placed || !source.crosses) continue;
        const int writer = order_.program_of[static_cast<size_t>(source.first)];
        if (values.emplace(number, CrossingValue{source.bytes, writer}).second) cells[source.device].push_back(number);
      }
    if (values.empty()) return;
    for (GraphNode* node : order_.nodes)
      for (const GraphValue& input : node->inputs)
        if (auto found = values.find(cell_of_.at(input)); found != values.end())
          found->second.readers.insert(program_of(node));
    const ProgramOrder known = program_order();
    for (const auto& [device, numbers] : cells) {
      std::vector<CrossingValue> own;
      for (int number : numbers) own.push_back(values.at(number));
      const Placement placement = place_crossings(own, known);
      for (size_t i = 0; i < numbers.size(); ++i)
        settle(cells_[static_cast<size_t>(numbers[i])],
               {Source::crossing, static_cast<int>(plan_.crossings.size()), placement.offsets[i]});
      plan_.crossings.push_back({{static_cast<int64_t>(placement.total)}, DType::u8, device});
    }
    plan_.crossing_memory = std::make_shared<CrossingMemory>(plan_.crossings);
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
      bool dies = before.last == order_.position.at(made.node) && before.device == made.node->device();
      if (before.placed || before.crosses || !dies || before.bytes != cell(made).bytes || last_read >= before.first ||
          !writes_in_place(*made.node, cell_of_.at(made), cell_of_.at(source)))
        return;
      settle(before, {Source::variable, assignment.variable->leaf_position, 0});
      made = source;
      while (choices_.of_node.at(made.node).alias) made = made.node->inputs[0];  // whoever made the viewed memory
    }
  }

  void place_temporaries() {
    for (Device device : std::set<Device>(order_.program_devices.begin(), order_.program_devices.end())) {
      std::vector<Interval> slots = lifetimes(device, Reuse::no);
      Placement placement = place_apart(slots);
      if (placement.total > queue_of(device).spread_bytes()) {
        slots = lifetimes(device, Reuse::yes);
        for (Interval& slot : slots) slot.last += queue_of(device).steps_in_flight() - 1;
        placement = place(slots);
      }
      note_temporaries(device, slots);
      arena_bytes_[device] = placement.total;
      slot_offsets_[device] = std::move(placement.offsets);
    }
    for (const auto& [node, slot] : workspace_slot_)
      workspaces_[node] = {Source::arena, 0, slot_offsets_.at(node->device()).at(static_cast<size_t>(slot))};
  }

  void note_temporaries(Device device, const std::vector<Interval>& slots) {
    std::vector<Temporary>& all = plan_.temporaries[device];
    for (const Interval& slot : slots) all.push_back({.bytes = slot.bytes, .first = slot.first, .last = slot.last});
    for (const GraphNode* node : order_.nodes) {
      if (node->device() != device || choices_.of_node.at(node).alias) continue;
      for (int i = 0; i < static_cast<int>(node->outputs.size()); ++i)
        if (int slot = cell({const_cast<GraphNode*>(node), i}).arena_slot; slot >= 0)
          if (const GraphNode*& first = all[static_cast<size_t>(slot)].node; first == nullptr) first = node;
      if (auto own = workspace_slot_.find(node); own != workspace_slot_.end())
        all[static_cast<size_t>(own->second)] = {.node = node,
                                                 .is_workspace = true,
                                                 .bytes = slots[static_cast<size_t>(own->second)].bytes,
                                                 .first = slots[static_cast<size_t>(own->second)].first,
                                                 .last = slots[static_cast<size_t>(own->second)].last};
    }
  }

  enum class Reuse { no, yes };  // of an input's memory for an output

  // Gives each temporary of the device a slot, and says from when to when each slot is needed.
  std::vector<Interval> lifetimes(Device device, Reuse reuse) {
    std::vector<Interval> slots;
    for (GraphNode* node : order_.nodes) {
      const Choice& choice = choices_.of_node.at(node);
      if (choice.alias || node->device() != device) continue;
      int now = order_.position.at(node);
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

  // What a step in a line reads, and its workspace, is not free after it in the order: it runs on beside the steps that
  // follow, until one of them reads a result.
  void keep_for_lines(Device device, std::vector<Interval>& slots) {
    auto in_line = [&](const GraphNode* node) { return choices_.of_node.at(node).candidate.line.has_value(); };
    if (std::none_of(order_.nodes.begin(), order_.nodes.end(), in_line)) return;
    std::map<const GraphNode*, int> first_reader;
    for (auto node = order_.nodes.rbegin(); node != order_.nodes.rend(); ++node)
      for (const GraphValue& input : (*node)->inputs) first_reader[input.node] = order_.position.at(*node);
    for (const GraphNode* node : order_.nodes) {
      if (!in_line(node) || node->device() != device) continue;
      auto reader = first_reader.find(node);
      const int done = reader == first_reader.end() ? static_cast<int>(order_.nodes.size()) : reader->second;
      if (auto own = workspace_slot_.find(node); own != workspace_slot_.end())
        slots[static_cast<size_t>(own->second)].last = done;
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

  Graph& graph_;
  NodeOrder& order_;
  Choices& choices_;
  Plan& plan_;
  std::vector<Cell> cells_;
  std::unordered_map<GraphValue, int, ValueHash> cell_of_;
  std::map<Device, std::vector<ScalarSlot>> scalar_slots_;
  std::map<Device, size_t> scalar_bytes_;
  std::unordered_map<const GraphNode*, int> workspace_slot_;
  std::unordered_map<const GraphNode*, Location> workspaces_;
  std::unordered_set<int> taken_over_;
  std::map<Device, std::vector<size_t>> slot_offsets_;
  std::map<Device, size_t> arena_bytes_;
};

ValuePlaces::ValuePlaces(Graph& graph, NodeOrder& order, Choices& choices, Plan& plan)
    : work_(std::make_unique<Work>(graph, order, choices, plan)) {}
ValuePlaces::~ValuePlaces() = default;

int ValuePlaces::cell_of(const GraphValue& value) const { return work_->cell_of_.at(value); }
size_t ValuePlaces::bytes_of(const GraphValue& value) const { return work_->cell(value).bytes; }
Location ValuePlaces::location_of(const GraphValue& value) const { return work_->location_of(work_->cell(value)); }

const Location* ValuePlaces::workspace_of(const GraphNode& node) const {
  auto found = work_->workspaces_.find(&node);
  return found == work_->workspaces_.end() ? nullptr : &found->second;
}

size_t ValuePlaces::arena_bytes(Device device) const { return work_->arena_bytes_[device]; }
const std::vector<ScalarSlot>& ValuePlaces::scalars_of(Device device) const { return work_->scalar_slots_[device]; }
size_t ValuePlaces::scalar_bytes(Device device) const { return work_->scalar_bytes_[device]; }

}  // namespace bonfire::runtime
