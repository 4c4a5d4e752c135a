// How gradients are reduced: nccl_comm_num and use_hierarchical_allreduce, and where they lie meanwhile. What is merged
// is an option of a pass (pass_options.cpp).
#include "bonfire/base/error.h"
#include "bonfire/parallel/fleet.h"
#include "bonfire/parallel/job.h"

namespace bonfire::fleet {

namespace {

// Where ranks differ along other axes, too, it is refused: group_by_hosts().
void apply_reduction(const Applied& to, std::unique_ptr<StrategyPart>& /*kept*/) {
  if (to.strategy.use_hierarchical_allreduce && to.job.group && !to.job.has_replicas() && to.job.group->size() > 1)
    throw_error<ConfigError>(
        "[strategy] use_hierarchical_allreduce has no effect without data parallel, and this job is {}; leave it out",
        to_string(mesh()));
}

void compare_reduction(const Applied& to, comm::Settings& settings) {
  settings.emplace_back("nccl_comm_num", print(to.context.options.communicators));
  settings.emplace_back("use_hierarchical_allreduce", print(bool{to.strategy.use_hierarchical_allreduce}));
}

void meet_reduction(const Applied& to) {
  Job& job = to.job;
  std::shared_ptr<comm::Group> reducing = job.reducing;
  if (to.strategy.use_hierarchical_allreduce.chosen)
    reducing = to.strategy.use_hierarchical_allreduce ? group_by_hosts(job) : job.along(Axis::data);
  widen_data_axis(job, reducing, to.context.options.communicators);
  lay_out_gradients(job, to.optimizer.parameters());
}

void check_reduction(const DistributedStrategy& strategy) {
  require_at_least_one("nccl_comm_num", strategy.nccl_comm_num);
}

}  // namespace

extern const StrategyKind reduction;
const StrategyKind reduction{.name = "reduction",
                             .check = check_reduction,
                             .apply = apply_reduction,
                             .compare = compare_reduction,
                             .meet = meet_reduction};

}  // namespace bonfire::fleet
