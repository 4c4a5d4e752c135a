// What a strategy does not choose stays as the program has set it; what it chooses ends with the job.
#include <gtest/gtest.h>

#include "bonfire/bonfire.h"
#include "bonfire/passes/pass.h"
#include "bonfire/runtime/plan_cache.h"
#include "bonfire/runtime/profile.h"
#include "tests/comm/ranks.h"

namespace bonfire::testing::chosen_options_test {
namespace {

// The plan of a training step under a strategy.
std::string plan_under(const DistributedStrategy& strategy) {
  runtime::clear_plan_cache();
  nn::Linear model = fleet::distributed_model(nn::Linear({.in = 64, .out = 64}));
  auto optimizer = fleet::distributed_optimizer(optim::SGD(model.parameters(), {.lr = 0.1}), strategy);
  for (int step = 0; step < 2; ++step) {
    sum(model(ones({16, 64}, DType::f32))).backward();
    optimizer.step();
    optimizer.clear_grad();
  }
  synchronize();
  std::string text;
  for (const auto& plan : runtime::cached_plans()) text += runtime::print_plan(*plan);
  return text;
}

// Then weights and inputs are cast.
bool computes_in_bf16(const DistributedStrategy& strategy) {
  return plan_under(strategy).find("cast (") != std::string::npos;
}

size_t all_reduces(const DistributedStrategy& strategy) {
  const std::string text = plan_under(strategy);
  size_t times = 0;
  for (size_t at = text.find("all_reduce"); at != std::string::npos; at = text.find("all_reduce", at + 1)) ++times;
  return times;
}

TEST(ChosenOptions, ADefaultStrategyLeavesMixedPrecisionOn) {
  expect_all_fine(run_ranks(Backend::shm, 2, [](Rank& rank) {
    use_mixed_precision(true);  // by the program
    fleet::join(rank.group);
    require(computes_in_bf16({}), "a default strategy turned mixed precision off");
    require(computes_in_bf16({.fuse_all_reduce_ops = false}), "a strategy that says nothing of it turned it off");
    require(!computes_in_bf16({.use_amp = false}), "use_amp = false did not turn mixed precision off");
    fleet::leave();
    require(StepContext::current().options.use_amp, "the program's own choice is not back after the job");
  }));
}

TEST(ChosenOptions, ADefaultStrategyLeavesWhatAnEarlierOneChose) {
  expect_all_fine(run_ranks(Backend::shm, 2, [](Rank& rank) {
    fleet::join(rank.group);
    const size_t merged = all_reduces({}), apart = all_reduces({.fuse_all_reduce_ops = false});
    require(apart > merged, "fuse_all_reduce_ops = false did nothing");
    require(all_reduces({}) == apart, "a default strategy merged what the program wanted apart");
    require(all_reduces({.fuse_all_reduce_ops = true}) == merged, "fuse_all_reduce_ops = true did nothing");
    fleet::distributed_optimizer(optim::SGD(nn::Linear({.in = 2, .out = 2}).parameters(), {.lr = 0.1}),
                                 {.fuse_bn_act_ops = false, .sync_batch_norm = true});
    fleet::distributed_optimizer(optim::SGD(nn::Linear({.in = 2, .out = 2}).parameters(), {.lr = 0.1}));
    const passes::Options& now = StepContext::current().options;
    require(!now.fuse_bn_act_ops && now.sync_batch_norm, "a default strategy undid an earlier one");
    fleet::leave();
    require(now.fuse_bn_act_ops && now.fuse_all_reduce_ops && !now.sync_batch_norm,
            "what strategies chose outlives the job");
  }));
}

}  // namespace
}  // namespace bonfire::testing::chosen_options_test
