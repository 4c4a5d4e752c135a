#pragma once
// The values of settings and how they are written in YAML: text to value, value to text, and what they may be in words.
// Private to config.cpp.

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <string>

#include "bonfire/train/config/config_keys.h"

namespace bonfire::train::config_values {

template <class Number>
bool parse_number(const std::string& text, Number& value) {
  const char* end = text.data() + text.size();
  auto [stopped, error] = std::from_chars(text.data(), end, value);
  return error == std::errc() && stopped == end;
}

inline bool parse(const std::string& text, double& value) { return parse_number(text, value) && std::isfinite(value); }
inline bool parse(const std::string& text, uint64_t& value) { return parse_number(text, value); }
inline bool parse(const std::string& text, int64_t& value) { return parse_number(text, value); }
inline bool parse(const std::string& text, std::string& value) {
  value = text;
  return true;
}
inline bool parse(const std::string& text, bool& value) {
  std::string lower = text;
  std::transform(lower.begin(), lower.end(), lower.begin(), [](unsigned char c) { return std::tolower(c); });
  value = lower == "true" || lower == "yes" || lower == "on";
  return value || lower == "false" || lower == "no" || lower == "off";
}

inline bool parse(const std::string& text, Interval& value) {
  const std::optional<Interval> interval = parse_interval(text);
  value = interval.value_or(Interval{});
  return interval.has_value();
}

inline bool parse(const std::string& text, SplitAxis& value) {
  const size_t slash = text.find('/');
  value.blocks = 1;
  return parse_number(text.substr(0, slash), value.axis) && value.axis >= 0 &&
         (slash == std::string::npos || (parse_number(text.substr(slash + 1), value.blocks) && value.blocks > 0));
}

inline std::string_view type_name(const SplitAxis&) {
  return "an axis (0), or an axis and how many matrices are packed (0/3)";
}
inline std::string_view type_name(const Interval&) { return "epochs (a whole number from 1), `500 steps` or `10 min`"; }
inline std::string_view type_name(double) { return "a number"; }
inline std::string_view type_name(uint64_t) { return "a whole number from 0"; }
inline std::string_view type_name(int64_t) { return "a whole number"; }
inline std::string_view type_name(bool) { return "true or false"; }
inline std::string_view type_name(const std::string&) { return "text"; }

inline std::string print(const SplitAxis& value) {
  return value.blocks == 1 ? fmt::format("{}", value.axis) : fmt::format("{}/{}", value.axis, value.blocks);
}
inline std::string print(const Interval& value) { return to_string(value); }
inline std::string print(double value) { return fmt::format("{}", value); }
inline std::string print(uint64_t value) { return fmt::format("{}", value); }
inline std::string print(int64_t value) { return fmt::format("{}", value); }
inline std::string print(bool value) { return value ? "true" : "false"; }
inline std::string print(const std::string& value) {
  YAML::Emitter out;
  out << YAML::DoubleQuoted << value;
  return out.c_str();
}

template <class T>
struct ItemOf {
  using Type = T;
  static constexpr bool kList = false, kOptional = false, kMap = false;
};
template <class T>
struct ItemOf<std::map<std::string, T>> {
  using Type = T;
  static constexpr bool kList = false, kOptional = false, kMap = true;
};
template <class T>
struct ItemOf<std::vector<T>> {
  using Type = T;
  static constexpr bool kList = true, kOptional = false, kMap = false;
};
template <class T>
struct ItemOf<Choice<T>> : ItemOf<T> {};
template <class T>
struct ItemOf<std::optional<T>> {
  using Type = typename ItemOf<T>::Type;
  static constexpr bool kList = ItemOf<T>::kList, kOptional = true, kMap = false;
};

inline std::string joined(const std::vector<std::string_view>& words) {
  return fmt::format("{}", fmt::join(words, ", "));
}

// "at least 1", "above 0", "from 0 to 1"; empty when everything goes.
inline std::string range_text(const KeyOptions& options) {
  if (std::isfinite(options.most) && options.above)
    return fmt::format("above {}, {} {}", options.least, options.below ? "below" : "at most", options.most);
  if (std::isfinite(options.most)) return fmt::format("from {} to {}", options.least, options.most);
  if (std::isfinite(options.least)) return fmt::format("{} {}", options.above ? "above" : "at least", options.least);
  return {};
}

}  // namespace bonfire::train::config_values
