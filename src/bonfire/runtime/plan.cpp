#include "bonfire/runtime/plan.h"

#include <algorithm>

#include "bonfire/base/error.h"

namespace bonfire::runtime {

size_t peak_bytes(const Plan& plan, Device device) {
  size_t most = 0;
  for (const PlanProgram& program : plan.programs)
    if (program.program->device == device) most = std::max(most, program.arena_bytes);
  return most;
}

std::string print_plan(const Plan& plan) {
  std::string text;
  for (const PlanProgram& program : plan.programs)
    text += fmt::format("program on {}: {} steps, {} bytes of temporaries\n", to_string(program.program->device),
                        program.program->steps.size(), program.arena_bytes);
  for (const PlanNote& note : plan.notes) {
    std::string layouts;
    for (const Layout& layout : note.output_layouts) layouts += " " + to_string(layout);
    const std::string error = note.error == 1 ? "" : fmt::format(", error {:g}x", note.error);
    text += fmt::format("  {} ({}{}){}{}{}\n", note.node, note.candidate, error, layouts,
                        note.path.empty() ? "" : "  # ", note.path);
  }
  return text;
}

}  // namespace bonfire::runtime
