#pragma once
// How a training step is spread over devices and how it is compiled. In YAML these are the keys under `strategy:`,
// which train/config/config_keys.h describes one by one.
//
// What a strategy does not choose stays as the program, or an earlier strategy, has set it: a default never undoes a
// choice.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace bonfire {

template <class T>
struct Usual {
  T value;
};
template <class T>
constexpr Usual<T> usually(T value) {
  return {value};
}

// A value that knows whether somebody chose it. It is used like a T.
template <class T>
struct Choice {
  constexpr Choice(Usual<T> usual) : value(usual.value) {}
  constexpr Choice(T value) : value(value), chosen(true) {}
  constexpr operator T() const { return value; }

  T value;
  bool chosen = false;
};

struct DistributedStrategy {
  Choice<int64_t> num_threads = usually<int64_t>(1);
  std::optional<int64_t> cpu_threads = {};  // empty: auto
  Choice<int64_t> nccl_comm_num = usually<int64_t>(1);
  Choice<bool> fuse_all_reduce_ops = usually(true);
  std::optional<double> fuse_parameter_memory_size = {};  // MB; empty: auto
  Choice<int64_t> fuse_parameter_groups_size = usually<int64_t>(50);
  Choice<bool> use_hierarchical_allreduce = usually(false);
  Choice<int64_t> num_iteration_per_drop_scope = usually<int64_t>(100);
  Choice<int64_t> fetch_frequency = usually<int64_t>(1);
  Choice<bool> fuse_bn_act_ops = usually(true);
  Choice<bool> fuse_elewise_add_act_ops = usually(true);
  Choice<bool> fast_math = usually(false);
  Choice<bool> use_local_sgd = usually(false);
  std::optional<int64_t> local_sgd_is_warm_steps = 0;  // epochs; empty: auto
  int64_t local_sgd_steps = 4;
  Choice<bool> use_amp = usually(false);
  std::string amp_dtype = "bf16";
  std::optional<double> loss_scaling = {};  // empty: dynamic
  Choice<bool> use_recompute = usually(false);
  std::optional<std::vector<std::string>> recompute_segments = {};  // empty: auto
  std::string memory_budget = "off";                                // "6GB", "0.8" of the device, "auto"
  Choice<bool> sync_batch_norm = usually(false);
  int64_t accumulate_steps = 1;
  std::string sharding = "off";
};

// ConfigError for options that would have no effect beside the others, are out of range or are not available yet: none
// is read and then ignored.
void check_strategy(const DistributedStrategy& strategy);

// Variables that PaddlePaddle's users know, and the options they set. They win over what a program or a file says.
struct StrategyVariable {
  const char* variable;
  const char* option;
};
inline constexpr StrategyVariable kStrategyVariables[] = {
    {"FLAGS_fuse_parameter_memory_size", "fuse_parameter_memory_size"},
    {"FLAGS_fuse_parameter_groups_size", "fuse_parameter_groups_size"}};

// The strategy as these variables change it. ConfigError for a value that the option cannot have.
DistributedStrategy with_environment(DistributedStrategy strategy);

}  // namespace bonfire
