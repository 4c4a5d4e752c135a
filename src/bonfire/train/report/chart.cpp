#include "bonfire/train/report/chart.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "bonfire/train/report/number_text.h"

namespace bonfire::train {

namespace {

constexpr double kWidth = 480, kHeight = 260, kLeft = 58, kRight = 14, kTop = 34, kBottom = 34;

struct Range {
  double low = std::numeric_limits<double>::infinity(), high = -low;

  void include(double value) {
    low = std::min(low, value);
    high = std::max(high, value);
  }
};

std::string tick_text(double value, Numbers numbers) {
  if (numbers == Numbers::share) return fmt::format("{:g} %", std::round(value * 1e5) / 1e3);
  if (std::abs(value) >= 1000) return grouped(std::llround(value));
  return fmt::format("{:g}", std::round(value * 1e9) / 1e9);
}

struct DrawnCurve : Curve {
  size_t colour = 0;
};

// Without what is not finite, and thinned out where a point would be narrower than a pixel.
DrawnCurve drawable(const Curve& curve, size_t colour) {
  constexpr size_t kMost = 1000;
  DrawnCurve kept{{curve.name, {}, {}, curve.marks}, colour};
  std::vector<size_t> finite;
  for (size_t i = 0; i < curve.x.size(); ++i)
    if (std::isfinite(curve.y[i])) finite.push_back(i);
  const size_t each = finite.size() <= kMost ? 1 : 2 * (finite.size() / kMost + 1);  // points, of which two are kept
  auto less = [&](size_t a, size_t b) { return curve.y[a] < curve.y[b]; };
  for (size_t first = 0; first < finite.size(); first += each) {
    const auto begin = finite.begin() + static_cast<std::ptrdiff_t>(first);
    const auto end = finite.begin() + static_cast<std::ptrdiff_t>(std::min(first + each, finite.size()));
    auto [low, high] = std::minmax_element(begin, end, less);
    for (size_t i : {std::min(*low, *high), std::max(*low, *high)}) {
      if (!kept.x.empty() && kept.x.back() == curve.x[i]) continue;
      kept.x.push_back(curve.x[i]);
      kept.y.push_back(curve.y[i]);
    }
  }
  return kept;
}

bool changes(const std::vector<DrawnCurve>& curves) {
  const double first = curves[0].y[0];
  return std::any_of(curves.begin(), curves.end(), [&](const DrawnCurve& curve) {
    return std::any_of(curve.y.begin(), curve.y.end(), [&](double y) { return y != first; });
  });
}

// One scale: where values lie in the picture.
class Plot {
 public:
  Plot(const std::vector<DrawnCurve>& curves, const ChartOptions& options, bool logarithmic)
      : curves_(curves), options_(options), logarithmic_(logarithmic) {
    Range y;
    for (const DrawnCurve& curve : curves)
      for (size_t i = 0; i < curve.x.size(); ++i) {
        x_.include(curve.x[i]);
        y.include(curve.y[i]);
      }
    if (y.low == y.high) y.include(0);  // a rate that never changes is seen best over nothing
    rows_ = logarithmic ? log_ticks(y.low, y.high) : ticks(y.low, y.high);
  }

  std::string svg() const {
    std::string text = fmt::format("<svg class=\"{}\" viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"{}\">\n",
                                   logarithmic_ ? "log" : "linear", kWidth, kHeight, escape_html(options_.title));
    text += fmt::format("<text class=\"title\" x=\"{}\" y=\"16\">{}</text>\n", kLeft, escape_html(options_.title));
    text += scales();
    double legend = kWidth - kRight;
    for (auto one = curves_.rbegin(); one != curves_.rend(); ++one) {  // the first on top
      text += curve(*one);
      if (curves_.size() == 1) continue;
      text += fmt::format("<text class=\"legend c{}\" x=\"{:.1f}\" y=\"16\" text-anchor=\"end\">{}</text>\n",
                          one->colour, legend, escape_html(one->name));
      legend -= 6.5 * static_cast<double>(one->name.size()) + 14;
    }
    for (const DrawnCurve& curve : curves_)
      for (const Mark& mark : curve.marks) text += this->mark(mark);
    return text + "</svg>\n";
  }

 private:
  double across(double value) const {
    return kLeft + (value - x_.low) / std::max(1e-12, x_.high - x_.low) * (kWidth - kLeft - kRight);
  }
  double down(double value) const {
    auto place = [this](double of) { return logarithmic_ ? std::log10(of) : of; };
    const double low = place(rows_.front()), high = place(rows_.back());
    return kHeight - kBottom - (place(value) - low) / (high - low) * (kHeight - kTop - kBottom);
  }

