#pragma once
// Which layout the images of a step lie in, node by node.
//
// Kernels differ in the layouts they want, and reorders between them cost as much as many a kernel. So the layouts are
// chosen together: every node that touches images (values of rank 4 that are not parameters or their gradients) gets
// one layout for all its images, such that the sum of the best candidates' times and of the reorders between nodes is
// small. The search starts from the best single layout for everything, and then moves to another layout single
// nodes, nodes with the cheap ones around them, and all nodes on images of one size, as long as that helps. A value is
// reordered at most once to each layout, however many nodes use it so; that is how it is counted.

#include <optional>
#include <unordered_map>

#include "bonfire/graph/graph.h"
#include "bonfire/kernel/kernel.h"
#include "bonfire/runtime/given_layouts.h"

namespace bonfire::runtime {

// What is a parameter, a gradient of one, or made of parameters alone.
class ParameterValues {
 public:
  explicit ParameterValues(const Graph& graph);
  bool contains(const GraphValue& value) const;
  bool is_image(const GraphValue& value) const { return value.spec().shape.rank() == 4 && !contains(value); }

 private:
  struct Hash {
    size_t operator()(const GraphValue& value) const {
      return std::hash<const void*>()(value.node) + static_cast<size_t>(value.index);
    }
  };
  std::unordered_map<GraphValue, bool, Hash> values_;
};

// The output in which a node passes on what it reads here, lying as it lies: of an elementwise op, or of one
// whose operands are replaced one by one (all_reduce). Undefined where it does not.
std::optional<GraphValue> passed_on(const GraphNode& node, const GraphValue& input);

// Whether all images of the node lie so for this candidate.
bool keeps_images_as(const ParameterValues& parameters, const GraphNode& node, const Candidate& candidate,
                     const Layout& layout);

using NodeLayouts = std::unordered_map<const GraphNode*, Layout>;

// Nodes without images, or without a choice, are not in the result. fast_math: as in KernelRequest.
NodeLayouts choose_image_layouts(const Graph& graph, const GivenLayouts& given, const ParameterValues& parameters,
                                 bool fast_math);

}  // namespace bonfire::runtime
