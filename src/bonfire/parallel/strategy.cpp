#include "bonfire/parallel/strategy.h"

#include <charconv>
#include <cmath>
#include <cstdlib>
#include <string_view>
#include <utility>

#include "bonfire/base/error.h"

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

// An option other than its default, which only counts where another one asks for it.
struct Dependent {
  const char* option;
  bool given, counts;
  const char* needs;
};

void refuse_without_effect(const DistributedStrategy& s) {
  const DistributedStrategy usual;
  const Dependent all[] = {
      {"fuse_parameter_memory_size", s.fuse_parameter_memory_size.has_value(), s.fuse_all_reduce_ops,
       "fuse_all_reduce_ops"},
      {"fuse_parameter_groups_size", s.fuse_parameter_groups_size != usual.fuse_parameter_groups_size,
       s.fuse_all_reduce_ops, "fuse_all_reduce_ops"},
      {"local_sgd_steps", s.local_sgd_steps != usual.local_sgd_steps, s.use_local_sgd, "use_local_sgd"},
      {"local_sgd_is_warm_steps", s.local_sgd_is_warm_steps != usual.local_sgd_is_warm_steps, s.use_local_sgd,
       "use_local_sgd"},
      {"amp_dtype", s.amp_dtype != usual.amp_dtype, s.use_amp, "use_amp"},
      {"loss_scaling", s.loss_scaling.has_value(), s.use_amp && s.amp_dtype == "f16",
       "use_amp and amp_dtype f16 (bf16 needs no scaling)"},
      {"recompute_segments", s.recompute_segments.has_value(), s.use_recompute, "use_recompute"},
  };
  for (const Dependent& one : all)
    if (one.given && !one.counts)
      throw_error<ConfigError>("[strategy] {0} has no effect without {1}; add {1}, or leave {0} out", one.option,
                               one.needs);
}

}  // namespace

void check_strategy(const DistributedStrategy& s) {
  refuse_without_effect(s);
  const std::pair<const char*, bool> not_yet[] = {{"use_recompute", s.use_recompute},
                                                  {"amp_dtype f16", s.amp_dtype == "f16"}};
  for (const auto& [option, asked] : not_yet)
    if (asked) throw_error<ConfigError>("[strategy] {} is not available yet; leave it out", option);
  if (s.amp_dtype != "bf16")
    throw_error<ConfigError>("[strategy] amp_dtype is '{}', expected bf16 or f16", s.amp_dtype);
  if (s.fuse_parameter_memory_size && !(*s.fuse_parameter_memory_size > 0))
    throw_error<ConfigError>(
        "[strategy] fuse_parameter_memory_size is {} MB, expected more than 0; fuse_all_reduce_ops = false merges "
        "nothing",
        *s.fuse_parameter_memory_size);
  const std::pair<const char*, int64_t> counts[] = {{"num_threads", s.num_threads},
                                                    {"cpu_threads", s.cpu_threads.value_or(1)},
                                                    {"fuse_parameter_groups_size", s.fuse_parameter_groups_size},
                                                    {"nccl_comm_num", s.nccl_comm_num},
                                                    {"fetch_frequency", s.fetch_frequency},
                                                    {"num_iteration_per_drop_scope", s.num_iteration_per_drop_scope},
                                                    {"local_sgd_steps", s.local_sgd_steps},
                                                    {"accumulate_steps", s.accumulate_steps}};
  for (const auto& [option, count] : counts)
    if (count < 1) throw_error<ConfigError>("[strategy] {} is {}, expected at least 1", option, count);
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
