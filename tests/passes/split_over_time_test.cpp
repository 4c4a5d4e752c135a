#include "bonfire/passes/split_over_time.h"

#include <gtest/gtest.h>

#include <set>

#include "bonfire/bonfire.h"
#include "bonfire/ops/lstm.h"
#include "bonfire/passes/amp.h"
#include "bonfire/passes/dead_code.h"
#include "bonfire/passes/recompute.h"
#include "tests/passes/hand_made.h"

namespace bonfire::passes::split_over_time_test {
namespace {

constexpr int64_t kTimes = 200, kBatch = 3, kInput = 5, kHidden = 4;
constexpr int kSpans = 14;  // of 15 times, the last of 5

struct Sizes {
  int64_t times = kTimes, layers = 2;
  double dropout = 0;
  bool batch_first = false;
};

// The graph of a step with an LSTM that is computed again, and a loss of what it gives.
struct Step {
  std::unique_ptr<Graph> graph;

  explicit Step(const Sizes& sizes, const std::function<Tensor(const LstmResult&)>& loss_of,
                bool with_backward = true) {
    const nn::LSTM lstm({.input = kInput,
                         .hidden = kHidden,
                         .layers = sizes.layers,
                         .batch_first = sizes.batch_first,
                         .dropout = sizes.dropout});
    const Shape shape = sizes.batch_first ? Shape{kBatch, sizes.times, kInput} : Shape{sizes.times, kBatch, kInput};
    Trace trace;
    const TraceScope scope(trace);
    const Tensor x = Tensor::from<float>(std::vector<float>(static_cast<size_t>(shape.count()), 0.5F), shape);
    const Tensor loss = loss_of(bonfire::recompute([&] { return lstm(x); }));
    if (with_backward) loss.backward();
    const Value live[] = {loss.value()};
    graph = Graph::from_trace(trace, live);
  }

  void run(const Options& options = {}) const {
    if (options.use_amp) amp()->run(*graph, options);
    dead_code()->run(*graph, options);
    split_over_time()->run(*graph, options);
    verify(*graph, "split_over_time");
    passes::recompute()->run(*graph, options);
    verify(*graph, "recompute");
    dead_code()->run(*graph, options);
  }

