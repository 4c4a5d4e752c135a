#include "bonfire/runtime/plan.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "bonfire/base/error.h"

namespace bonfire::runtime {

size_t peak_bytes(const Plan& plan, Device device) {
  size_t most = 0;
  for (const PlanProgram& program : plan.programs)
    if (program.program->device == device) most = std::max(most, program.arena_bytes);
  for (const TensorSpec& crossing : plan.crossings)
    if (crossing.device == device) most += crossing.bytes();
  return most;
}

std::vector<Device> devices_of(const Plan& plan) {
  std::set<Device> all;
  for (const PlanProgram& program : plan.programs) all.insert(program.program->device);
  return {all.begin(), all.end()};
}

std::string amount(size_t bytes) {
  const auto number = static_cast<double>(bytes);
  if (number >= 1e9) return fmt::format("{:.2f} GB", number * 1e-9);
  return number >= 1e6 ? fmt::format("{:.1f} MB", number * 1e-6) : fmt::format("{:.1f} kB", number * 1e-3);
}

std::string to_string(const BudgetOutcome& outcome) {
  return fmt::format("memory {} → {}, step +{:.0f} % (estimated)", amount(outcome.before), amount(outcome.after),
                     100 * outcome.seconds_again / outcome.seconds);
}

std::string print_plan(const Plan& plan) {
  std::string text;
  for (const BudgetOutcome& outcome : plan.budget)
    text +=
        fmt::format("{}: {}, {} nodes run again\n", to_string(outcome.device), to_string(outcome), outcome.nodes_again);
  const bool several = plan.programs.size() > 1;
  for (size_t i = 0; i < plan.programs.size(); ++i) {
    const PlanProgram& program = plan.programs[i];
    const std::string number = several ? fmt::format(" {}", i) : "";
    const std::string after = program.after.empty() ? "" : fmt::format(", after {}", fmt::join(program.after, ", "));
    text += fmt::format("program{} on {}{}: {} steps, {} bytes of temporaries\n", number,
                        to_string(program.program->device), after, program.program->steps.size(), program.arena_bytes);
  }
  for (const TensorSpec& crossing : plan.crossings)
    text += fmt::format("read from {} by other devices: {} bytes\n", to_string(crossing.device), crossing.bytes());
  int program = 0;
  for (const PlanNote& note : plan.notes) {
    if (several && note.program >= 0 && (note.program != program || &note == plan.notes.data()))
      text += fmt::format("  program {}, {}:\n", note.program,
                          to_string(plan.programs[static_cast<size_t>(note.program)].program->device));
    if (note.program >= 0) program = note.program;
    std::string layouts;
    for (const Layout& layout : note.output_layouts) layouts += " " + to_string(layout);
    const std::string error = note.error == 1 ? "" : fmt::format(", error {:g}x", note.error);
    text += fmt::format("  {} ({}{}){}{}{}\n", note.node, note.candidate, error, layouts,
                        note.path.empty() ? "" : "  # ", note.path);
  }
  return text;
}

}  // namespace bonfire::runtime
