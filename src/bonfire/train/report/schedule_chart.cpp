#include "bonfire/train/report/schedule_chart.h"

#include <fmt/format.h>

#include "bonfire/parallel/pipeline/simulator.h"
#include "bonfire/train/report/chart.h"
#include "bonfire/train/report/number_text.h"

namespace bonfire::train {

namespace {

constexpr double kWidth = 960, kLeft = 58, kRow = 26, kBar = 20, kTop = 30;
constexpr double kLetterWidth = 7;

struct Kind {
  char letter;
  int colour;
};

Kind kind_of(pipeline::Work work) {
  if (work == pipeline::Work::forward) return {'F', 1};
  return work == pipeline::Work::backward ? Kind{'B', 0} : Kind{'W', 2};
}

std::string bar(const pipeline::Simulation::Run& run, double top, double unit) {
  const auto [letter, colour] = kind_of(run.item.work);
  const double x = kLeft + run.begin * unit, width = (run.end - run.begin) * unit;
  const std::string name = fmt::format("{}{}", letter, run.item.micro_batch);
  std::string text = fmt::format(
      "<rect class=\"bar c{}\" x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{}\"><title>{}</title></rect>",
      colour, x, top, width - 1, kBar, escape_html(pipeline::to_string(run.item)));
  if (width > kLetterWidth * static_cast<double>(name.size()))
    text += fmt::format("<text class=\"bar\" x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\">{}</text>", x + width / 2,
                        top + 14, name);
  return text + "\n";
}

}  // namespace

std::string draw_schedule(const pipeline::Schedule& schedule) {
  const size_t ranks = schedule.ranks.size();
  const pipeline::Simulation run = pipeline::simulate(
      schedule, std::vector<pipeline::StageTimes>(ranks, pipeline::equal_times(schedule.options.kind)));
  const double unit = (kWidth - kLeft) / run.length;
  const std::string title =
      fmt::format("{}, {} micro-batches: {} of the time is waiting where stages take equal times",
                  pipeline::name_of(schedule.options.kind), schedule.options.micro_batches, whole_percent(run.idle));
  std::string text = fmt::format(
      "<svg class=\"schedule\" viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"{}\">\n<text class=\"title\" x=\"0\" "
      "y=\"16\">{}</text>\n",
      kWidth, kTop + kRow * static_cast<double>(ranks), title, title);
  for (size_t rank = 0; rank < ranks; ++rank) {
    const double top = kTop + kRow * static_cast<double>(rank);
    text += fmt::format("<text x=\"0\" y=\"{:.1f}\">{} {}</text>\n", top + 14,
                        schedule.options.chunks > 1 ? "rank" : "stage", rank);
    for (const pipeline::Simulation::Run& one : run.ranks[rank])
      if (one.item.micro_batch >= 0) text += bar(one, top, unit);
  }
  return text + "</svg>\n";
}

}  // namespace bonfire::train