  std::string scales() const {
    std::string text;
    for (double row : rows_)
      text += fmt::format(
          "<line class=\"grid\" x1=\"{}\" x2=\"{}\" y1=\"{:.1f}\" y2=\"{:.1f}\"/><text class=\"tick\" x=\"{}\" "
          "y=\"{:.1f}\" text-anchor=\"end\">{}</text>\n",
          kLeft, kWidth - kRight, down(row), down(row), kLeft - 6, down(row) + 4, tick_text(row, options_.numbers));
    for (double column : ticks(x_.low, x_.high))
      if (column >= x_.low && column <= x_.high && column == std::floor(column))
        text += fmt::format("<text class=\"tick\" x=\"{:.1f}\" y=\"{}\" text-anchor=\"{}\">{}</text>\n", across(column),
                            kHeight - 16, across(column) > kWidth - 2 * kRight ? "end" : "middle",
                            tick_text(column, Numbers::count));
    return text + fmt::format("<text class=\"tick\" x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text>\n", kWidth - kRight,
                              kHeight - 2, escape_html(options_.x_label));
  }

  std::string curve(const DrawnCurve& curve) const {
    constexpr size_t kMostDots = 30;
    std::string points, steps, values, dots;
    for (size_t i = 0; i < curve.x.size(); ++i) {
      const char* bar = i == 0 ? "" : "|";
      points += fmt::format("{:.1f},{:.1f} ", across(curve.x[i]), down(curve.y[i]));
      steps += fmt::format("{}{}", bar, value_text(curve.x[i], Numbers::count));
      values += fmt::format("{}{}", bar, value_text(curve.y[i], options_.numbers));
      if (curve.x.size() <= kMostDots)
        dots += fmt::format("<circle class=\"dot c{}\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"2.5\"/>", curve.colour,
                            across(curve.x[i]), down(curve.y[i]));
    }
    return fmt::format(
               "<polyline class=\"curve c{}\" points=\"{}\" data-name=\"{}\" data-steps=\"{}\" data-values=\"{}\"/>\n",
               curve.colour, points, escape_html(curve.name), steps, values) +
           dots;
  }

  std::string mark(const Mark& mark) const {
    const double x = across(mark.x), y = down(mark.y);
    const char* anchor = x > kWidth - 90 ? "end" : x < kLeft + 60 ? "start" : "middle";
    return fmt::format(
        "<circle class=\"mark\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"4.5\"/><text class=\"mark\" x=\"{:.1f}\" y=\"{:.1f}\" "
        "text-anchor=\"{}\">{}</text>\n",
        x, y, x, std::clamp(y - mark.up, kTop - 4, kHeight - kBottom - 4), anchor, escape_html(mark.name));
  }

  const std::vector<DrawnCurve>& curves_;
  const ChartOptions& options_;
  bool logarithmic_;
  Range x_;
  std::vector<double> rows_;
};

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

// Of 1, 2, 5, 10, 20, …, or where those are too many, of every power of ten, of every second one, and so on.
std::vector<double> log_ticks(double low, double high) {
  constexpr size_t kMost = 7;
  auto covering = [&](const std::vector<double>& factors, int powers) {
    std::vector<double> places;
    const int first = static_cast<int>(std::floor(std::log10(low) / powers + 1e-9)) * powers;
    for (int power = first; places.empty() || places.back() < high * (1 - 1e-9); power += powers)
      for (double factor : factors) {
        const double place = factor * std::pow(10, power);
        if (!places.empty() && place <= low * (1 + 1e-9)) places.clear();  // one below is enough
        if (places.empty() || places.back() < high * (1 - 1e-9)) places.push_back(place);
      }
    return places;
  };
  std::vector<double> places = covering({1, 2, 5}, 1);
  for (int powers = 1; places.size() > kMost; ++powers) places = covering({1}, powers);
  if (places.size() == 1) places.push_back(places[0] * 10);
  return places;
}

std::string value_text(double value, Numbers numbers) {
  switch (numbers) {
    case Numbers::share: return percent(value);
    case Numbers::count: return grouped(std::llround(value));
    case Numbers::loss: return fmt::format("{:.4f}", value);
    case Numbers::plain: break;
  }
  return fmt::format("{:.4g}", value);
}

std::string draw_chart(const std::vector<Curve>& curves, const ChartOptions& options) {
  std::vector<DrawnCurve> drawn;
  bool positive = true;
  for (size_t k = 0; k < curves.size(); ++k) {
    DrawnCurve one = drawable(curves[k], k);
    positive = positive && std::all_of(one.y.begin(), one.y.end(), [](double y) { return y > 0; });
    if (!one.x.empty()) drawn.push_back(std::move(one));
  }
  if (drawn.empty()) return {};
  std::string text = "<div class=\"chart\">" + Plot(drawn, options, false).svg();
  if (options.log_scale && positive && changes(drawn))
    text += Plot(drawn, options, true).svg() + "<label class=\"scale\"><input type=\"checkbox\"> log scale</label>";
  return text + "</div>\n";
}

}  // namespace bonfire::train
