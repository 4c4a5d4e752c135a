#pragma once
// Curves as SVG, drawn to be put into a page: colours are the page's, through classes. What the page's script
// (report_frame.h) shows under the pointer stands beside each curve.

#include <string>
#include <string_view>
#include <vector>

namespace bonfire::train {

// A point that is named: "best 99.75 %".
struct Mark {
  double x, y;
  std::string name;
  double up = 9;  // how far above it the name stands
};

struct Curve {
  std::string name;
  std::vector<double> x, y;  // as many of each; values that are not finite are left out
  std::vector<Mark> marks = {};
};

// How the numbers of a chart read.
enum class Numbers { plain, loss, share, count };

struct ChartOptions {
  std::string title, x_label;
  Numbers numbers = Numbers::plain;
  bool log_scale = false;  // offers one beside the other, where all values are above 0
};

// Curves without points are left out; nothing where none has any. Of more than a thousand points only the highest and
// the lowest of each few are drawn.
std::string draw_chart(const std::vector<Curve>& curves, const ChartOptions& options);

// Where lines of a scale go: three to seven round numbers that cover [low, high].
std::vector<double> ticks(double low, double high);
// The same for a logarithmic scale; low is above 0.
std::vector<double> log_ticks(double low, double high);

std::string value_text(double value, Numbers numbers);  // 0.9975 as a share: "99.75 %"

std::string escape_html(std::string_view text);

}  // namespace bonfire::train
