#include "bonfire/parallel/option_changes.h"

namespace bonfire::fleet {

void OptionChanges::make(passes::Options& options, const DistributedStrategy& strategy) {
  set(options, &passes::Options::use_amp, strategy.use_amp);
  set(options, &passes::Options::fuse_bn_act_ops, strategy.fuse_bn_act_ops);
  set(options, &passes::Options::fuse_elewise_add_act_ops, strategy.fuse_elewise_add_act_ops);
  set(options, &passes::Options::fast_math, strategy.fast_math);
  set(options, &passes::Options::fuse_all_reduce_ops, strategy.fuse_all_reduce_ops);
  set(options, &passes::Options::all_reduce_layers, strategy.fuse_parameter_groups_size);
  set(options, &passes::Options::communicators, strategy.nccl_comm_num);
  if (strategy.fuse_parameter_memory_size)
    set(options, &passes::Options::all_reduce_bytes,
        Choice(static_cast<int64_t>(*strategy.fuse_parameter_memory_size * 1048576)));
}

void OptionChanges::undo(passes::Options& options) {
  for (auto change = changes_.rbegin(); change != changes_.rend(); ++change) (*change)(options);
  changes_.clear();
}

}  // namespace bonfire::fleet
