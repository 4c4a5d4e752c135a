#include "bonfire/passes/recompute.h"

#include <algorithm>
#include <map>
#include <set>
#include <unordered_set>

#include "bonfire/base/glob.h"

namespace bonfire::passes {

namespace {

// Where the shortest beginning of the path that matches ends, at a dot or with the path; 0: none does.
size_t end_of_module(std::string_view module, std::string_view path) {
  for (size_t end = 0; end < path.size();) {
    end = std::min(path.find('.', end + 1), path.size());
    if (base::matches(module, path.substr(0, end))) return end;
  }
  return 0;
}

class MarkRecomputed final : public Pass {
 public:
  std::string_view name() const override { return "mark_recomputed"; }

  void run(Graph& graph, const Options& options) const override {
    std::map<std::string, int, std::less<>> parts;  // below 0: of modules, which are around what is marked in them
    for (GraphNode& node : graph.nodes()) {
      if (node.is_input() || node.phase != Phase::forward || node.path.empty()) continue;
      std::set<size_t> ends;  // of the modules that it is in
      for (const std::string& module : options.recompute)
        if (const size_t end = end_of_module(module, node.path); end > 0) ends.insert(end);
      std::vector<int> own;
      for (size_t end : ends)
        own.push_back(parts.try_emplace(node.path.substr(0, end), -1 - static_cast<int>(parts.size())).first->second);
      node.recomputed_parts.insert(node.recomputed_parts.begin(), own.begin(), own.end());
    }
  }
};

using Nodes = std::vector<GraphNode*>;  // in the order of the graph
using NodeSet = std::unordered_set<const GraphNode*>;

class Recompute {
 public:
  explicit Recompute(Graph& graph) : graph_(graph) {}

  void run() {
    Nodes marked;
    for (GraphNode& node : graph_.nodes())
      if (!node.recomputed_parts.empty() && node.phase == Phase::forward) marked.push_back(&node);
    compute_parts_again(marked, nullptr);
  }

 private:
  // Last parts first: what they read of earlier ones is kept there. `around`: what is computed together with these
  // nodes; null: the forward pass.
  void compute_parts_again(const Nodes& marked, const NodeSet* around) {
    std::vector<std::pair<int, Nodes>> parts;
    std::map<int, size_t> places;
    for (GraphNode* node : marked) {
      const int part = node->recomputed_parts.front();
      const size_t place = places.try_emplace(part, parts.size()).first->second;
      if (place == parts.size()) parts.emplace_back(part, Nodes());
      parts[place].second.push_back(node);
    }
    for (auto part = parts.rbegin(); part != parts.rend(); ++part) compute_again(part->second, around);
  }

  void compute_again(const Nodes& part, const NodeSet* around) {
    const Again again = again_of(part, around);
    NodeSet copies;
    Nodes marked;
    std::unordered_map<const GraphNode*, GraphNode*> copy_of;
    for (GraphNode* node : part) {
      const auto before = again.before.find(node);
      if (before == again.before.end()) continue;
      std::vector<GraphValue> inputs;
      for (const GraphValue& input : node->inputs) {
        const auto copied = copy_of.find(input.node);
        const bool is_read_again = copied != copy_of.end() && !is_kept(again, input);
        inputs.push_back(is_read_again ? GraphValue{copied->second, input.index} : input);
      }
      GraphNode* copy = graph_.add_like(*node, *node->op, std::move(inputs), node->attributes, before->second);
      copy->phase = std::max(Phase::backward, before->second->phase);
      copy->recomputed = true;
      copy->recomputed_parts.erase(copy->recomputed_parts.begin());
      copy_of[node] = copy;
      copies.insert(copy);
      if (!copy->recomputed_parts.empty()) marked.push_back(copy);
    }
    for (const auto& [reader, slot] : again.slots) {
      const GraphValue value = reader->inputs[slot];
      graph_.set_input(reader, slot, {copy_of.at(value.node), value.index});
    }
    compute_parts_again(marked, &copies);
  }

  // What of a part is made again.
  struct Again {
    std::unordered_map<const GraphNode*, GraphNode*> before;  // its nodes, and the first that reads the copy
    std::set<std::pair<const GraphNode*, int>> kept;          // values that are there anyway
    std::vector<std::pair<GraphNode*, size_t>> slots;         // inputs of its gradients that are copies from now on
  };

  static bool is_kept(const Again& again, const GraphValue& value) {
    return again.kept.contains({value.node, value.index});
  }

  Again again_of(const Nodes& part, const NodeSet* around) const {
    std::unordered_map<const GraphNode*, int> position;
    for (const GraphNode& node : graph_.nodes()) position.emplace(&node, static_cast<int>(position.size()));
    const NodeSet inside(part.begin(), part.end());
    std::set<int> numbers;
    for (const GraphNode* node : part)
      if (node->number >= 0) numbers.insert(node->number);
    const auto is_early = [&](const GraphNode* user) {
      if (inside.contains(user)) return true;
      return around != nullptr ? around->contains(user) : user->phase == Phase::forward && !user->recomputed;
    };
    const auto is_own_gradient = [&](const GraphNode* user) { return numbers.contains(user->origin); };
    Again again;
    const auto is_read_by = [&](const GraphNode* node, GraphNode* reader) {
      GraphNode*& first = again.before.try_emplace(node, reader).first->second;
      if (position.at(reader) < position.at(first)) first = reader;
    };
    for (auto one = part.rbegin(); one != part.rend(); ++one) {
      GraphNode* node = *one;
      const bool stays = node->op->has(Trait::collective | Trait::stateful | Trait::constant);
      for (int i = 0; i < static_cast<int>(node->outputs.size()); ++i) {
        const GraphValue value{node, i};
        const Nodes& users = graph_.users(value);
        const auto keeps = [&](const GraphNode* user) {
          if (is_early(user)) return user->op->has(Trait::view) && again.kept.contains({user, 0});
          return !is_own_gradient(user);
        };
        if (stays || graph_.graph_uses(value) > 0 || std::any_of(users.begin(), users.end(), keeps)) {
          again.kept.insert({node, i});
          continue;
        }
        for (GraphNode* user : users) {
          const auto copied = again.before.find(user);
          if (copied != again.before.end()) is_read_by(node, copied->second);
          if (is_early(user)) continue;
          is_read_by(node, user);
          add_slots(again, user, value);
        }
      }
    }
    return again;
  }

  static void add_slots(Again& again, GraphNode* user, const GraphValue& value) {
    for (size_t i = 0; i < user->inputs.size(); ++i)
      if (user->inputs[i] == value && std::ranges::find(again.slots, std::pair(user, i)) == again.slots.end())
        again.slots.emplace_back(user, i);
  }

  Graph& graph_;
};

class RecomputePass final : public Pass {
 public:
  std::string_view name() const override { return "recompute"; }
  void run(Graph& graph, const Options&) const override { Recompute(graph).run(); }
};

}  // namespace

bool is_in_recomputed_module(std::string_view path, const Options& options) {
  return std::ranges::any_of(options.recompute,
                             [&](const std::string& module) { return end_of_module(module, path) > 0; });
}

std::unique_ptr<Pass> mark_recomputed() { return std::make_unique<MarkRecomputed>(); }
std::unique_ptr<Pass> recompute() { return std::make_unique<RecomputePass>(); }

}  // namespace bonfire::passes
