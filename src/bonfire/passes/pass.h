#pragma once
// Pass: one change to a graph. Each lives in its own file, is usable alone in a test, and asks ops for traits.
//
//   Graph graph = ...;
//   passes::dead_code().run(graph, {});

#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "bonfire/graph/graph.h"
#include "bonfire/graph/step_options.h"

namespace bonfire::passes {

using Options = StepOptions;

class Pass {
 public:
  virtual ~Pass() = default;
  virtual std::string_view name() const = 0;
  virtual void run(Graph& graph, const Options& options) const = 0;
};

// In the order in which they run (autodiff has come before all of them).
std::span<const std::unique_ptr<Pass>> pipeline();

// Runs the pipeline; in debug builds, and when BONFIRE_VERIFY=1, the verifier follows each pass.
void run_pipeline(Graph& graph, const Options& options);

// For a graph that will be cut into parts that are compiled each by itself (parallel/pipeline): the passes that look at
// the whole step. The parts are compiled with the options after the cut, which leave out what has been done.
void run_before_cut(Graph& graph, const Options& options);
Options after_cut(Options options);

}  // namespace bonfire::passes
