#pragma once
// What is known before planning of how values come and go: the leaves of a step, and what is read of it afterwards.

#include <optional>
#include <vector>

#include "bonfire/graph/graph.h"
#include "bonfire/tensor/storage.h"

namespace bonfire::runtime {

struct LeafLayout {
  Layout layout;  // of a variable: as far as it is fixed
  bool fixed = false;
};

struct GivenLayouts {
  std::vector<LeafLayout> leaves;                   // of the trace
  std::vector<std::optional<Layout>> outputs = {};  // nothing: however it lies; those that are not named: row-major

  Layout of_leaf(const GraphNode& input) const {
    const auto position = static_cast<size_t>(input.leaf_position);
    return input.leaf_position >= 0 && position < leaves.size() ? leaves[position].layout : Layout{};
  }
  // How an output must lie, if it matters.
  std::optional<Layout> of_output(size_t i) const { return i < outputs.size() ? outputs[i] : Layout{}; }
};

}  // namespace bonfire::runtime
