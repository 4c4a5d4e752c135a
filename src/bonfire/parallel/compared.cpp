#include "bonfire/parallel/compared.h"

#include <fmt/format.h>

#include <sstream>

namespace bonfire::fleet {

namespace {

std::string print(bool value) { return value ? "true" : "false"; }
std::string print(int64_t value) { return std::to_string(value); }

std::string print(const std::string& name, const Variable& variable) {
  return fmt::format("'{}' {} {}", name, name_of(variable.dtype()), to_string(variable.shape()));
}

}  // namespace

comm::Settings compared_of(const nn::Module& model) {
  comm::Settings settings;
  for (const auto& [name, variable] : model.state_dict())
    settings.emplace_back(fmt::format("parameter {}", settings.size()), print(name, variable));
  std::istringstream lines(nn::to_string(model));
  std::string line;
  for (int number = 1; std::getline(lines, line); ++number)
    settings.emplace_back(fmt::format("line {} of the model", number), line.substr(line.find_first_not_of(' ')));
  return settings;
}

comm::Settings compared_of(const optim::Optimizer& optimizer, const DistributedStrategy& strategy,
                           const passes::Options& options) {
  comm::Settings settings = optimizer.settings();
  const std::vector<Variable>& parameters = optimizer.parameters();
  for (size_t i = 0; i < parameters.size(); ++i)
    settings.emplace_back(fmt::format("parameter {} of the optimizer", i), print(parameters[i].name(), parameters[i]));
  const DistributedStrategy& s = strategy;
  settings.insert(settings.end(),
                  {{"use_amp", print(options.use_amp)},
                   {"amp_dtype", s.amp_dtype},
                   {"fuse_bn_act_ops", print(options.fuse_bn_act_ops)},
                   {"fuse_elewise_add_act_ops", print(options.fuse_elewise_add_act_ops)},
                   {"fast_math", print(options.fast_math)},
                   {"fuse_all_reduce_ops", print(options.fuse_all_reduce_ops)},
                   {"fuse_parameter_memory_size",
                    options.all_reduce_bytes == 0 ? "auto" : fmt::format("{} bytes", options.all_reduce_bytes)},
                   {"fuse_parameter_groups_size", print(options.all_reduce_layers)},
                   {"nccl_comm_num", print(options.communicators)},
                   {"use_hierarchical_allreduce", print(bool{s.use_hierarchical_allreduce})},
                   {"fetch_frequency", print(int64_t{s.fetch_frequency})},
                   {"use_local_sgd", print(bool{s.use_local_sgd})},
                   {"local_sgd_steps", print(s.local_sgd_steps)},
                   {"local_sgd_is_warm_steps", s.local_sgd_is_warm_steps ? print(*s.local_sgd_is_warm_steps) : "auto"},
                   {"accumulate_steps", print(s.accumulate_steps)},
                   {"sync_batch_norm", print(bool{s.sync_batch_norm})}});
  return settings;
}

}  // namespace bonfire::fleet
