#include "bonfire/train/report/memory_chart.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "bonfire/train/report/chart.h"
#include "bonfire/train/report/number_text.h"

namespace bonfire::train {

namespace {

constexpr double kWide = 960, kChartWidth = 520, kMargin = 78, kChartTop = 30, kChartHeight = 220, kLine = 17;
constexpr size_t kMostColumns = 260;

using Column = std::array<size_t, kMemoryKinds>;

size_t whole_of(const Column& column) { return std::accumulate(column.begin(), column.end(), size_t{0}); }

std::string in_bytes(size_t bytes) { return byte_text(static_cast<double>(bytes)); }

// Each the fullest of its steps.
std::vector<Column> columns_of(const TemporariesOverStep& over) {
  const size_t steps = over.bytes.size(), count = std::min(kMostColumns, steps);
  std::vector<Column> columns(count);
  for (size_t step = 0; step < steps; ++step)
    if (Column& column = columns[step * count / steps]; whole_of(over.bytes[step]) > whole_of(column))
      column = over.bytes[step];
  return columns;
}

std::string label(double x, double y, const std::string& text, std::string_view more = "") {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\"{}>{}</text>\n", x, y, more, escape_html(text));
}

std::string rectangle(int colour, double x, double y, double width, double height, const std::string& name) {
  return fmt::format(
      "<rect class=\"bar c{}\" x=\"{:.2f}\" y=\"{:.2f}\" width=\"{:.2f}\" height=\"{:.2f}\"><title>{}</title></rect>\n",
      colour, x, y, width, height, escape_html(name));
}

// Colours of what is there at all times, and of the kinds.
constexpr int kStays = 3, kColours[kMemoryKinds] = {0, 1, 2, 4};

std::string bars(const StepMemory& memory, double unit) {
  const std::vector<Column> columns = columns_of(memory.temporaries);
  const double bottom = kChartTop + kChartHeight, floor = static_cast<double>(memory.stored()) * unit;
  std::string text = rectangle(kStays, kMargin, bottom - floor, kChartWidth, floor,
                               fmt::format("what stays: {}", in_bytes(memory.stored())));
  const double width = kChartWidth / static_cast<double>(std::max<size_t>(columns.size(), 1));
  for (size_t i = 0; i < columns.size(); ++i) {
    double y = bottom - floor;
    for (size_t kind = 0; kind < kMemoryKinds; ++kind) {
      const double height = static_cast<double>(columns[i][kind]) * unit;
      if (columns[i][kind] == 0) continue;
      y -= height;
      text += rectangle(kColours[kind], kMargin + static_cast<double>(i) * width, y, width + 0.1, height,
                        fmt::format("{}: {}", name_of(static_cast<MemoryKind>(kind)), in_bytes(columns[i][kind])));
    }
  }
  return text;
}

// Names of the phases under the chart, where they begin.
std::string phases(const TemporariesOverStep& over) {
  if (over.bytes.empty()) return {};
  const double unit = kChartWidth / static_cast<double>(over.bytes.size()), y = kChartTop + kChartHeight + kLine;
  const double backward = static_cast<double>(over.forward_steps) * unit;
  return label(kMargin, y, "forward") + label(kMargin + backward, y, "backward");
}

std::string amounts(const StepMemory& memory) {
  const double x = kMargin + kChartWidth + 40;
  double y = kChartTop;
  std::string text;
  const auto line = [&](int colour, std::string_view what, size_t bytes) {
    if (bytes == 0) return;
    y += kLine;
    text += rectangle(colour, x - 16, y - 9, 10, 10, std::string(what));
    text += label(x, y, fmt::format("{}  {}", in_bytes(bytes), what));
  };
  line(kStays, "parameters and buffers", memory.parameters);
  line(kStays, "their running mean", memory.average);
  line(kStays, "gradients", memory.gradients);
  line(kStays, "optimizer state", memory.optimizer);
  line(kStays, "batches and results", memory.batches + memory.results);
  line(kStays, "read by other devices", memory.crossings);
  if (memory.temporaries.bytes.empty()) return text;
  const Column& fullest = memory.temporaries.bytes[memory.temporaries.fullest];
  for (size_t kind = 0; kind < kMemoryKinds; ++kind)
    line(kColours[kind], name_of(static_cast<MemoryKind>(kind)), fullest[kind]);
  y += kLine / 2;
  constexpr size_t kNamed = 4;
  for (size_t i = 0; i < std::min(kNamed, memory.temporaries.largest.size()); ++i) {
    const LargeValue& one = memory.temporaries.largest[i];
    line(kColours[static_cast<size_t>(one.kind)], fmt::format("{} {}", one.module, one.node), one.bytes);
  }
  return text;
}

}  // namespace

std::string draw_memory(const StepMemory& memory) {
  const TemporariesOverStep& over = memory.temporaries;
  const size_t most = memory.stored() + (over.bytes.empty() ? 0 : whole_of(over.bytes[over.fullest]));
  const double unit = kChartHeight / static_cast<double>(std::max<size_t>(most, 1));
  const std::string title = fmt::format("{}{}: {} in all", to_string(memory.device),
                                        memory.rank.empty() ? "" : ", " + memory.rank, in_bytes(memory.all()));
  std::string text = fmt::format(
      "<svg class=\"schedule\" viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"{}\">\n<text class=\"title\" x=\"0\" "
      "y=\"16\">{}</text>\n",
      kWide, kChartTop + kChartHeight + 2 * kLine, escape_html(title), escape_html(title));
  text += label(kMargin - 8, kChartTop + 10, in_bytes(most), " text-anchor=\"end\"");
  text += label(kMargin - 8, kChartTop + kChartHeight, "0", " text-anchor=\"end\"");
  return text + bars(memory, unit) + phases(over) + amounts(memory) + "</svg>\n";
}

}  // namespace bonfire::train
