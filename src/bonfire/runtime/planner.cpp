#include "bonfire/runtime/planner.h"

#include "bonfire/graph/sliced_value.h"
#include "bonfire/runtime/emit_programs.h"
#include "bonfire/runtime/separate_outputs.h"

namespace bonfire::runtime {

std::unique_ptr<Plan> make_plan(std::unique_ptr<Graph> graph, const GivenLayouts& given,
                                const passes::Options& options) {
  passes::run_pipeline(*graph, options);
  require_no_placeholders(*graph);
  separate_outputs(*graph);
  auto plan = std::make_unique<Plan>();
  Choices choices = choose_candidates(*graph, given, options.fast_math);
  NodeOrder order = order_nodes(*graph);
  const ValuePlaces places(*graph, order, choices, *plan);
  emit_programs(order, places, choices, *plan);
  plan->leaf_layouts = choices.leaf_layouts;
  plan->leaf_layout_used = choices.leaf_layout_used;
  plan->output_layouts = choices.output_layouts;
  plan->graph = std::move(graph);
  return plan;
}

}  // namespace bonfire::runtime
