#include "bonfire/passes/sync_batch_norm.h"

#include <unordered_map>

#include "bonfire/comm/all_reduce.h"
#include "bonfire/ops/sync_batch_norm.h"

namespace bonfire::passes {
namespace {

// After running statistics that are unbiased already: so many that one more or less does not matter.
constexpr int64_t kManyElements = int64_t{1} << 50;

class SyncBatchNorm final : public Pass {
 public:
  std::string_view name() const override { return "sync_batch_norm"; }

  void run(Graph& graph, const Options& options) const override {
    if (!options.sync_batch_norm) return;
    const Op &statistics = find_op("batch_norm_statistics"), &sums = find_op("batch_norm_gradient_sums");
    Joint joints;
    for (auto position = graph.nodes().begin(); position != graph.nodes().end();) {
      GraphNode* node = &*position++;
      GraphNode* next = position == graph.nodes().end() ? nullptr : &*position;
      if (node->op == &statistics) join_statistics(graph, *node, next, options, joints);
      if (node->op == &sums) join_sums(graph, *node, next, options, joints);
    }
  }

 private:
  // The moments of all ranks, by the node that makes statistics of them.
  using Joint = std::unordered_map<const GraphNode*, GraphNode*>;

  // Elements of a channel. Stand-ins are none: neither statistics nor gradients are theirs.
  static int64_t count_of(const TensorSpec& x, const Options& options) {
    return options.stand_ins || x.shape[1] == 0 ? 0 : x.shape.count() / x.shape[1];
  }

  static GraphNode* reduce(Graph& graph, GraphNode* value, GraphNode* before) {
    return graph.add_like(*value, comm::all_reduce_op(), {{value, 0}},
                          comm::all_reduce_attributes(Axis::data, comm::Reduce::sum), before);
  }

  static void join_statistics(Graph& graph, GraphNode& own, GraphNode* next, const Options& options, Joint& joints) {
    const std::vector<GraphNode*> mean_users = graph.users({&own, 0});
    GraphNode* moments = graph.add_like(own, batch_norm_moments_op(), {{&own, 0}, {&own, 1}},
                                        {{"count", count_of(own.inputs[0].spec(), options)}}, next);
    GraphNode* all = reduce(graph, moments, next);
    GraphNode* joint =
        graph.add_like(own, batch_norm_joint_statistics_op(), {{all, 0}}, {{"dtype", own.outputs[0].dtype}}, next);
    joints.emplace(joint, all);
    for (int i : {0, 1}) graph.replace({&own, i}, {joint, i});
    graph.set_inputs(moments, {{&own, 0}, {&own, 1}});
    for (GraphNode* user : mean_users) {
      if (user->op != &find_op("batch_norm_update_running")) continue;
      graph.set_input(user, 3, {joint, 2});
      user->attributes.set({"count", kManyElements});
    }
  }

  static void join_sums(Graph& graph, GraphNode& own, GraphNode* next, const Options& options, const Joint& joints) {
    auto found = joints.find(own.inputs[2].node);
    if (found == joints.end()) return;  // by statistics that are constants
    std::vector<GraphNode*> users = graph.users({&own, 0});
    std::erase_if(users, [](const GraphNode* user) { return user->op != &find_op("batch_norm_gradient_apply"); });
    if (users.empty()) return;
    GraphNode* moments = graph.add_like(own, batch_norm_gradient_moments_op(), {{&own, 0}, {&own, 1}}, {}, next);
    GraphNode* all = reduce(graph, moments, next);
    GraphNode* joint =
        graph.add_like(own, batch_norm_joint_sums_op(), {{all, 0}, {found->second, 0}},
                       {{"count", count_of(own.inputs[1].spec(), options)}, {"dtype", own.outputs[0].dtype}}, next);
    for (GraphNode* user : users) {
      graph.set_input(user, 5, {joint, 0});
      graph.set_input(user, 6, {joint, 1});
    }
  }
};

}  // namespace

std::unique_ptr<Pass> sync_batch_norm() { return std::make_unique<SyncBatchNorm>(); }

}  // namespace bonfire::passes
