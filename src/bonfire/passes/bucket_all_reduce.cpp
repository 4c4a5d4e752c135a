#include "bonfire/passes/bucket_all_reduce.h"

#include <algorithm>
#include <map>
#include <set>
#include <unordered_map>

#include "bonfire/comm/all_reduce.h"
#include "bonfire/comm/flat_parts.h"
#include "bonfire/comm/messages.h"

namespace bonfire::passes {
namespace {

// Those of gradients, and the gathering of what has been updated. Parameters that a step gathers to compute with them
// are another pass's (gather_parameters.h).
bool is_merged(const GraphNode& node) {
  if (node.op == &comm::gather_flat_op()) return !node.attributes.flag("parameter");
  return node.op == &comm::all_reduce_op() || node.op == &comm::scatter_flat_op();
}

using Places = std::unordered_map<const GraphNode*, int>;

Places places_of(const Graph& graph) {
  Places places;
  for (const GraphNode& node : graph.nodes()) places.emplace(&node, static_cast<int>(places.size()));
  return places;
}

// What each node that waits for messages waits for, directly or by what it reads.
using Receives = std::set<const GraphNode*>;

std::unordered_map<const GraphNode*, Receives> receives_before(const Graph& graph) {
  std::unordered_map<const GraphNode*, Receives> before;
  for (const GraphNode& node : graph.nodes()) {
    Receives own;
    for (const GraphValue& input : node.inputs) {
      if (input.node->op == &comm::receive_op()) own.insert(input.node);
      if (auto found = before.find(input.node); found != before.end())
        own.insert(found->second.begin(), found->second.end());
    }
    if (!own.empty()) before.emplace(&node, std::move(own));
  }
  return before;
}

struct Reduction {
  GraphNode* node;
  int made;        // place of the operand made last
  int first_used;  // place of the first node that reads a result
  int64_t bytes;
  Receives receives = {};  // that it waits for
};

struct Bucket {
  std::vector<Reduction> members;
  int64_t bytes = 0, layers = 0;
  int made = -1, first_used = 0;
  int last = -1;                // place of the last member among all reductions
  GraphNode* before = nullptr;  // where the merged node goes; null: at the end

  bool takes(const Reduction& next, int64_t most_bytes, int64_t most_layers) const {
    const GraphNode& last = *members.back().node;
    auto same = [&](const char* attribute) {
      return last.attributes.integer(attribute) == next.node->attributes.integer(attribute);
    };
    bool alike = last.op == next.node->op && (!last.attributes.has("reduce") || same("reduce")) && same("axis") &&
                 last.device() == next.node->device() && last.outputs[0].dtype == next.node->outputs[0].dtype;
    bool in_time = next.made < first_used && made < next.first_used;
    // A message may come only after one of them: its sender has the same reductions, and may send what this one makes.
    bool same_messages = members.back().receives == next.receives;
    bool same_layer = last.path == next.node->path;
    bool fits = bytes + next.bytes <= most_bytes && layers < most_layers;
    return alike && in_time && same_messages && (same_layer || fits);
  }

  // What a pass has put in is waited for at once: only gradients gain by another communicator.
  bool has_names() const { return members.front().node->attributes.list("names")[0] >= 0; }

  bool reads_a_member(const GraphNode& node) const {
    return std::any_of(node.inputs.begin(), node.inputs.end(), [&](const GraphValue& input) {
      return std::any_of(members.begin(), members.end(), [&](const Reduction& one) { return one.node == input.node; });
    });
  }

  void add(const Reduction& next) {
    layers += members.empty() || members.back().node->path != next.node->path ? 1 : 0;
    first_used = members.empty() ? next.first_used : std::min(first_used, next.first_used);
    bytes += next.bytes;
    made = std::max(made, next.made);
    members.push_back(next);
  }
};

class BucketAllReduce final : public Pass {
 public:
  std::string_view name() const override { return "bucket_all_reduce"; }

  void run(Graph& graph, const Options& options) const override {
    const std::vector<Reduction> reductions = find(graph);
    if (reductions.empty()) return;
    std::vector<Bucket> buckets = share_out(reductions, options);
    std::vector<GraphNode*> order;  // places are into it
    for (GraphNode& node : graph.nodes()) order.push_back(&node);
    for (Bucket& bucket : buckets) bucket.before = node_after(order, bucket.made);
    int64_t gradients = 0;
    for (const Bucket& bucket : buckets)
      merge(graph, bucket, bucket.has_names() ? gradients++ % options.communicators : 0);
  }

