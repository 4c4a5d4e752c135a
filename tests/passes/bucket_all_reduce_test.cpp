#include "bonfire/passes/bucket_all_reduce.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "bonfire/comm/all_reduce.h"
#include "tests/passes/hand_made.h"

namespace bonfire::passes::bucket_all_reduce_test {
namespace {

GraphNode* all_reduce(Graph& graph, const GraphValue& value, int64_t name) {
  return graph.add(comm::all_reduce_op(), {value}, comm::all_reduce_attributes(Axis::data, comm::Reduce::mean, name));
}

// Three gradients made one after the other, all of them reduced at the end: 400, 40 and 400 bytes.
struct Backward {
  Graph graph;
  std::vector<GraphValue> results;

  Backward() {
    std::vector<GraphValue> made, variables;
    for (int64_t count : {100, 10, 100}) {
      variables.push_back(variable(graph, {count}));
      made.push_back(apply(graph, "exp", {feed(graph, {count})}));
    }
    const char* paths[] = {"fc", "fc", "conv"};
    for (size_t i = 0; i < made.size(); ++i) {
      GraphNode* node = all_reduce(graph, made[i], static_cast<int64_t>(i));
      node->path = paths[i];
      graph.assign(variables[i].node, {node, 0});
    }
  }

  std::vector<std::string> names() const {
    std::vector<std::string> list;
    for (const GraphNode& node : graph.nodes())
      if (!node.is_input()) list.emplace_back(node.name());
    return list;
  }
};

using Names = std::vector<std::string>;

TEST(BucketAllReduce, StandsWhereItsOperandIsMade) {
  Backward step;
  bucket_all_reduce()->run(step.graph, {.fuse_all_reduce_ops = false});
  verify(step.graph, "bucket_all_reduce");
  EXPECT_EQ(step.names(), (Names{"exp", "all_reduce", "exp", "all_reduce", "exp", "all_reduce"}));
}

TEST(BucketAllReduce, MergesUpToTheBytesAskedFor) {
  Backward step;
  bucket_all_reduce()->run(step.graph, {.all_reduce_bytes = 1000});
  verify(step.graph, "bucket_all_reduce");
  EXPECT_EQ(step.names(), (Names{"exp", "exp", "exp", "all_reduce"}));
  for (int i = 0; i < 3; ++i) EXPECT_EQ(step.graph.assignments[static_cast<size_t>(i)].value.index, i);
  EXPECT_EQ(step.graph.assignments[0].value.node->attributes.ints("names"), (Shape{0, 1, 2}));
}

// How many gradients each merged all-reduce has of 40 in 40 layers, each of `bytes`.
std::vector<size_t> usual_buckets(int64_t bytes) {
  Graph graph;
  for (int64_t i = 0; i < 40; ++i) {
    GraphValue kept = variable(graph, {bytes / 4});
    GraphNode* node = all_reduce(graph, apply(graph, "exp", {feed(graph, {bytes / 4})}), i);
    node->path = "layer" + std::to_string(i);
    graph.assign(kept.node, {node, 0});
  }
  bucket_all_reduce()->run(graph, {});
  verify(graph, "bucket_all_reduce");
  std::vector<size_t> sizes;
  for (const GraphNode& node : graph.nodes())
    if (node.op == &comm::all_reduce_op()) sizes.push_back(node.inputs.size());
  return sizes;
}

TEST(BucketAllReduce, UnlessAskedOtherwiseATenthIsMergedAndLessTowardsTheEnd) {
  EXPECT_EQ(usual_buckets(1 << 20), (std::vector<size_t>{4, 4, 4, 4, 4, 4, 4, 4, 4, 2, 1, 1}));
  EXPECT_EQ(usual_buckets(64 << 10), (std::vector<size_t>(10, 4)));  // a call costs more than there is to gain
}

TEST(BucketAllReduce, ALayerIsNeverParted) {
  Backward step;
  bucket_all_reduce()->run(step.graph, {.all_reduce_bytes = 410});
  verify(step.graph, "bucket_all_reduce");
  EXPECT_EQ(step.names(), (Names{"exp", "exp", "all_reduce", "exp", "all_reduce"}));
}

TEST(BucketAllReduce, AxesAreNeverMixed) {
  Backward step;
  GraphNode* last = step.graph.assignments[2].value.node;
  last->attributes.set({"axis", static_cast<int>(Axis::tensor)});
  bucket_all_reduce()->run(step.graph, {.all_reduce_bytes = 1000});
  verify(step.graph, "bucket_all_reduce");
  EXPECT_EQ(step.names(), (Names{"exp", "exp", "all_reduce", "exp", "all_reduce"}));
}

TEST(BucketAllReduce, CountsLayers) {
  Backward step;
  bucket_all_reduce()->run(step.graph, {.all_reduce_bytes = 1000, .all_reduce_layers = 1});
  EXPECT_EQ(step.names(), (Names{"exp", "exp", "all_reduce", "exp", "all_reduce"}));
}

TEST(BucketAllReduce, AResultThatIsReadMeanwhileIsNotHeldBack) {
  Backward step;
  GraphNode* first = step.graph.assignments[0].value.node;
  GraphNode* last_made = step.graph.assignments[2].value.node->inputs[0].node;
  GraphNode* reader = step.graph.add(find_op("exp"), {{first, 0}}, {}, last_made);
  step.graph.move_before(first, reader);
  step.graph.set_outputs({{reader, 0}});
  bucket_all_reduce()->run(step.graph, {.all_reduce_bytes = 1000});
  verify(step.graph, "bucket_all_reduce");
  EXPECT_EQ(count(step.graph, "all_reduce"), 2);
}

TEST(BucketAllReduce, AReductionOfAReductionStaysAfterIt) {
  Graph graph;
  GraphValue made = apply(graph, "exp", {feed(graph, {10})});
  for (int i = 0; i < 2; ++i) made = {all_reduce(graph, made, 7), 0};
  graph.set_outputs({made});
  bucket_all_reduce()->run(graph, {.all_reduce_bytes = 1000});
  verify(graph, "bucket_all_reduce");
  EXPECT_EQ(count(graph, "all_reduce"), 2);
}

GraphNode* all_reduce_along(Graph& graph, Axis axis, const GraphValue& value) {
  return graph.add(comm::all_reduce_op(), {value}, comm::all_reduce_attributes(axis, comm::Reduce::sum));
}

// What one axis reduces is reduced along the other; a third value could be merged with the first, but is made too late.
TEST(BucketAllReduce, WhoIsReadAlongAnotherAxisComesBeforeTheReader) {
  Graph graph;
  const GraphValue first = apply(graph, "exp", {feed(graph, {10})});
  GraphNode* tensor = all_reduce_along(graph, Axis::tensor, first);
  GraphNode* data = all_reduce_along(graph, Axis::data, {tensor, 0});
  const GraphValue late = apply(graph, "exp", {feed(graph, {10})});
  GraphNode* other = all_reduce_along(graph, Axis::tensor, late);
  graph.set_outputs({{data, 0}, {other, 0}});
  bucket_all_reduce()->run(graph, {.all_reduce_bytes = 1000});
  verify(graph, "bucket_all_reduce");
  EXPECT_EQ(count(graph, "all_reduce"), 3);
}

// What stands between two of one axis need not part them.
TEST(BucketAllReduce, EachAxisFillsABucketOfItsOwn) {
  Graph graph;
  std::vector<GraphValue> results;
  for (int i = 0; i < 4; ++i)
    results.push_back(
        {all_reduce_along(graph, i % 2 == 0 ? Axis::data : Axis::tensor, apply(graph, "exp", {feed(graph, {10})})), 0});
  graph.set_outputs(results);
  bucket_all_reduce()->run(graph, {.all_reduce_bytes = 1000});
  verify(graph, "bucket_all_reduce");
  EXPECT_EQ(count(graph, "all_reduce"), 2);
}

// The peer has the same two reductions, and sends the first one's result: it would wait for the second one's operand.
TEST(BucketAllReduce, AMessageMayComeOnlyAfterAReductionThatStandsBeforeIt) {
  Graph graph;
  const GraphValue made = apply(graph, "exp", {feed(graph, {10})});
  GraphNode* received = graph.add(find_op("receive"), {},
                                  {{"axis", static_cast<int>(Axis::data)},
                                   {"peer", 1},
                                   {"tag", 0},
                                   {"shape", Shape{10}},
                                   {"dtype", DType::f32},
                                   {"device_type", 0},
                                   {"device_index", 0}});
  GraphNode* first = all_reduce_along(graph, Axis::data, made);
  GraphNode* second = all_reduce_along(graph, Axis::data, apply(graph, "exp", {{received, 0}}));
  graph.set_outputs({{first, 0}, {second, 0}});
  bucket_all_reduce()->run(graph, {.all_reduce_bytes = 1000});
  verify(graph, "bucket_all_reduce");
  EXPECT_EQ(count(graph, "all_reduce"), 2);
}

std::vector<int64_t> communicators(const Graph& graph) {
  std::vector<int64_t> list;
  for (const GraphNode& node : graph.nodes())
    if (node.op == &comm::all_reduce_op()) list.push_back(node.attributes.integer("communicator"));
  return list;
}

TEST(BucketAllReduce, UsesTheCommunicatorsInTurn) {
  for (int64_t number : {1, 2, 3}) {
    Backward step;
    bucket_all_reduce()->run(step.graph, {.fuse_all_reduce_ops = false, .communicators = number});
    EXPECT_EQ(communicators(step.graph), (std::vector<int64_t>{0, 1 % number, 2 % number}));
    EXPECT_NE(print_graph(step.graph).find(fmt::format("communicator={}", number - 1)), std::string::npos);
  }
}

// Statistics of batch norms are waited for at once: they never wait for gradients in another line.
TEST(BucketAllReduce, ValuesWithoutNamesUseTheFirstCommunicator) {
  Backward step;
  for (int i = 0; i < 2; ++i) {
    GraphValue reader = apply(step.graph, "exp", {{all_reduce(step.graph, feed(step.graph, {3}), -1), 0}});
    step.graph.add_output(reader);
  }
  bucket_all_reduce()->run(step.graph, {.fuse_all_reduce_ops = false, .communicators = 3});
  verify(step.graph, "bucket_all_reduce");
  EXPECT_EQ(communicators(step.graph), (std::vector<int64_t>{0, 0, 0, 1, 2}));
}

}  // namespace
}  // namespace bonfire::passes::bucket_all_reduce_test
