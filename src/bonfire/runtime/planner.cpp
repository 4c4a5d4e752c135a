#include "bonfire/runtime/planner.h"

#include "bonfire/runtime/memory_budget.h"
#include "bonfire/runtime/plan_draft.h"

namespace bonfire::runtime {

std::unique_ptr<Plan> make_plan(std::unique_ptr<Graph> graph, const GivenLayouts& given,
                                const passes::Options& options) {
  if (options.memory_budget) return plan_within_budget(*graph, given, options);
  return PlanDraft(std::move(graph), given, options).finish();
}

}  // namespace bonfire::runtime
