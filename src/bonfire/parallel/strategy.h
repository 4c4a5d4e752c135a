#pragma once
// How a training step is spread over devices and how it is compiled. In YAML these are the keys under `strategy:`,
// which train/config_keys.h describes one by one.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace bonfire {

struct DistributedStrategy {
  int64_t num_threads = 1;
  std::optional<int64_t> cpu_threads = {};  // empty: auto
  int64_t nccl_comm_num = 1;
  bool fuse_all_reduce_ops = true;
  std::optional<double> fuse_parameter_memory_size = {};  // MB; empty: auto
  int64_t fuse_parameter_groups_size = 50;
  bool use_hierarchical_allreduce = false;
  int64_t num_iteration_per_drop_scope = 100;
  int64_t fetch_frequency = 1;
  bool fuse_bn_act_ops = true;
  bool fuse_elewise_add_act_ops = true;
  bool use_local_sgd = false;
  std::optional<int64_t> local_sgd_is_warm_steps = 0;  // epochs; empty: auto
  int64_t local_sgd_steps = 4;
  bool use_amp = false;
  std::string amp_dtype = "bf16";
  std::optional<double> loss_scaling = {};  // empty: dynamic
  bool use_recompute = false;
  std::optional<std::vector<std::string>> recompute_segments = {};  // empty: auto
  bool sync_batch_norm = false;
  int64_t accumulate_steps = 1;
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
