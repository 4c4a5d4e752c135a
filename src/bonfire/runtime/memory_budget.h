#pragma once
// Plans that keep to StepOptions::memory_budget. The step is planned as if there were none; where it needs more, all
// its kernels are timed, those of the forward pass that run again are chosen (runtime/recompute_choice.h), and it is
// planned once more with them: the same kernels in the same layouts, so the same bits. Memory planning packs a little
// worse or better than the model of it says; then the choice is made again with that in mind. Private to runtime.

#include <memory>

#include "bonfire/passes/pass.h"
#include "bonfire/runtime/layout.h"
#include "bonfire/runtime/plan.h"

namespace bonfire::runtime {

// ConfigError, with the least that can be, when a device's part of the step does not fit. Where the budget is `auto`
// the least is taken then, with a warning.
std::unique_ptr<Plan> plan_within_budget(const Graph& graph, const GivenLayouts& given, const passes::Options& options);

}  // namespace bonfire::runtime
