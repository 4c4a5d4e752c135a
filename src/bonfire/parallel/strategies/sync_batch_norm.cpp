// sync_batch_norm: the pass of that name does the work, along the data axis.
#include "bonfire/parallel/job.h"

namespace bonfire::fleet {

namespace {

struct SyncBatchNorm final : StrategyPart {
  explicit SyncBatchNorm(StepContext& context) : context(context) {}
  SyncBatchNorm(const SyncBatchNorm&) = delete;
  SyncBatchNorm& operator=(const SyncBatchNorm&) = delete;
  ~SyncBatchNorm() override { context.options.sync_batch_norm = false; }
  StepContext& context;
};

void apply_sync_batch_norm(const Applied& to, std::unique_ptr<StrategyPart>& kept) {
  if (!to.strategy.sync_batch_norm.chosen || !to.job.has_replicas()) return;
  kept.reset();
  if (!to.strategy.sync_batch_norm) return;
  kept = std::make_unique<SyncBatchNorm>(to.context);
  to.context.options.sync_batch_norm = true;
}

void compare_sync_batch_norm(const Applied& to, comm::Settings& settings) {
  settings.emplace_back("sync_batch_norm", print(bool{to.strategy.sync_batch_norm}));
}

}  // namespace

extern const StrategyKind sync_batch_norm;
const StrategyKind sync_batch_norm{
    .name = "sync_batch_norm", .apply = apply_sync_batch_norm, .compare = compare_sync_batch_norm};

}  // namespace bonfire::fleet
