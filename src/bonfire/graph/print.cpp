#include "bonfire/base/error.h"
#include "bonfire/graph/graph.h"

namespace bonfire {

namespace {

using Numbers = std::unordered_map<const GraphNode*, int>;

Numbers number_nodes(const Graph& graph) {
  Numbers numbers;
  for (const GraphNode& node : graph.nodes()) numbers.emplace(&node, static_cast<int>(numbers.size()));
  return numbers;
}

std::string name_value(const Numbers& numbers, const GraphValue& value) {
  std::string text = fmt::format("%{}", numbers.at(value.node));
  return value.node->outputs.size() > 1 ? fmt::format("{}.{}", text, value.index) : text;
}

std::string_view leaf_name(LeafKind kind) {
  switch (kind) {
    case LeafKind::feed: return "feed";
    case LeafKind::variable: return "variable";
    case LeafKind::scalar: return "scalar";
    case LeafKind::random: return "random";
    case LeafKind::none: break;
  }
  return "node";
}

std::string node_text(const GraphNode& node) {
  std::string text(node.is_input() ? leaf_name(node.leaf) : node.name());
  if (!node.attributes.empty()) text += " {" + to_string(node.attributes) + "}";
  return text;
}

}  // namespace

std::string print_graph(const Graph& graph) {
  Numbers numbers = number_nodes(graph);
  std::string text;
  for (const GraphNode& node : graph.nodes()) {
    std::string inputs, specs;
    for (const GraphValue& input : node.inputs) inputs += (inputs.empty() ? "" : ", ") + name_value(numbers, input);
    for (const TensorSpec& spec : node.outputs) specs += (specs.empty() ? "" : ", ") + to_string(spec);
    text += fmt::format("%{} = {}({}) : {}{}{}{}\n", numbers.at(&node), node_text(node), inputs, specs,
                        node.path.empty() ? "" : "  # ", node.path, node.recomputed ? "  (again)" : "");
  }
  for (const GraphAssignment& assignment : graph.assignments)
    text +=
        fmt::format("assign %{} <- {}{}{}\n", numbers.at(assignment.variable), name_value(numbers, assignment.value),
                    assignment.variable->path.empty() ? "" : "  # ", assignment.variable->path);
  for (const GraphValue& output : graph.outputs) text += fmt::format("return {}\n", name_value(numbers, output));
  return text;
}

std::string print_graph_dot(const Graph& graph) {
  Numbers numbers = number_nodes(graph);
  std::string text = "digraph step {\n  node [shape=box, fontname=\"sans-serif\"];\n";
  for (const GraphNode& node : graph.nodes()) {
    text += fmt::format("  n{} [label=\"{}\\n{}\\n{}\"{}];\n", numbers.at(&node), node_text(node),
                        node.outputs.empty() ? "" : to_string(node.outputs[0]), node.path,
                        node.is_input() ? ", style=filled" : "");
    for (const GraphValue& input : node.inputs)
      text += fmt::format("  n{} -> n{};\n", numbers.at(input.node), numbers.at(&node));
  }
  for (const GraphAssignment& assignment : graph.assignments)
    text += fmt::format("  n{} -> n{} [style=dashed, label=assign];\n", numbers.at(assignment.value.node),
                        numbers.at(assignment.variable));
  return text + "}\n";
}

}  // namespace bonfire
