#pragma once
// Where each value of a step lies: in a variable, an output, a feed, or in the arena of its device, which temporaries
// that are never needed at once share. Private to runtime.

#include <map>
#include <memory>
#include <unordered_map>
#include <vector>

#include "bonfire/runtime/layout.h"
#include "bonfire/runtime/node_order.h"
#include "bonfire/runtime/plan.h"

namespace bonfire::runtime {

class ValuePlaces {
 public:
  // Places everything. Copies into variables that cannot be written sooner are added to graph, order and choices, and
  // what outputs and crossings are goes into the plan.
  ValuePlaces(Graph& graph, NodeOrder& order, Choices& choices, Plan& plan);
  ~ValuePlaces();
  ValuePlaces(const ValuePlaces&) = delete;
  ValuePlaces& operator=(const ValuePlaces&) = delete;

  // A piece of memory; a view shares its input's.
  int cell_of(const GraphValue& value) const;
  size_t bytes_of(const GraphValue& value) const;
  Location location_of(const GraphValue& value) const;
  const Location* workspace_of(const GraphNode& node) const;  // null: it has none

  size_t arena_bytes(Device device) const;
  const std::vector<ScalarSlot>& scalars_of(Device device) const;
  size_t scalar_bytes(Device device) const;

 private:
  class Work;
  std::unique_ptr<Work> work_;
};

}  // namespace bonfire::runtime
