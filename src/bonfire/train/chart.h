#pragma once
// Curves as SVG, drawn to be put into a page: colours are the page's, through classes.

#include <string>
#include <vector>

namespace bonfire::train {

struct Curve {
  std::string name;
  std::vector<double> x, y;  // as many of each; values that are not finite are left out
};

struct ChartOptions {
  std::string title, x_label;
  bool percent = false;  // y is a share
};

std::string draw_chart(const std::vector<Curve>& curves, const ChartOptions& options);

// Where lines of a scale go: three to seven round numbers that cover [low, high].
std::vector<double> ticks(double low, double high);

std::string escape_html(std::string_view text);

}  // namespace bonfire::train
