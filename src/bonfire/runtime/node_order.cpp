#include "bonfire/runtime/node_order.h"

#include <algorithm>
#include <limits>
#include <map>
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
  }

  // Programs by the key of their first node, which puts each after those it waits for.
  NodeOrder order() {
    std::vector<std::vector<GraphNode*>> programs;
    for (auto& [device, nodes] : of_device_)
      for (GraphNode* node : nodes) {
        if (cuts_[device].contains(standing_[node].place)) programs.emplace_back();
        programs.back().push_back(node);
      }
    std::stable_sort(programs.begin(), programs.end(), [&](const auto& a, const auto& b) {
      return standing_[a.front()].key() < standing_[b.front()].key();
    });
    NodeOrder result;
    for (const std::vector<GraphNode*>& program : programs) {
      for (GraphNode* node : program) result.append(node, static_cast<int>(result.program_devices.size()));
      result.program_devices.push_back(program.front()->device());
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
    for (auto node = graph_.nodes().rbegin(); node != graph_.nodes().rend(); ++node) {
      const Standing own = standing_[&*node];
      for (const GraphValue& input : node->inputs) {
        Standing& before = standing_[input.node];
        if (crosses(input, *node)) before.due = std::min(before.due, own.index);
        before.due = std::min(before.due, due_through(before, own));
      }
    }
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

  // A program waits as a whole before it begins. So a node that waits for more than those before it begins a program;
  // but not after light ones of its level alone, for which its wait will do.
  void find_waits(const std::vector<GraphNode*>& nodes) {
    std::map<Device, int> waited;  // for everything of that device up to this place
    std::map<Device, int> ends;    // of what this program waits for
    const Standing* begin = nullptr;
    bool only_light = false;  // the nodes of this program
    for (GraphNode* node : nodes) {
      const Standing& own = standing_[node];
      const std::map<Device, int> more = waits_of(*node, waited);
      const bool joins = only_light && begin->level == own.level;
      if (begin == nullptr || (!more.empty() && !joins)) {
        end_programs(ends);
        cuts_[node->device()].insert(own.place);
        begin = &own;
        only_light = true;
      }
      only_light = only_light && is_light(*node);
      for (const auto& [device, place] : more) waited[device] = ends[device] = place;
    }
    end_programs(ends);
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

  void end_programs(std::map<Device, int>& ends) {
    for (const auto& [device, place] : ends) cuts_[device].insert(place + 1);
    ends.clear();
  }

  static int place_in(const std::map<Device, int>& places, Device device) {
    auto found = places.find(device);
    return found == places.end() ? -1 : found->second;
  }

  Graph& graph_;
  std::unordered_map<const GraphNode*, Standing> standing_;
  std::map<Device, std::vector<GraphNode*>> of_device_;
  std::map<Device, std::set<int>> cuts_;  // places at which a program begins
};

}  // namespace

NodeOrder order_nodes(Graph& graph) { return Orderer(graph).order(); }

}  // namespace bonfire::runtime
