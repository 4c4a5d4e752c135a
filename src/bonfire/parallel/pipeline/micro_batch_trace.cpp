#include "bonfire/parallel/pipeline/micro_batch_trace.h"

#include <algorithm>

#include "bonfire/base/error.h"
#include "bonfire/graph/feed.h"
#include "bonfire/graph/step_context.h"
#include "bonfire/graph/trace.h"
#include "bonfire/ops/elementwise.h"
#include "bonfire/runtime/plan_cache.h"

namespace bonfire::pipeline {

namespace {

base::Hash128 surroundings_now() {
  const StepContext& context = StepContext::current();
  StepOptions options = context.options;
  options.stand_ins &= options.sync_batch_norm;  // which alone looks at it
  base::Hash128 hash;
  hash.mix(static_cast<uint64_t>(grad_enabled()));
  hash.mix(context.number);
  runtime::mix_surroundings(hash, options, context.mesh);
  return hash;
}

}  // namespace

bool MicroBatchTrace::fits(std::span<const TensorSpec> other_inputs) const {
  return std::ranges::equal(inputs, other_inputs) && surroundings == surroundings_now() && states.holds();
}

MicroBatchTrace trace_micro_batch(const Forward& forward, std::span<const TensorSpec> inputs, const Scalar* weight,
                                  std::unique_ptr<Graph>& graph) {
  MicroBatchTrace made{.inputs = {inputs.begin(), inputs.end()}, .surroundings = surroundings_now()};
  std::vector<Tensor> feeds;
  for (const TensorSpec& spec : inputs) feeds.push_back(make_feed(spec));
  Trace trace;
  trace.compiling = true;
  const TraceScope scope(trace);
  std::vector<Tensor> results;
  try {
    const StepRecording recording(made.states);
    results = forward(feeds);
    if (results.empty() || !results[0].defined())
      throw_error<ConfigError>("[pipeline] the forward function has returned no loss");
    if (weight != nullptr) {
      for (const Value& leaf : trace.leaves())
        if (leaf.node->variable) leaf.node->variable->gradient_is_clear = true;
      (results[0] * *weight).backward();
    }
    made.states.finish();
    made.states.undo();
  } catch (...) {
    made.states.undo();
    throw;
  }
  std::vector<Value> live;
  for (const Tensor& result : results) {
    live.push_back(result.value());
    made.results.push_back(result.spec());
  }
  graph = Graph::from_trace(trace, live);
  for (const Value& leaf : trace.leaves()) {
    int argument = -1;
    for (size_t i = 0; i < feeds.size(); ++i)
      if (leaf == feeds[i].value()) argument = static_cast<int>(i);
    made.leaves.push_back(leaf.node->leaf == LeafKind::variable ? any_version(leaf) : leaf);
    made.input_of_leaf.push_back(argument);
  }
  for (const NodePtr& node : trace.nodes()) {
    node->committed = true;
    node->inputs.clear();
  }
  results.clear();
  live.clear();
  trace.clear();
  return made;
}

}  // namespace bonfire::pipeline
