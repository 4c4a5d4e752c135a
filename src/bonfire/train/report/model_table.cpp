#include "bonfire/train/report/model_table.h"

#include <fmt/format.h>

#include <algorithm>

#include "bonfire/graph/graph.h"
#include "bonfire/runtime/profile.h"

namespace bonfire::train {

namespace {

ModelRow& row_of(std::vector<ModelRow>& rows, const std::string& path) {
  auto found = std::find_if(rows.begin(), rows.end(), [&](const ModelRow& row) { return row.path == path; });
  if (found != rows.end()) return *found;
  return rows.emplace_back(ModelRow{.path = path});
}

void add_node(ModelRow& row, const GraphNode& node) {
  std::string name(node.name());
  if (row.ops.find(name) == std::string::npos) row.ops += (row.ops.empty() ? "" : ", ") + name;
  row.operations += runtime::operations_of(node);
  if (!node.op->has(Trait::view))
    for (const TensorSpec& output : node.outputs) row.bytes += static_cast<double>(output.bytes());
  row.output = node.outputs[0].shape;
}

}  // namespace

std::vector<ModelRow> model_table(const models::Model& model, const Tensor& input) {
  NoGrad no_grad;
  bool training = model.training();
  model.eval();
  Trace trace;
  std::vector<ModelRow> rows;
  {
    TraceScope scope(trace);
    std::vector<Tensor> outputs = model.outputs(input);
    std::vector<Value> live;
    for (const Tensor& output : outputs) live.push_back(output.value());
    std::unique_ptr<Graph> graph = Graph::from_trace(trace, live);
    for (const GraphNode& node : graph->nodes())
      if (!node.is_input() && !node.outputs.empty() && !node.op->has(Trait::placeholder))
        add_node(row_of(rows, node.path), node);
  }
  for (const auto& [name, parameter] : model.named_parameters()) {
    size_t dot = name.rfind('.');
    row_of(rows, dot == std::string::npos ? "" : name.substr(0, dot)).parameters += parameter.shape().count();
  }
  model.train(training);
  return rows;
}

std::string to_string(const std::vector<ModelRow>& rows) {
  size_t width = 6;
  for (const ModelRow& row : rows) width = std::max(width, row.path.size());
  std::string text = fmt::format("{:<{}}  {:>12}  {:>10}  {:>9}  {:<18}  ops\n", "module", width, "parameters", "MFLOP",
                                 "MB kept", "output");
  ModelRow sum;
  for (const ModelRow& row : rows) {
    text += fmt::format("{:<{}}  {:>12}  {:>10.2f}  {:>9.3f}  {:<18}  {}\n", row.path, width, row.parameters,
                        row.operations * 1e-6, row.bytes * 1e-6, to_string(row.output), row.ops);
    sum.parameters += row.parameters;
    sum.operations += row.operations;
    sum.bytes += row.bytes;
  }
  return text + fmt::format("{:<{}}  {:>12}  {:>10.2f}  {:>9.3f}  forward pass of one sample\n", "all", width,
                            sum.parameters, sum.operations * 1e-6, sum.bytes * 1e-6);
}

}  // namespace bonfire::train
