#include "bonfire/train/chart.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace bonfire::train {

namespace {

constexpr double kWidth = 480, kHeight = 260, kLeft = 52, kRight = 12, kTop = 30, kBottom = 34;

struct Range {
  double low = std::numeric_limits<double>::infinity(), high = -low;

  void include(double value) {
    low = std::min(low, value);
    high = std::max(high, value);
  }
};

std::string number(double value, bool percent) {
  if (percent) return fmt::format("{:g} %", std::round(value * 1e5) / 1e3);
  if (std::abs(value) >= 10000) return fmt::format("{:g}k", value / 1000);
  return fmt::format("{:g}", std::round(value * 1e9) / 1e9);
}

}  // namespace

std::string escape_html(std::string_view text) {
  std::string out;
  for (char c : text) {
    switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&quot;"; break;
      default: out += c;
    }
  }
  return out;
}

std::vector<double> ticks(double low, double high) {
  if (!(high > low)) high = low + std::max(1e-9, std::abs(low) * 0.1);
  double rough = (high - low) / 5, power = std::pow(10, std::floor(std::log10(rough)));
  double step = 10 * power;
  for (double factor : {1.0, 2.0, 2.5, 5.0})
    if (rough <= factor * power) {
      step = factor * power;
      break;
    }
  std::vector<double> places;
  for (double at = std::floor(low / step); at <= std::ceil(high / step - 1e-9); ++at) places.push_back(at * step);
  return places;
}

std::string draw_chart(const std::vector<Curve>& curves, const ChartOptions& options) {
  Range x, y;
  for (const Curve& curve : curves)
    for (size_t i = 0; i < curve.x.size(); ++i) {
      if (!std::isfinite(curve.y[i])) continue;
      x.include(curve.x[i]);
      y.include(curve.y[i]);
    }
  if (x.low > x.high) return {};
  std::vector<double> rows = ticks(y.low, y.high), columns = ticks(x.low, x.high);
  auto across = [&](double value) {
    return kLeft + (value - x.low) / std::max(1e-12, x.high - x.low) * (kWidth - kLeft - kRight);
  };
  auto down = [&](double value) {
    return kHeight - kBottom - (value - rows.front()) / (rows.back() - rows.front()) * (kHeight - kTop - kBottom);
  };
  std::string svg = fmt::format(
      "<svg viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"{}\"><text class=\"title\" x=\"{}\" y=\"16\">{}</text>\n",
      kWidth, kHeight, escape_html(options.title), kLeft, escape_html(options.title));
  for (double row : rows)
    svg += fmt::format(
        "<line class=\"grid\" x1=\"{}\" x2=\"{}\" y1=\"{:.1f}\" y2=\"{:.1f}\"/><text class=\"tick\" x=\"{}\" "
        "y=\"{:.1f}\" text-anchor=\"end\">{}</text>\n",
        kLeft, kWidth - kRight, down(row), down(row), kLeft - 6, down(row) + 4, number(row, options.percent));
  for (double column : columns)
    if (column >= x.low && column <= x.high)
      svg += fmt::format("<text class=\"tick\" x=\"{:.1f}\" y=\"{}\" text-anchor=\"middle\">{}</text>\n",
                         across(column), kHeight - 16, number(column, false));
  svg += fmt::format("<text class=\"tick\" x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text>\n", kWidth - kRight,
                     kHeight - 2, escape_html(options.x_label));
  double legend = kWidth - kRight;
  for (size_t k = curves.size(); k-- > 0;) {
    std::string points;
    for (size_t i = 0; i < curves[k].x.size(); ++i)
      if (std::isfinite(curves[k].y[i]))
        points += fmt::format("{:.1f},{:.1f} ", across(curves[k].x[i]), down(curves[k].y[i]));
    svg += fmt::format("<polyline class=\"curve c{}\" points=\"{}\"/>\n", k, points);
    for (size_t i = 0; curves[k].x.size() <= 30 && i < curves[k].x.size(); ++i)
      if (std::isfinite(curves[k].y[i]))
        svg += fmt::format("<circle class=\"dot c{}\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"2.5\"/>", k,
                           across(curves[k].x[i]), down(curves[k].y[i]));
    if (curves.size() > 1) {
      svg += fmt::format("<text class=\"legend c{}\" x=\"{:.1f}\" y=\"16\" text-anchor=\"end\">{}</text>\n", k, legend,
                         escape_html(curves[k].name));
      legend -= 9.0 * static_cast<double>(curves[k].name.size()) + 14;
    }
  }
  return svg + "</svg>\n";
}

}  // namespace bonfire::train
