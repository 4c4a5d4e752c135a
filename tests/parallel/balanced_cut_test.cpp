// Where a pipeline is cut by itself: by the measured times of kernels, else by operations and bytes; the slowest stage
// is as quick as can be, and of cuts that are as good the least memory counts.
#include "bonfire/parallel/pipeline/balanced_cut.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>

#include "bonfire/base/random.h"
#include "bonfire/bonfire.h"
#include "bonfire/kernel/kernel.h"
#include "bonfire/models/resnet.h"
#include "bonfire/parallel/pipeline/forward_stages.h"
#include "bonfire/parallel/pipeline/pipeline.h"
#include "bonfire/parallel/pipeline/visited_modules.h"
#include "tests/parallel/on_mesh.h"
#include "tests/support/expect_error.h"
#include "tests/support/scratch_folder.h"

namespace bonfire::balanced_cut_test {
namespace {

using pipeline::BalancedCut;
using pipeline::StepCosts;
using testing::ScratchFolder;

// An op that does next to nothing, for 20 ms.
OutputSpecs same_spec(const InferContext& context) { return {context.input(0)}; }
const Op& slow_op = register_op(
    {.name = "slow_for_cut_test", .infer = same_spec, .gradient = [](const GradientContext& context) -> Tensors {
       return {context.gradient()};
     }});
const bool slow_registered = register_kernel("slow_for_cut_test", DeviceType::cpu, [](const KernelRequest& request) {
  const size_t bytes = request.node.outputs[0].bytes();
  return std::vector<Candidate>{make_candidate(request, "slow", [bytes](const Run& run) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(20);
    while (std::chrono::steady_clock::now() < end) {
    }
    std::memcpy(run.output<std::byte>(), run.input<std::byte>(0), bytes);
  })};
});

class Slow : public nn::Callable<Slow> {
 public:
  Slow() : Callable("Slow") {}
  Tensor forward(const Tensor& x) const { return trace_op(slow_op, {x}); }
};

class MayMeasure {
 public:
  MayMeasure() {
    setenv("BONFIRE_CACHE", folder_.path().c_str(), 1);
    setenv("BONFIRE_TUNE", "full", 1);
  }
  ~MayMeasure() {
    setenv("BONFIRE_TUNE", "off", 1);
    unsetenv("BONFIRE_CACHE");
  }
  MayMeasure(const MayMeasure&) = delete;
  MayMeasure& operator=(const MayMeasure&) = delete;

