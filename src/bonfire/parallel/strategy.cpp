#include "bonfire/parallel/strategy.h"

#include <charconv>
#include <cmath>
#include <cstdlib>
#include <string_view>
#include <utility>

#include "bonfire/base/error.h"
#include "bonfire/parallel/strategies/kind.h"

namespace bonfire {

namespace {

// Empty: nothing is said.
template <class Number>
std::optional<Number> number_from(const StrategyVariable& variable, const char* expected) {
  const char* given = std::getenv(variable.variable);
  if (given == nullptr || *given == '\0') return {};
  std::string_view text = given;
  Number number{};
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const bool whole = error == std::errc() && end == text.data() + text.size();
  if (!whole || !(number > 0) || !std::isfinite(static_cast<double>(number)))
    throw_error<ConfigError>("[fleet] {} is '{}', expected {}", variable.variable, text, expected);
  return number;
}

}  // namespace

void check_strategy(const DistributedStrategy& strategy) {
  for (const fleet::StrategyKind* kind : fleet::strategy_kinds())
    if (kind->check != nullptr) kind->check(strategy);
}

DistributedStrategy with_environment(DistributedStrategy strategy) {
  const auto& [memory, groups] = kStrategyVariables;
  if (const char* text = std::getenv(memory.variable); text != nullptr && std::string_view(text) == "auto") {
    strategy.fuse_parameter_memory_size.reset();
  } else if (auto megabytes = number_from<double>(memory, "a number of MB above 0, or auto")) {
    strategy.fuse_parameter_memory_size = megabytes;
  }
  if (auto layers = number_from<int64_t>(groups, "a whole number of layers, at least 1"))
    strategy.fuse_parameter_groups_size = *layers;
  return strategy;
}

}  // namespace bonfire
