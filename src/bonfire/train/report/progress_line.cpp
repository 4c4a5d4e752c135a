#include "bonfire/train/report/progress_line.h"

#include <fmt/format.h>

#include <algorithm>

#include "bonfire/train/report/number_text.h"

namespace bonfire::train {

namespace {

constexpr const char* kGap = "  ";

bool begins_character(char byte) { return (static_cast<unsigned char>(byte) & 0xC0U) != 0x80; }

size_t columns(const std::string& text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), begins_character));
}

std::string first_columns(const std::string& text, size_t count) {
  size_t bytes = 0;
  for (size_t shown = 0; bytes < text.size(); ++bytes)
    if (begins_character(text[bytes]) && shown++ == count) break;
  return text.substr(0, bytes);
}

std::string joined(const std::vector<LinePart>& parts) {
  std::string line;
  for (const LinePart& part : parts) line += (line.empty() ? "" : kGap) + part.text;
  return line;
}

std::string bar(int64_t done, int64_t all) {
  constexpr int64_t kWidth = 20;  // characters
  const int64_t full = all > 0 ? std::clamp<int64_t>(kWidth * done / all, 0, kWidth) : 0;
  std::string text;
  for (int64_t i = 0; i < kWidth; ++i) text += i < full ? "━" : "─";
  return text;
}

// A different picture at each drawing: whoever looks sees that the program is alive.
const char* spinner(int64_t frame) {
  constexpr const char* kFrames[] = {"⠋", "⠙", "⠹", "⠸", "⠼", "⠴", "⠦", "⠧", "⠇", "⠏"};
  return kFrames[frame % static_cast<int64_t>(std::size(kFrames))];
}

// Where the time goes: "compute 97 % data 3 %".
std::string split_of(const RunBegins& run, const StepReport& report) {
  std::string text = fmt::format("compute {} data {}", whole_percent(1 - report.data_wait - report.communication_wait),
                                 whole_percent(report.data_wait));
  if (run.ranks > 1) text += " comm " + whole_percent(report.communication_wait);
  return text;
}

std::string brief(const Score& score) {  // "acc 91.12 %"
  return score.metric.in_a_line() + " " + value_in_words(score.metric, score.value);
}

std::string speed_of(const RunBegins& run, const StepReport& report) {
  return fmt::format("{} {}/s", grouped(static_cast<int64_t>(report.samples_per_second)), run.unit);
}

// Which steps are counted: those of the epoch, or of the run. Never both.
struct Count {
  int64_t done, all;
};
Count steps_of(const LineFacts& facts) {
  if (facts.run.counts_epochs()) return {facts.now.done, facts.now.all};
  return {facts.now.step, facts.run.total_steps};
}

std::string head_of(const LineFacts& facts) {
  if (!facts.run.counts_epochs()) return "steps";
  return fmt::format("epoch {}/{}", facts.now.epoch, facts.run.epochs);
}

std::string count_text(const Count& count) { return fmt::format("{}/{}", grouped(count.done), grouped(count.all)); }

}  // namespace

std::string fit_line(std::vector<LinePart> parts, size_t width) {
  auto less = [](const LinePart& a, const LinePart& b) { return a.rank < b.rank; };
  while (parts.size() > 1 && columns(joined(parts)) > width)
    parts.erase(std::max_element(parts.begin(), parts.end(), less));
  return first_columns(joined(parts), width);
}

std::string progress_line(const LineFacts& facts, size_t width) {
  std::vector<LinePart> parts{{spinner(facts.frame), 1}, {head_of(facts), 3}};
  auto count = [&](const Count& count) {
    parts.push_back({bar(count.done, count.all), 6});
    parts.push_back({count_text(count), 4});
  };
  switch (facts.now.doing) {
    case Progress::Doing::compiling:
      parts.push_back({"compiling the first step and choosing kernels", 2});
      parts.push_back({duration(facts.seconds), 4});
      break;
    case Progress::Doing::saving: parts.push_back({"saving", 2}); break;
    case Progress::Doing::evaluating:
      count({facts.now.done, facts.now.all});
      parts.push_back({"evaluating", 2});
      break;
    case Progress::Doing::training:
      count(steps_of(facts));
      if (!facts.report) break;
      parts.push_back({fmt::format("loss {:.4f}", facts.report->loss), 5});
      if (!facts.report->scores.empty()) parts.push_back({brief(facts.report->scores[0]), 7});
      parts.push_back({speed_of(facts.run, *facts.report), 8});
      parts.push_back({split_of(facts.run, *facts.report), 9});
  }
  if (facts.seconds_left) parts.push_back({"ETA " + duration(*facts.seconds_left), 0});
  return fit_line(std::move(parts), width);
}

std::string report_line(const LineFacts& facts) {
  const StepReport& report = *facts.report;
  std::string line = fmt::format("{}step {}: loss {:.4f}", facts.run.counts_epochs() ? head_of(facts) + ", " : "",
                                 count_text(steps_of(facts)), report.loss);
  if (!report.scores.empty()) line += kGap + brief(report.scores[0]);
  line += kGap + speed_of(facts.run, report) + kGap + split_of(facts.run, report);
  return line + (facts.seconds_left ? "  ETA " + duration(*facts.seconds_left) : "");
}

}  // namespace bonfire::train