 private:
  ScratchFolder folder_;
};

nn::Sequential linear_layers(int64_t count) {
  nn::Sequential layers;
  for (int64_t i = 0; i < count; ++i) layers.push_back(nn::Linear({.in = 8, .out = 8}));
  return layers;
}

// Of seven layers the second and the third take nearly all of the time, and cost least by operations and bytes.
nn::Sequential with_slow_layers() {
  nn::Sequential layers;
  layers.push_back(nn::Linear({.in = 8, .out = 8}));
  layers.push_back(Slow());
  layers.push_back(Slow());
  for (int i = 0; i < 4; ++i) layers.push_back(nn::Linear({.in = 8, .out = 8}));
  return layers;
}

// The step of a micro-batch.
template <class Model>
std::unique_ptr<Graph> traced(const Model& model, const Shape& input = {4, 8}) {
  Trace trace;
  const TraceScope scope(trace);
  const Tensor loss = mean(square(model(zeros(input))));
  loss.backward();
  const Value live[] = {loss.value()};
  return Graph::from_trace(trace, live);
}

// Each module with nodes of its own costs what is said, in the forward pass.
StepCosts costs_by_hand(const pipeline::VisitedModules& modules, const std::vector<double>& costs) {
  StepCosts made{.measured = true, .nodes = {}};
  for (size_t i = 0; i < modules.size(); ++i) made.nodes.push_back({.path = modules[i].path, .cost = costs.at(i)});
  return made;
}

double worst_of(const BalancedCut& cut, double pipeline::StageLoad::*of) {
  double worst = 0;
  for (const pipeline::StageLoad& load : cut.loads) worst = std::max(worst, load.*of);
  return worst;
}

// All ways to choose `count` of the modules after the first, in order.
void each_choice(size_t modules, size_t count, std::vector<size_t>& chosen,
                 const std::function<void(const std::vector<size_t>&)>& call) {
  if (chosen.size() == count) return call(chosen);
  for (size_t i = chosen.empty() ? 1 : chosen.back() + 1; i < modules; ++i) {
    chosen.push_back(i);
    each_choice(modules, count, chosen, call);
    chosen.pop_back();
  }
}

TEST(BalancedCut, IsTheBestOfAllThereAre) {
  const std::unique_ptr<Graph> graph = traced(linear_layers(8));
  const pipeline::VisitedModules modules(*graph);
  ASSERT_EQ(modules.size(), 8U);
  for (uint64_t seed = 0; seed < 20; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::vector<double> costs;
    for (uint64_t i = 0; i < 8; ++i) costs.push_back(0.1 + uniform_at(3, seed, i));
    const StepCosts step = costs_by_hand(modules, costs);
    for (int stages : {2, 3, 5}) {
      pipeline::BalanceOptions options{.stages = stages, .micro_batches = 8};
      const BalancedCut found = balance_stages(*graph, step, options);
      double least = 1e300, least_bytes = 1e300;
      std::vector<BalancedCut> all;
      std::vector<size_t> chosen;
      each_choice(8, static_cast<size_t>(stages) - 1, chosen, [&](const std::vector<size_t>& begins) {
        options.firsts.emplace();
        for (size_t begin : begins) options.firsts->push_back(modules[begin].path);
        all.push_back(balance_stages(*graph, step, options));
        least = std::min(least, worst_of(all.back(), &pipeline::StageLoad::cost));
      });
      for (const BalancedCut& one : all)
        if (worst_of(one, &pipeline::StageLoad::cost) <= 1.02 * least)
          least_bytes = std::min(least_bytes, worst_of(one, &pipeline::StageLoad::bytes));
      EXPECT_LE(worst_of(found, &pipeline::StageLoad::cost), 1.02 * least * (1 + 1e-12)) << stages << " stages";
      EXPECT_EQ(worst_of(found, &pipeline::StageLoad::bytes), least_bytes) << stages << " stages";
    }
  }
}

// Weights of 8 × 8 and biases of 8, twice for their gradients; 1F1B keeps two micro-batches in the first of two stages.
TEST(BalancedCut, CountsParametersGradientsAndWhatIsKept) {
  const std::unique_ptr<Graph> graph = traced(linear_layers(2));
  const BalancedCut cut = balance_stages(*graph, pipeline::costs_of(*graph, {}), {.stages = 2, .micro_batches = 8});
  constexpr double kParameters = 2 * 72 * 4, kKept = 4 * 8 * 4;
  ASSERT_EQ(cut.loads.size(), 2U);
  EXPECT_EQ(cut.loads[0].bytes, kParameters + 2 * kKept);
  EXPECT_GE(cut.loads[1].bytes, kParameters);
}

TEST(BalancedCut, IsByMeasuredTimesWhereTheyMayBeMeasured) {
  const std::unique_ptr<Graph> graph = traced(with_slow_layers());
  const StepCosts estimated = pipeline::costs_of(*graph, {});
  EXPECT_FALSE(estimated.measured);
  const BalancedCut by_bytes = balance_stages(*graph, estimated, {.stages = 2});
  EXPECT_NE(by_bytes.firsts, (std::vector<std::string>{"2"}));
  EXPECT_NE(to_string(by_bytes).find("by operations and bytes, since no times were measured: "), std::string::npos);

  const MayMeasure may;
  const StepCosts measured = pipeline::costs_of(*graph, {});
  EXPECT_TRUE(measured.measured);
  const BalancedCut by_times = balance_stages(*graph, measured, {.stages = 2});
  EXPECT_EQ(by_times.firsts, (std::vector<std::string>{"2"}));
  EXPECT_GE(by_times.loads[0].cost, 0.019);
  EXPECT_GE(by_times.loads[1].cost, 0.019);
  EXPECT_NE(to_string(by_times).find("by measured times of kernels: "), std::string::npos) << to_string(by_times);
  // What is known is not measured anew, so the second answer is the first.
  const BalancedCut again = balance_stages(*graph, pipeline::costs_of(*graph, {}), {.stages = 2});
  EXPECT_EQ(again.loads[0].cost, by_times.loads[0].cost);
  EXPECT_EQ(again.loads[1].cost, by_times.loads[1].cost);
}

// An activation is computed with the layer before it, wherever little else tells the two cuts apart.
TEST(BalancedCut, TakesNoKernelApart) {
  const MayMeasure may;
  nn::Sequential layers;
  for (int i = 0; i < 4; ++i) {
    layers.push_back(nn::Linear({.in = 64, .out = 64}));
    layers.push_back(nn::ReLU());
  }
  const std::unique_ptr<Graph> graph = traced(layers, {32, 64});
  const StepCosts costs = pipeline::costs_of(*graph, {});
  for (int stages : {2, 3, 4})
    for (const std::string& first : balance_stages(*graph, costs, {.stages = stages}).firsts)
      EXPECT_EQ(std::stoi(first) % 2, 0) << "a stage of " << stages << " begins with the activation " << first;
}

TEST(BalancedCut, LeavesTheGraphAsItWasTraced) {
  const std::unique_ptr<Graph> graph = traced(linear_layers(3));
  const std::string before = print_graph(*graph);
  pipeline::costs_of(*graph, {});
  EXPECT_EQ(print_graph(*graph), before);
}

// Whoever reads where a run was cut can write the same down.
TEST(BalancedCut, IsOneThatTheUserMayName) {
  const models::ResNet model({.blocks = {1, 1, 1, 1}, .small_images = true}, {.classes = 4, .in_channels = 2});
  const std::unique_ptr<Graph> graph = traced(model, {2, 2, 16, 16});
  for (int stages : {2, 3, 4}) {
    const BalancedCut cut = balance_stages(*graph, pipeline::costs_of(*graph, {}), {.stages = stages});
    const pipeline::ForwardStages named(*graph, {.stages = stages, .firsts = cut.firsts});
    EXPECT_EQ(named.firsts(), cut.firsts);
    const BalancedCut same = pipeline::decode_cut(encode(cut));
    EXPECT_EQ(same.firsts, cut.firsts);
    EXPECT_EQ(to_string(same), to_string(cut));
  }
  EXPECT_ERROR(balance_stages(*graph, pipeline::costs_of(*graph, {}), {.stages = 40}), ConfigError,
               "stages at most, 40 were asked for: conv1, ");
}

// The loss has no module, and is computed where the last one is.
TEST(BalancedCut, CountsTheLossWithTheLastModule) {
  const std::unique_ptr<Graph> graph = traced(linear_layers(2));
  const pipeline::VisitedModules modules(*graph);
  int seen = 0;
  for (const GraphNode& node : graph->nodes()) {
    if (node.is_input() || node.inputs.empty() || node.phase != Phase::forward || !node.path.empty()) continue;
    EXPECT_EQ(modules.of_node(node), 1) << node.name();
    ++seen;
  }
  EXPECT_GE(seen, 1);
}

TEST(BalancedCut, IsTheFirstRanksOnAllOfThem) {
  const MayMeasure may;
  std::vector<BalancedCut> cuts(4);
  testing::on_mesh(4, {.data = 2, .pipeline = 2}, [&](Device device) {
    const nn::Sequential model = with_slow_layers();
    model.to(device);
    pipeline::Pipeline stages(
        model, optim::SGD(model.parameters(), {.lr = 0.1}),
        [&](std::span<const Tensor> batch) -> std::vector<Tensor> { return {mean(square(model(batch[0])))}; },
        {.micro_batches = 2});
    const TensorSpec batch[] = {{{8, 8}, DType::f32, device}};
    stages.prepare(batch);
    ASSERT_TRUE(stages.balanced());
    cuts[static_cast<size_t>(fleet::rank())] = *stages.balanced();
    EXPECT_EQ(stages.cut()->firsts(), stages.balanced()->firsts);
  });
  for (const BalancedCut& cut : cuts) {
    EXPECT_EQ(cut.firsts, (std::vector<std::string>{"2"}));
    EXPECT_TRUE(cut.measured);
    EXPECT_EQ(encode(cut), encode(cuts[0]));
  }
}

}  // namespace
}  // namespace bonfire::balanced_cut_test