 private:
  // Each axis and op fills a bucket of its own, so that what stands between two reductions of one axis need not part
  // them. Who reads a member of a bucket closes it: so whatever that one still took would be made before its reader.
  static std::vector<Bucket> share_out(const std::vector<Reduction>& reductions, const Options& options) {
    struct Filling {
      int64_t total = 0, left = 0, most_bytes = 0;
      int open = -1;  // bucket
    };
    std::map<std::pair<int64_t, const Op*>, Filling> fillings;
    auto filling_of = [&](const Reduction& one) -> Filling& {
      return fillings[{one.node->attributes.integer("axis"), one.node->op}];
    };
    for (const Reduction& one : reductions) filling_of(one).left = filling_of(one).total += one.bytes;
    std::vector<Bucket> buckets;
    int place = 0;
    for (const Reduction& next : reductions) {
      for (auto& [kind, filling] : fillings)
        if (filling.open >= 0 && buckets[static_cast<size_t>(filling.open)].reads_a_member(*next.node))
          filling.open = -1;
      Filling& own = filling_of(next);
      const bool joins = options.fuse_all_reduce_ops && own.open >= 0 &&
                         buckets[static_cast<size_t>(own.open)].takes(next, own.most_bytes, options.all_reduce_layers);
      if (!joins) {
        own.open = static_cast<int>(buckets.size());
        own.most_bytes = options.all_reduce_bytes > 0 ? options.all_reduce_bytes : usual_bytes(own.total, own.left);
        buckets.emplace_back();
      }
      Bucket& bucket = buckets[static_cast<size_t>(own.open)];
      bucket.add(next);
      bucket.last = place++;
      own.left -= next.bytes;
    }
    std::ranges::sort(buckets, {}, &Bucket::last);  // whoever is read comes first
    return buckets;
  }

  // Of a bucket when `left` of all gradients' bytes are still to be reduced. Nothing computes beside the last one, so
  // they get smaller towards the end.
  static int64_t usual_bytes(int64_t total, int64_t left) {
    constexpr int64_t kWorthACall = 256 << 10;
    return std::min(total / 10, std::max(left / 2, kWorthACall));
  }

  // In the order in which their operands are made; but those that have names keep the order of the trace, which is the
  // same on ranks whose operands are made in another one.
  static std::vector<Reduction> find(Graph& graph) {
    Places places = places_of(graph);
    const std::unordered_map<const GraphNode*, Receives> receives = receives_before(graph);
    std::vector<Reduction> found;
    int named = -1;
    for (GraphNode& node : graph.nodes()) {
      if (!is_merged(node)) continue;
      Reduction one{&node, -1, static_cast<int>(places.size()), 0};
      for (const GraphValue& input : node.inputs) one.made = std::max(one.made, places.at(input.node));
      for (int i = 0; i < static_cast<int>(node.outputs.size()); ++i) {
        const auto at = static_cast<size_t>(i);
        one.bytes += static_cast<int64_t>(std::max(node.outputs[at].bytes(), node.inputs[at].spec().bytes()));
        for (const GraphNode* user : graph.users({&node, i}))
          one.first_used = std::min(one.first_used, places.at(user));
      }
      if (auto waits = receives.find(&node); waits != receives.end()) one.receives = waits->second;
      if (node.attributes.list("names")[0] >= 0) one.made = named = std::max(named, one.made);
      found.push_back(one);
    }
    std::stable_sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.made < b.made; });
    return found;
  }

  // The first node after that place which stays: inputs stand together in front, and all-reduces go away.
  static GraphNode* node_after(const std::vector<GraphNode*>& order, int place) {
    for (auto i = static_cast<size_t>(place) + 1; i < order.size(); ++i)
      if (!order[i]->is_input() && !is_merged(*order[i])) return order[i];
    return nullptr;
  }

  // That list of all members.
  static void join(Attributes& attributes, const char* list, const std::vector<Reduction>& members) {
    std::vector<int64_t> all;
    for (const Reduction& member : members) {
      std::span<const int64_t> own = member.node->attributes.list(list);
      all.insert(all.end(), own.begin(), own.end());
    }
    attributes.set({list, std::span<const int64_t>(all)});
  }

  static void merge(Graph& graph, const Bucket& bucket, int64_t communicator) {
    const GraphNode& first = *bucket.members.front().node;
    std::vector<GraphValue> operands;
    for (const Reduction& member : bucket.members)
      operands.insert(operands.end(), member.node->inputs.begin(), member.node->inputs.end());
    Attributes attributes = first.attributes;
    for (const char* list : {"names", "shapes"})
      if (first.attributes.has(list)) join(attributes, list, bucket.members);
    attributes.set({"communicator", communicator});
    GraphNode* merged = graph.add(*first.op, std::move(operands), attributes, bucket.before);
    merged->path = bucket.layers == 1 ? first.path : "";
    int output = 0;
    for (const Reduction& member : bucket.members) {
      for (int i = 0; i < static_cast<int>(member.node->outputs.size()); ++i)
        graph.replace({member.node, i}, {merged, output++});
      graph.erase(member.node);
    }
  }
};

}  // namespace

std::unique_ptr<Pass> bucket_all_reduce() { return std::make_unique<BucketAllReduce>(); }

}  // namespace bonfire::passes
