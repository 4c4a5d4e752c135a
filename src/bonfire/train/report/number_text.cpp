#include "bonfire/train/report/number_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace bonfire::train {

std::string grouped(int64_t number) {
  std::string text = std::to_string(number);
  const int64_t first = number < 0 ? 1 : 0;
  for (auto at = static_cast<int64_t>(text.size()) - 3; at > first; at -= 3) text.insert(static_cast<size_t>(at), ",");
  return text;
}

std::string grouped(double number, int digits) {
  const std::string text = fmt::format("{:.{}f}", std::abs(number), digits);
  const size_t point = std::min(text.find('.'), text.size());
  return (number < 0 ? "-" : "") + grouped(std::stoll(text.substr(0, point))) + text.substr(point);
}

std::string duration(double seconds) {
  auto whole = static_cast<int64_t>(std::llround(seconds));
  if (whole >= 3600) return fmt::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60);
  return fmt::format("{}:{:02}", whole / 60, whole % 60);
}

std::string percent(double share) { return fmt::format("{:.2f} %", 100 * share); }
std::string whole_percent(double share) { return fmt::format("{:.0f} %", 100 * share); }

std::string byte_text(double bytes) {
  if (bytes < 1e3) return fmt::format("{:.0f} bytes", bytes);
  if (bytes < 1e6) return fmt::format("{:.1f} kB", 1e-3 * bytes);
  if (bytes < 1e9) return fmt::format("{:.1f} MB", 1e-6 * bytes);
  return fmt::format("{:.1f} GB", 1e-9 * bytes);
}

std::string plural(int64_t count, std::string_view one) {
  return fmt::format("{} {}{}", grouped(count), one, count == 1 ? "" : "s");
}

}  // namespace bonfire::train