  std::vector<const GraphNode*> all(std::string_view name) const {
    std::vector<const GraphNode*> found;
    for (const GraphNode& node : graph->nodes())
      if (node.name() == name) found.push_back(&node);
    return found;
  }
  // Nodes whose result is of all times.
  std::multiset<std::string> of_all_times() const {
    std::multiset<std::string> names;
    for (const GraphNode& node : graph->nodes())
      for (const TensorSpec& spec : node.outputs)
        for (int64_t extent : spec.shape)
          if (!node.is_input() && extent % kTimes == 0) names.insert(std::string(node.name()));
    return names;
  }
};

using Names = std::multiset<std::string>;

Tensor of_last_state(const LstmResult& result) { return sum(square(slice(result.output, 0, -1))); }
Tensor of_last_row(const LstmResult& result) { return sum(square(squeeze(slice(result.output, 1, -1), 1))); }

TEST(SplitOverTime, LeavesNothingOfAllTimes) {
  const Step whole({}, of_last_state), again({}, of_last_state), narrow({}, of_last_state);
  const Step batch_first({.batch_first = true}, of_last_row);
  EXPECT_FALSE(whole.of_all_times().empty());
  again.run();
  EXPECT_EQ(again.of_all_times(), Names());
  narrow.run({.use_amp = true});
  EXPECT_EQ(narrow.of_all_times(), Names());
  batch_first.run();
  EXPECT_EQ(batch_first.of_all_times(), Names());
}

TEST(SplitOverTime, GoesThroughAllLayersOfASpanAtOnce) {
  const Step step({.layers = 3}, of_last_state);
  step.run();
  std::vector<const GraphNode*> forward, again;
  for (const GraphNode* layer : step.all("lstm_layer")) (layer->recomputed ? again : forward).push_back(layer);
  ASSERT_EQ(forward.size(), 3U * kSpans);
  for (size_t i = 0; i < forward.size(); ++i) {
    for (size_t state : {1, 2})  // of the span before
      EXPECT_TRUE(i < 3 || forward[i]->inputs[state].node == forward[i - 3]) << i;
    EXPECT_EQ(forward[i]->outputs[0].shape[0], i / 3 + 1 == kSpans ? 5 : 15);
  }
  EXPECT_EQ(again.size(), 3U * (kSpans - 1));  // the last span's gradients come first
  const std::vector<const GraphNode*> gradients = step.all("lstm_layer_gradient");
  ASSERT_EQ(gradients.size(), 3U * kSpans);
  for (size_t i = 0; i < gradients.size(); ++i) {
    EXPECT_EQ(gradients[i]->outputs[0].shape[0], i < 3 ? 5 : 15);
    EXPECT_TRUE(i < 3 || gradients[i]->inputs.back().node == gradients[i - 3]) << i;
  }
}

TEST(SplitOverTime, KeepsOnlyStatesBetweenSpans) {
  const Step step({.dropout = 0.3}, of_last_state);
  step.run();
  Names kept;
  for (const GraphNode& node : step.graph->nodes()) {
    if (node.is_input() || node.phase != Phase::forward || node.recomputed_parts.empty()) continue;
    for (int i = 0; i < static_cast<int>(node.outputs.size()); ++i)
      for (const GraphNode* user : step.graph->users({const_cast<GraphNode*>(&node), i}))
        if (user->phase != Phase::forward && node.outputs[static_cast<size_t>(i)].shape.rank() > 1) {
          kept.insert(std::string(node.name()));
          EXPECT_EQ(node.outputs[static_cast<size_t>(i)].shape, (Shape{kBatch, kHidden}));
          break;
        }
  }
  EXPECT_EQ(kept.count("lstm_layer"), 2U * 2U * (kSpans - 1));  // h and c of each layer
}

TEST(SplitOverTime, HasNoGradientWhereNothingIsRead) {
  const Step step({.layers = 1}, of_last_state);
  step.run();
  int with_dy = 0;
  for (const GraphNode* gradient : step.all("lstm_layer_gradient"))
    with_dy += gradient->attributes.flag("has_dy") ? 1 : 0;
  EXPECT_EQ(with_dy, 1);
}

TEST(SplitOverTime, PutsTogetherWhatIsReadOfAllTimes) {
  const Step step({}, [](const LstmResult& result) { return sum(square(result.output)); });
  step.run();
  EXPECT_EQ(count(*step.graph, "put_slice"), kSpans - 1);
  for (const GraphNode* put : step.all("put_slice")) EXPECT_EQ(put->outputs[0].shape, (Shape{kTimes, kBatch, kHidden}));
  for (const GraphNode* layer : step.all("lstm_layer")) EXPECT_LE(layer->outputs[0].shape[0], 15);
}

TEST(SplitOverTime, DrawsTheNumbersOfTheWhole) {
  const Step step({.dropout = 0.5}, of_last_state);
  step.run();
  std::multiset<int64_t> offsets;
  for (const GraphNode* dropout : step.all("dropout")) {
    EXPECT_EQ(dropout->attributes.ints("whole"), (Shape{kTimes, kBatch, kHidden}));
    offsets.insert(dropout->attributes.ints("offset")[0]);
  }
  for (int64_t begin = 0; begin < kTimes; begin += 15)  // forward, again and for the gradient
    EXPECT_EQ(offsets.count(begin), begin + 15 < kTimes ? 3U : 2U) << begin;
}

TEST(SplitOverTime, CarriesNarrowCellsWide) {
  const Step step({}, of_last_state);
  step.run({.use_amp = true});
  for (const GraphNode* layer : step.all("lstm_layer")) {
    EXPECT_EQ(layer->outputs[0].dtype, DType::bf16);
    EXPECT_EQ(layer->inputs[2].spec().dtype, DType::f32);
    EXPECT_EQ(layer->outputs[2].dtype, DType::f32);
  }
  for (const GraphNode* added : step.all("add"))
    if (added->phase == Phase::backward && !added->recomputed && added->outputs[0].shape.rank() == 2) {
      EXPECT_EQ(added->outputs[0].dtype, DType::f32);  // sums over spans
    }
}

TEST(SplitOverTime, LeavesShortSequencesAndOtherPassesAlone) {
  const Step is_short({.times = 60}, of_last_state), eval({}, of_last_state, false);
  is_short.run();
  EXPECT_EQ(count(*is_short.graph, "lstm_layer_gradient"), 2);
  eval.run();
  EXPECT_EQ(count(*eval.graph, "lstm_layer"), 2);
}

// A layer reads what is made of all times of the one below: each is cut by itself.
TEST(SplitOverTime, CutsLayersApartWhereTheSecondNeedsAllOfTheFirst) {
  const nn::LSTM first({.input = kInput, .hidden = kHidden}), second({.input = kHidden, .hidden = kHidden});
  Trace trace;
  const TraceScope scope(trace);
  const Tensor x = Tensor::from<float>(std::vector<float>(kTimes * kBatch * kInput, 0.5F), {kTimes, kBatch, kInput});
  const Tensor loss = bonfire::recompute([&] {
    const Tensor y = first(x).output;
    return sum(square(second(softmax(y, 0)).h));
  });
  loss.backward();
  const Value live[] = {loss.value()};
  const std::unique_ptr<Graph> graph = Graph::from_trace(trace, live);
  split_over_time()->run(*graph, {});
  verify(*graph, "split_over_time");
  passes::recompute()->run(*graph, {});
  verify(*graph, "recompute");
  EXPECT_EQ(count(*graph, "lstm_layer_gradient"), 2 * kSpans);
}

}  // namespace
}  // namespace bonfire::passes::split_over_time_test
