#include "bonfire/passes/pass.h"

#include <cstdlib>

#include "bonfire/passes/amp.h"
#include "bonfire/passes/before_pool_gradient.h"
#include "bonfire/passes/bucket_all_reduce.h"
#include "bonfire/passes/common_subexpressions.h"
#include "bonfire/passes/dead_code.h"
#include "bonfire/passes/early_sends.h"
#include "bonfire/passes/fold_constants.h"
#include "bonfire/passes/fuse_bias_act.h"
#include "bonfire/passes/fuse_bn_act.h"
#include "bonfire/passes/fuse_cast_sum.h"
#include "bonfire/passes/fuse_elementwise.h"
#include "bonfire/passes/fuse_embedding_add.h"
#include "bonfire/passes/fuse_linear_cross_entropy.h"
#include "bonfire/passes/fuse_norms.h"
#include "bonfire/passes/gather_parameters.h"
#include "bonfire/passes/look_up_products.h"
#include "bonfire/passes/rebuild_cheap_values.h"
#include "bonfire/passes/recompute.h"
#include "bonfire/passes/shard.h"
#include "bonfire/passes/split_over_time.h"
#include "bonfire/passes/sync_batch_norm.h"
#include "bonfire/passes/widen_where_read.h"

namespace bonfire::passes {

std::span<const std::unique_ptr<Pass>> pipeline() {
  static const std::vector<std::unique_ptr<Pass>> passes = [] {
    std::vector<std::unique_ptr<Pass>> list;
    list.push_back(dead_code());
    list.push_back(fold_constants());
    list.push_back(common_subexpressions());
    list.push_back(shard());
    list.push_back(amp());
    list.push_back(common_subexpressions());
    list.push_back(dead_code());
    list.push_back(fuse_norms());
    list.push_back(sync_batch_norm());
    list.push_back(mark_recomputed());
    list.push_back(split_over_time());
    list.push_back(recompute());
    list.push_back(gather_parameters());
    list.push_back(bucket_all_reduce());
    list.push_back(fuse_linear_cross_entropy());
    list.push_back(look_up_products());
    list.push_back(common_subexpressions());
    list.push_back(fuse_cast_sum());
    list.push_back(before_pool_gradient());
    list.push_back(fuse_embedding_add());
    list.push_back(dead_code());
    list.push_back(fuse_bias_act());
    list.push_back(fuse_bn_act());
    list.push_back(dead_code());
    list.push_back(fuse_elementwise());
    list.push_back(rebuild_cheap_values());
    list.push_back(dead_code());
    list.push_back(early_sends());
    return list;
  }();
  return passes;
}

namespace {

void run_each(std::span<const std::unique_ptr<Pass>> passes, Graph& graph, const Options& options) {
#ifdef NDEBUG
  static const bool verifying = std::getenv("BONFIRE_VERIFY") != nullptr;
#else
  static const bool verifying = true;
#endif
  if (verifying) verify(graph, "tracing");
  for (const std::unique_ptr<Pass>& pass : passes) {
    pass->run(graph, options);
    if (verifying) verify(graph, pass->name());
  }
}

}  // namespace

void run_pipeline(Graph& graph, const Options& options) { run_each(pipeline(), graph, options); }

void run_before_cut(Graph& graph, const Options& options) {
  static const std::vector<std::unique_ptr<Pass>> passes = [] {
    std::vector<std::unique_ptr<Pass>> list;
    list.push_back(dead_code());
    list.push_back(fold_constants());
    list.push_back(common_subexpressions());
    list.push_back(shard());
    list.push_back(sync_batch_norm());
    list.push_back(amp());
    list.push_back(common_subexpressions());
    list.push_back(dead_code());
    list.push_back(widen_where_read());
    return list;
  }();
  run_each(passes, graph, options);
}

Options after_cut(Options options) {
  options.use_amp = options.sync_batch_norm = false;
  return options;
}

}  // namespace bonfire::passes
