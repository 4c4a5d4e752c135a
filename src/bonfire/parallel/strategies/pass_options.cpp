// Options that passes read: use_amp, fast_math, and what is fused.
#include "bonfire/parallel/strategies/pass_options.h"

#include <fmt/format.h>

#include "bonfire/base/error.h"

namespace bonfire::fleet {

void OptionChanges::make(const DistributedStrategy& strategy) {
  set(&StepOptions::use_amp, strategy.use_amp);
  set(&StepOptions::fuse_bn_act_ops, strategy.fuse_bn_act_ops);
  set(&StepOptions::fuse_elewise_add_act_ops, strategy.fuse_elewise_add_act_ops);
  set(&StepOptions::fast_math, strategy.fast_math);
  set(&StepOptions::fuse_all_reduce_ops, strategy.fuse_all_reduce_ops);
  set(&StepOptions::all_reduce_layers, strategy.fuse_parameter_groups_size);
  set(&StepOptions::communicators, strategy.nccl_comm_num);
  if (strategy.fuse_parameter_memory_size)
    set(&StepOptions::all_reduce_bytes, Choice(static_cast<int64_t>(*strategy.fuse_parameter_memory_size * 1048576)));
}

OptionChanges::~OptionChanges() {
  for (auto change = changes_.rbegin(); change != changes_.rend(); ++change) (*change)(options_);
}

namespace {

void check_pass_options(const DistributedStrategy& s) {
  require_effect("fuse_parameter_memory_size", s.fuse_parameter_memory_size.has_value(), s.fuse_all_reduce_ops,
                 "fuse_all_reduce_ops");
  require_effect("fuse_parameter_groups_size",
                 s.fuse_parameter_groups_size != DistributedStrategy{}.fuse_parameter_groups_size,
                 s.fuse_all_reduce_ops, "fuse_all_reduce_ops");
  if (s.fuse_parameter_memory_size && !(*s.fuse_parameter_memory_size > 0))
    throw_error<ConfigError>(
        "[strategy] fuse_parameter_memory_size is {} MB, expected more than 0; fuse_all_reduce_ops = false merges "
        "nothing",
        *s.fuse_parameter_memory_size);
  require_at_least_one("fuse_parameter_groups_size", s.fuse_parameter_groups_size);
}

void apply_pass_options(const Applied& to, std::unique_ptr<StrategyPart>& kept) {
  if (!kept) kept = std::make_unique<OptionChanges>(to.context.options);
  static_cast<OptionChanges&>(*kept).make(to.strategy);
}

// As it counts: what the strategy does not choose is as the program has set it.
void compare_pass_options(const Applied& to, comm::Settings& settings) {
  const StepOptions& options = to.context.options;
  settings.insert(settings.end(),
                  {{"use_amp", print(options.use_amp)},
                   {"amp_dtype", to.strategy.amp_dtype},
                   {"fuse_bn_act_ops", print(options.fuse_bn_act_ops)},
                   {"fuse_elewise_add_act_ops", print(options.fuse_elewise_add_act_ops)},
                   {"fast_math", print(options.fast_math)},
                   {"fuse_all_reduce_ops", print(options.fuse_all_reduce_ops)},
                   {"fuse_parameter_memory_size",
                    options.all_reduce_bytes == 0 ? "auto" : fmt::format("{} bytes", options.all_reduce_bytes)},
                   {"fuse_parameter_groups_size", print(options.all_reduce_layers)}});
}

}  // namespace

extern const StrategyKind pass_options;
const StrategyKind pass_options{
    .name = "pass_options", .check = check_pass_options, .apply = apply_pass_options, .compare = compare_pass_options};

}  // namespace bonfire::fleet
