#include "bonfire/parallel/pipeline/stage_programs.h"

#include <algorithm>

#include "bonfire/graph/feed.h"
#include "bonfire/graph/step_context.h"
#include "bonfire/passes/pass.h"
#include "bonfire/runtime/planner.h"
#include "bonfire/runtime/submit.h"
#include "bonfire/runtime/tuning.h"

namespace bonfire::pipeline {

StagePrograms::StagePrograms(StageStep step)
    : step_(std::move(step)), layouts_(step_.values.size()), slots_(step_.values.size()) {
  for (size_t value = 0; value < layouts_.size(); ++value)
    if (step_.values[value].from >= 0 || is_result(static_cast<int>(value))) layouts_[value] = Layout{};
}

bool StagePrograms::is_result(int value) const {
  return std::find(step_.results.begin(), step_.results.end(), value) != step_.results.end();
}

PlannedProgram& StagePrograms::program(Part part, bool adds, const std::vector<Value>& leaves, bool waits_for_ranks) {
  const auto i = static_cast<size_t>(part);
  const bool is_adding = adds && part != Part::forward;
  std::optional<PlannedProgram>& made = is_adding ? adding_[i] : writing_[i];
  if (made) return *made;
  ProgramGraph& graph = is_adding ? step_.adding[i] : step_.writing[i];
  made.emplace();
  made->sources = graph.leaves;
  made->outputs = graph.outputs;
  for (int leaf : graph.assigned) made->assigned.emplace_back(leaves[static_cast<size_t>(leaf)].node->variable);
  if (graph.graph == nullptr) return *made;
  plan(*made, graph, leaves);
  made->plan->waits_for_ranks |= waits_for_ranks;
  return *made;
}

void StagePrograms::plan(PlannedProgram& made, ProgramGraph& graph, const std::vector<Value>& leaves) {
  runtime::GivenLayouts layouts;
  std::vector<Value> own;
  for (const LeafSource& source : made.sources) {
    if (source.value >= 0) {
      own.push_back(make_feed(value(source.value).spec).value());
      layouts.leaves.push_back({*layouts_[static_cast<size_t>(source.value)], true});
      continue;
    }
    own.push_back(leaves[static_cast<size_t>(source.leaf)]);
    const Node& node = *own.back().node;
    if (node.leaf == LeafKind::variable)
      layouts.leaves.push_back({node.variable->layout, node.variable->layout_fixed});
    else
      layouts.leaves.push_back({Layout{}, true});
  }
  for (int value : made.outputs) layouts.outputs.push_back(layouts_[static_cast<size_t>(value)]);
  made.plan = runtime::make_plan(std::move(graph.graph), layouts, passes::after_cut(StepContext::current().options));
  runtime::save_tuning();
  runtime::adopt_layouts(*made.plan, own);
  for (size_t i = 0; i < made.outputs.size(); ++i)
    layouts_[static_cast<size_t>(made.outputs[i])] = made.plan->output_layouts[i];
}

void StagePrograms::each_plan(const std::function<void(Part, const runtime::Plan&)>& call) const {
  for (int part = 0; part < kParts; ++part)
    for (const auto* programs : {&writing_, &adding_})
      if (const auto& one = (*programs)[static_cast<size_t>(part)]; one && one->plan)
        call(static_cast<Part>(part), *one->plan);
}

Buffer& StagePrograms::slot(int value, int slot) {
  std::vector<Buffer>& buffers = slots_[static_cast<size_t>(value)];
  if (buffers.size() <= static_cast<size_t>(slot)) buffers.resize(static_cast<size_t>(slot) + 1);
  Buffer& buffer = buffers[static_cast<size_t>(slot)];
  if (!buffer) buffer = {std::make_shared<Storage>(this->value(value).spec.device, bytes_of_slot(value))};
  return buffer;
}

size_t StagePrograms::bytes_of_slot(int value) const {
  const TensorSpec& spec = this->value(value).spec;
  return std::max<size_t>(1, bytes_of(spec.shape, spec.dtype, *layouts_[static_cast<size_t>(value)]));
}

size_t StagePrograms::slot_bytes() const {
  size_t bytes = 0;
  for (const std::vector<Buffer>& slots : slots_)
    for (const Buffer& buffer : slots) bytes += buffer ? buffer.storage->bytes() : 0;
  return bytes;
}

}  // namespace bonfire::pipeline
