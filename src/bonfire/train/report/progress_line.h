#pragma once
// One line about a run that fits a terminal: what matters less is left out first.

#include <optional>
#include <string>
#include <vector>

#include "bonfire/train/report/reporter.h"

namespace bonfire::train {

struct LinePart {
  std::string text;  // UTF-8, each character one column wide
  int rank = 0;      // the part with the highest number is left out first
};

// The parts, two spaces between them, in at most `width` columns. One part alone that is too wide is cut.
std::string fit_line(std::vector<LinePart> parts, size_t width);

// What a line can say; all but the progress may be unknown.
struct LineFacts {
  RunBegins run;
  Progress now;
  std::optional<StepReport> report = {};  // the last
  std::optional<double> seconds_left = {};
  double seconds = 0;  // since this was begun to be done
  int64_t frame = 0;   // drawn so often
};

// In a terminal: a bar that counts the steps of the epoch (of the run, where steps were asked for).
std::string progress_line(const LineFacts& facts, size_t width);

// Elsewhere, one of many lines: "epoch 1/3, step 100/312: loss 0.3001  …  ETA 0:38".
std::string report_line(const LineFacts& facts);

}  // namespace bonfire::train
