#pragma once
// StagePrograms: what one stage does for micro-batches of certain shapes: its programs, each planned at first use, and
// the slots in which they hand their values over.
//
// What comes from other stages and what the host reads is row-major. Other values lie as the kernel that makes them
// leaves them, which is known once the program that makes them is planned: before any that reads them.

#include <array>
#include <functional>
#include <optional>
#include <vector>

#include "bonfire/graph/tensor.h"
#include "bonfire/graph/variable.h"
#include "bonfire/parallel/pipeline/cut_stages.h"
#include "bonfire/runtime/plan.h"

namespace bonfire::pipeline {

// Ready to be submitted; without a plan the stage has nothing to do there.
struct PlannedProgram {
  std::shared_ptr<runtime::Plan> plan;
  std::vector<LeafSource> sources;
  std::vector<int> outputs;  // the values in slots that they are
  std::vector<Variable> assigned;
};

class StagePrograms {
 public:
  explicit StagePrograms(StageStep step);

  const StageStep& step() const { return step_; }
  const SlotValue& value(int value) const { return step_.values[static_cast<size_t>(value)]; }
  bool is_result(int value) const;

  // leaves: of the traced step. adds: to the gradients that are there. waits_for_ranks: for what is received, too, so
  // that no other thread may wait for the program.
  PlannedProgram& program(Part part, bool adds, const std::vector<Value>& leaves, bool waits_for_ranks);
  void each_plan(const std::function<void(Part, const runtime::Plan&)>& call) const;  // of those that are planned

  // One address each for as long as this lives.
  Buffer& slot(int value, int slot);
  size_t bytes_of_slot(int value) const;  // of one
  size_t slot_bytes() const;              // of those that have been used so far

 private:
  void plan(PlannedProgram& made, ProgramGraph& graph, const std::vector<Value>& leaves);

  StageStep step_;
  std::array<std::optional<PlannedProgram>, kParts> writing_, adding_;
  std::vector<std::optional<Layout>> layouts_;  // [values]; nothing: the program that makes it is not planned
  std::vector<std::vector<Buffer>> slots_;      // [values][slots]
};

}  // namespace bonfire::pipeline
