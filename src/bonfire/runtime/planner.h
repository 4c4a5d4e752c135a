#pragma once
// Planner: from a graph to a plan. Stages: passes → outputs made separate values → candidates and layouts (layout.h) →
// order and programs (node_order.h) → memory (value_places.h) → kernels and addresses (emit_programs.h). With a memory
// budget it goes through these again (memory_budget.h).

#include <memory>
#include <span>

#include "bonfire/passes/pass.h"
#include "bonfire/runtime/layout.h"
#include "bonfire/runtime/plan.h"

namespace bonfire::runtime {

std::unique_ptr<Plan> make_plan(std::unique_ptr<Graph> graph, const GivenLayouts& given,
                                const passes::Options& options);

}  // namespace bonfire::runtime
