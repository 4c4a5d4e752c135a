#pragma once
// The flags of a benchmark, each with a value.
//
//   bench::read_flags("bench_cpu", arguments, {{"--json", &settings.json}, {"--rounds", &settings.rounds}});

#include <algorithm>
#include <charconv>
#include <string>
#include <variant>
#include <vector>

#include "bonfire/base/error.h"

namespace bench {

struct Flag {
  std::string name;
  std::variant<std::string*, int*, std::vector<std::string>*> value;  // a list is separated by commas
};

inline void set(const std::string& text, std::string& value) { value = text; }
inline void set(const std::string& text, int& value) {
  auto [stopped, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || stopped != text.data() + text.size() || value < 1)
    bonfire::throw_error<bonfire::ConfigError>("'{}', expected a whole number from 1", text);
}
inline void set(const std::string& text, std::vector<std::string>& values) {
  values.clear();
  for (size_t begin = 0; begin <= text.size();) {
    size_t comma = std::min(text.find(',', begin), text.size());
    if (comma > begin) values.push_back(text.substr(begin, comma - begin));
    begin = comma + 1;
  }
}

// ConfigError for a flag that there is not, has no value or a wrong one.
inline void read_flags(const std::string& program, const std::vector<std::string>& arguments,
                       const std::vector<Flag>& flags) {
  for (size_t i = 0; i < arguments.size(); i += 2) {
    auto flag = std::find_if(flags.begin(), flags.end(), [&](const Flag& one) { return one.name == arguments[i]; });
    if (flag == flags.end()) {
      std::string names;
      for (const Flag& one : flags) names += (names.empty() ? "" : ", ") + one.name;
      bonfire::throw_error<bonfire::ConfigError>("[{}] there is no option {}; expected {}", program, arguments[i],
                                                 names);
    }
    if (i + 1 == arguments.size())
      bonfire::throw_error<bonfire::ConfigError>("[{}] {} wants a value", program, arguments[i]);
    try {
      std::visit([&](auto* value) { set(arguments[i + 1], *value); }, flag->value);
    } catch (const bonfire::ConfigError& error) {
      bonfire::throw_error<bonfire::ConfigError>("[{}] {} is {}", program, arguments[i], error.what());
    }
  }
}

// Of --dtype: f32 or bf16.
inline void check_dtype(const std::string& program, const std::string& dtype) {
  if (dtype != "f32" && dtype != "bf16")
    bonfire::throw_error<bonfire::ConfigError>("[{}] --dtype is '{}', expected f32 or bf16", program, dtype);
}

}  // namespace bench
