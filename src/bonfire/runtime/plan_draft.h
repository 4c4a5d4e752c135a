#pragma once
// A plan before its programs are made: kernels, order and places. Private to runtime.

#include <memory>
#include <vector>

#include "bonfire/passes/pass.h"
#include "bonfire/runtime/layout.h"
#include "bonfire/runtime/node_order.h"
#include "bonfire/runtime/plan.h"
#include "bonfire/runtime/value_places.h"

namespace bonfire::runtime {

class PlanDraft {
 public:
  // Runs the passes. `again`: nodes of the forward pass that run once more before the backward pass first reads what
  // they write, by their places in the graph once kernels are chosen, as place_of() gives them; the copies have the
  // kernels and layouts of their originals.
  PlanDraft(std::unique_ptr<Graph> graph, const GivenLayouts& given, const passes::Options& options,
            const std::vector<bool>& again = {});

  const Graph& graph() const { return *graph_; }
  const Choices& choices() const { return choices_; }
  const NodeOrder& order() const { return order_; }
  const ValuePlaces& places() const { return *places_; }
  const Plan& plan() const { return *plan_; }  // outputs, crossings and temporaries
  size_t place_of(const GraphNode& node) const { return place_of_.at(&node); }
  size_t place_count() const { return place_of_.size(); }

  std::unique_ptr<Plan> finish();  // once

 private:
  std::unique_ptr<Graph> graph_;
  Choices choices_;
  std::unordered_map<const GraphNode*, size_t> place_of_;
  NodeOrder order_;
  std::unique_ptr<Plan> plan_;
  std::unique_ptr<ValuePlaces> places_;
};

}  // namespace bonfire::runtime
