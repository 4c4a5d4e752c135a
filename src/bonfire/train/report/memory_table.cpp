#include "bonfire/train/report/memory_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <string_view>

#include "bonfire/train/report/number_text.h"

namespace bonfire::train {

namespace {

constexpr size_t kLargest = 10;  // values that are named

MemoryKind kind_of(const runtime::Temporary& one) {
  if (one.is_workspace) return MemoryKind::workspace;
  switch (one.node->phase) {
    case Phase::forward: return MemoryKind::activations;
    case Phase::backward: return one.node->recomputed ? MemoryKind::activations : MemoryKind::gradients;
    default: return MemoryKind::update;
  }
}

size_t sum_of(const std::array<size_t, kMemoryKinds>& bytes) {
  return std::accumulate(bytes.begin(), bytes.end(), size_t{0});
}

std::string shape_of(const runtime::Temporary& one) {
  if (one.is_workspace || one.node->outputs.empty()) return "";
  const TensorSpec& spec = one.node->outputs[0];
  return fmt::format("{} {}", name_of(spec.dtype), to_string(spec.shape));
}

}  // namespace

const char* name_of(MemoryKind kind) {
  switch (kind) {
    case MemoryKind::activations: return "activations";
    case MemoryKind::gradients: return "gradients of activations";
    case MemoryKind::update: return "update";
    default: return "workspace";
  }
}

TemporariesOverStep temporaries_over_step(const runtime::Plan& plan, Device device) {
  TemporariesOverStep over;
  for (const runtime::PlanProgram& program : plan.programs)
    if (program.program->device == device) over.arena = std::max(over.arena, program.arena_bytes);
  const auto found = plan.temporaries.find(device);
  if (found == plan.temporaries.end() || found->second.empty()) return over;
  const std::vector<runtime::Temporary>& all = found->second;
  size_t steps = 0;
  for (const GraphNode& node : plan.graph->nodes()) {
    if (node.is_input()) continue;
    ++steps;
    if (node.phase == Phase::forward) ++over.forward_steps;
    if (node.phase == Phase::backward) ++over.backward_steps;
  }
  for (const runtime::Temporary& one : all) steps = std::max(steps, static_cast<size_t>(one.last) + 1);
  over.bytes.resize(steps);
  for (const runtime::Temporary& one : all)
    for (int step = one.first; step <= one.last; ++step)
      over.bytes[static_cast<size_t>(step)][static_cast<size_t>(kind_of(one))] += one.bytes;
  for (size_t step = 0; step < steps; ++step)
    if (sum_of(over.bytes[step]) > sum_of(over.bytes[over.fullest])) over.fullest = step;
  for (const runtime::Temporary& one : all)
    if (static_cast<size_t>(one.first) <= over.fullest && over.fullest <= static_cast<size_t>(one.last))
      over.largest.push_back({kind_of(one), one.bytes, std::string(one.node->name()), one.node->path, shape_of(one)});
  std::stable_sort(over.largest.begin(), over.largest.end(),
                   [](const LargeValue& a, const LargeValue& b) { return a.bytes > b.bytes; });
  over.largest.resize(std::min(kLargest, over.largest.size()));
  return over;
}

namespace {

std::string text_of(size_t bytes) { return byte_text(static_cast<double>(bytes)); }

void add_line(std::string& text, std::string_view what, size_t bytes, std::string_view more = {}) {
  if (bytes == 0) return;
  text += fmt::format("  {:<28} {:>10}{}{}\n", what, text_of(bytes), more.empty() ? "" : "  ", more);
}

// The kinds at a step, from the largest on: "activations 80.1 MB, workspace 2.0 MB".
std::string kinds_in_words(const std::array<size_t, kMemoryKinds>& bytes) {
  std::vector<size_t> kinds(kMemoryKinds);
  std::iota(kinds.begin(), kinds.end(), size_t{0});
  std::stable_sort(kinds.begin(), kinds.end(), [&](size_t a, size_t b) { return bytes[a] > bytes[b]; });
  std::string text;
  for (size_t kind : kinds)
    if (bytes[kind] > 0)
      text += fmt::format("{}{} {}", text.empty() ? "" : ", ", name_of(static_cast<MemoryKind>(kind)),
                          text_of(bytes[kind]));
  return text;
}

constexpr size_t kColumns = 72, kRows = 10;
constexpr std::string_view kLetters = "aguw";  // of the kinds

// Each column is the fullest of its steps; a row shows the kind that reaches into it.
std::string drawing_of(const TemporariesOverStep& over) {
  const size_t steps = over.bytes.size(), columns = std::min(kColumns, steps), most = sum_of(over.bytes[over.fullest]);
  std::vector<std::array<size_t, kMemoryKinds>> shown(columns);
  for (size_t step = 0; step < steps; ++step)
    if (auto& column = shown[step * columns / steps]; sum_of(over.bytes[step]) > sum_of(column))
      column = over.bytes[step];
  std::string text;
  for (size_t row = kRows; row-- > 0;) {
    const double level = (static_cast<double>(row) + 0.5) / kRows * static_cast<double>(most);
    std::string line;
    for (const auto& column : shown) {
      char letter = ' ';
      double reached = 0;
      for (size_t kind = 0; kind < kMemoryKinds && letter == ' '; ++kind)
        if (reached += static_cast<double>(column[kind]); reached > level) letter = kLetters[kind];
      line += letter;
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += fmt::format("  {:>9} |{}\n", row + 1 == kRows ? text_of(most) : "", line);
  }
  std::string axis(columns, '-');
  const size_t forward = over.forward_steps * columns / steps,
               backward = (over.forward_steps + over.backward_steps) * columns / steps;
  for (size_t place : {forward, backward})
    if (place > 0 && place < columns) axis[place] = '+';
  text += fmt::format("  {:>9} +{}\n", "", axis);
  std::string names(columns, ' ');
  auto write = [&](size_t place, std::string_view name) {
    if (place + name.size() <= columns) names.replace(place, name.size(), name);
  };
  write(0, "forward");
  if (backward - forward > std::string_view("backward").size()) write(forward + 1, "backward");
  if (columns - backward > std::string_view("update").size()) write(backward + 1, "update");
  names.erase(names.find_last_not_of(' ') + 1);
  return text + fmt::format("  {:>9}  {}\n  a activations   g their gradients   u update   w workspace of kernels\n",
                            "", names);
}

}  // namespace

std::string to_string(const StepMemory& memory) {
  const TemporariesOverStep& over = memory.temporaries;
  std::string text = fmt::format("{}{}{}\n", to_string(memory.device), memory.rank.empty() ? "" : ", ", memory.rank);
  add_line(text, "parameters and buffers", memory.parameters);
  add_line(text, "their running mean", memory.average);
  add_line(text, "gradients", memory.gradients);
  add_line(text, "optimizer state", memory.optimizer);
  add_line(text, "batches and results", memory.batches + memory.results);
  add_line(text, "between programs of stages", memory.slots);
  add_line(text, "read by other devices", memory.crossings);
  add_line(text, "temporaries", over.arena,
           over.bytes.empty() ? "" : "at most: " + kinds_in_words(over.bytes[over.fullest]));
  text += fmt::format("  {:<28} {:>10}\n", "in all", text_of(memory.all()));
  if (!memory.budget.empty()) text += fmt::format("  for memory_budget: {}\n", memory.budget);
  add_line(text, "made ahead, on the host", memory.made_ahead);
  if (over.bytes.empty()) return text;
  text += fmt::format("\ntemporaries over the step{}{}\n", memory.program.empty() ? "" : ", ", memory.program);
  text += drawing_of(over);
  text += fmt::format("\nthe largest where they are most, after {} of {} nodes\n", over.fullest + 1, over.bytes.size());
  size_t width = 6;
  for (const LargeValue& value : over.largest) width = std::max(width, value.module.size());
  for (const LargeValue& value : over.largest)
    text += fmt::format("  {:>9}  {:<24}  {:<{}}  {} {}\n", text_of(value.bytes), name_of(value.kind), value.module,
                        width, value.node, value.shape);
  return text;
}

}  // namespace bonfire::train
