#include "bonfire/runtime/node_order.h"

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <tuple>

#include "bonfire/base/error.h"

namespace bonfire::runtime {

void NodeOrder::append(GraphNode* node, int program) {
  position[node] = static_cast<int>(nodes.size());
  program_of.push_back(program);
  nodes.push_back(node);
}

void NodeOrder::append_last(GraphNode* node) {
  auto last = std::find(program_devices.rbegin(), program_devices.rend(), node->device());
  BONFIRE_CHECK(last != program_devices.rend());
  append(node, static_cast<int>(program_devices.rend() - last) - 1);
}

namespace {

// What is known of a node before it has a place. Along each edge of the graph neither number falls, and where it goes
// to another device the level rises: so (level, due, place in the graph) is an order in which inputs come first, of
// each device and of all together.
struct Standing {
  int level = 0;                              // crossings before it
  int due = std::numeric_limits<int>::max();  // the first node on another device that needs it: its place in the graph
  int index = 0;                              // its own
  int place = -1;                             // among those of its device
  bool crosses_out = false;                   // another device reads it

  auto key() const { return std::tuple(level, due, index); }
};

class Orderer {
 public:
  explicit Orderer(Graph& graph) : graph_(graph) {
    rank_nodes();
    for (GraphNode& node : graph.nodes())
      if (!node.is_input()) of_device_[node.device()].push_back(&node);
    for (auto& [device, nodes] : of_device_) {
      std::stable_sort(nodes.begin(), nodes.end(),
                       [&](const GraphNode* a, const GraphNode* b) { return standing_[a].key() < standing_[b].key(); });
      for (size_t i = 0; i < nodes.size(); ++i) standing_[nodes[i]].place = static_cast<int>(i);
    }
    for (auto& [device, nodes] : of_device_) find_waits(nodes);
    for (const auto& [device, waits] : waits_)
      for (const auto& [begin, places] : waits)
        for (const auto& [other, place] : places) cuts_[other].insert(place + 1);
  }

  NodeOrder order() {
    make_programs();
    NodeOrder result;
    std::vector<bool> is_done(programs_.size());
    for (size_t done = 0; done < programs_.size(); ++done) {
      const size_t next = next_of(is_done);
      is_done[next] = true;
      for (GraphNode* node : programs_[next].nodes)
        result.append(node, static_cast<int>(result.program_devices.size()));
      result.program_devices.push_back(programs_[next].nodes.front()->device());
    }
    return result;
  }

 private:
  static bool crosses(const GraphValue& input, const GraphNode& reader) {
    return !input.node->is_input() && input.node->device() != reader.device();
  }

  void rank_nodes() {
    int index = 0;
    for (GraphNode& node : graph_.nodes()) {
      Standing& own = standing_[&node];
      own.index = index++;
      for (const GraphValue& input : node.inputs)
        own.level = std::max(own.level, standing_[input.node].level + (crosses(input, node) ? 1 : 0));
    }
    for (auto node = graph_.nodes().rbegin(); node != graph_.nodes().rend(); ++node)
      if (node->recomputed) put_off(*node);
    for (auto node = graph_.nodes().rbegin(); node != graph_.nodes().rend(); ++node) {
      const Standing own = standing_[&*node];
      for (const GraphValue& input : node->inputs) {
        Standing& before = standing_[input.node];
        if (crosses(input, *node)) {
          before.crosses_out = true;
          before.due = std::min(before.due, own.index);
        }
        before.due = std::min(before.due, due_through(before, own));
      }
    }
  }

  // What is computed again could be computed early, and would lie there until it is read.
  void put_off(const GraphNode& node) {
    constexpr int kNobody = std::numeric_limits<int>::max();
    int level = kNobody;
    for (int i = 0; i < static_cast<int>(node.outputs.size()); ++i)
      for (const GraphNode* user : graph_.users({const_cast<GraphNode*>(&node), i}))
        level = std::min(level, standing_[user].level - (user->device() == node.device() ? 0 : 1));
    if (level != kNobody) standing_[&node].level = std::max(standing_[&node].level, level);
  }

  // A node of a later level has its due there, which is not one of this level's.
  static int due_through(const Standing& before, const Standing& user) {
    return before.level == user.level ? user.due : std::numeric_limits<int>::max();
  }

  // It is done at once, or is a copy: nothing begins much later if it waits for what those after it wait for.
  static bool is_light(const GraphNode& node) {
    constexpr size_t kBytes = 64 << 10;  // of operands
    size_t bytes = 0;
    for (const TensorSpec& output : node.outputs) bytes += output.bytes();
    for (const GraphValue& input : node.inputs) {
      if (crosses(input, node)) return true;
      bytes += input.spec().bytes();
    }
    return bytes <= kBytes;
  }

  // A constant, or a small copy of what the step is given on another device.
  static bool is_there_before(const GraphNode& node) {
    return node.op->has(Trait::constant) ||
           (is_light(node) && std::all_of(node.inputs.begin(), node.inputs.end(), [&](const GraphValue& input) {
              return input.node->is_input() && input.spec().device != node.device();
            }));
  }

  // A program waits as a whole before it begins. So a node that waits for more than those before it begins a program;
  // but not after light ones of its level alone, nor after constants: its wait will do for them. What a program waits
  // for is of a lower level than all that is in it but constants of its own, so no two wait for each other.
  void find_waits(const std::vector<GraphNode*>& nodes) {
    std::map<Device, int> waited;  // for everything of that device up to this place
    int begin = -1, level = 0;     // of the program: its place, and the level of what is in it but constants
    bool only_constants = false, only_light = false;
    for (GraphNode* node : nodes) {
      const Standing& own = standing_[node];
      const std::map<Device, int> more = waits_of(*node, waited);
      const bool joins = only_constants || (only_light && level == own.level);
      if (begin < 0 || (!more.empty() && !joins)) {
        cuts_[node->device()].insert(own.place);
        begin = own.place;
        only_constants = only_light = true;
      }
      if (only_constants) level = own.level;
      only_constants = only_constants && is_there_before(*node) && !own.crosses_out;
      only_light = only_light && is_light(*node);
      for (const auto& [device, place] : more) waits_[node->device()][begin][device] = waited[device] = place;
    }
  }

  // The last place on each other device that the node waits for, and no node before it.
  std::map<Device, int> waits_of(const GraphNode& node, const std::map<Device, int>& waited) {
    std::map<Device, int> more;
    for (const GraphValue& input : node.inputs) {
      if (!crosses(input, node)) continue;
      const Device device = input.node->device();
      const int place = standing_[input.node].place;
      if (place <= place_in(waited, device) || place <= place_in(more, device)) continue;
      more[device] = place;
    }
    return more;
  }

  static int place_in(const std::map<Device, int>& places, Device device) {
    auto found = places.find(device);
    return found == places.end() ? -1 : found->second;
  }

  struct Program {
    std::vector<GraphNode*> nodes;
    std::vector<size_t> after;  // programs
  };

  void make_programs() {
    std::map<Device, std::vector<size_t>> at;  // [place] → program
    for (auto& [device, nodes] : of_device_)
      for (GraphNode* node : nodes) {
        const int place = standing_[node].place;
        if (cuts_[device].contains(place)) {
          programs_.emplace_back();
          if (place > 0) programs_.back().after.push_back(programs_.size() - 2);
        }
        programs_.back().nodes.push_back(node);
        at[device].push_back(programs_.size() - 1);
      }
    for (const auto& [device, waits] : waits_)
      for (const auto& [begin, places] : waits)
        for (const auto& [other, place] : places)
          programs_[at[device][static_cast<size_t>(begin)]].after.push_back(at[other][static_cast<size_t>(place)]);
  }

  // Of those whose waits are done that with the first key.
  size_t next_of(const std::vector<bool>& is_done) {
    std::optional<size_t> next;
    for (size_t i = 0; i < programs_.size(); ++i) {
      const Program& one = programs_[i];
      if (is_done[i] || !std::all_of(one.after.begin(), one.after.end(), [&](size_t j) { return is_done[j]; }))
        continue;
      auto key = [&](size_t j) { return standing_[programs_[j].nodes.front()].key(); };
      if (!next || key(i) < key(*next)) next = i;
    }
    BONFIRE_CHECK(next.has_value(), "programs of several devices wait for each other");
    return *next;
  }

  Graph& graph_;
  std::unordered_map<const GraphNode*, Standing> standing_;
  std::map<Device, std::vector<GraphNode*>> of_device_;
  std::map<Device, std::set<int>> cuts_;                          // places at which a program begins
  std::map<Device, std::map<int, std::map<Device, int>>> waits_;  // of the program that begins at a place: for others
  std::vector<Program> programs_;                                 // by device, in its order
};

}  // namespace

NodeOrder order_nodes(Graph& graph) { return Orderer(graph).order(); }

}  // namespace bonfire::runtime
