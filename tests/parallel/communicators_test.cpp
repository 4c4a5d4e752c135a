// nccl_comm_num: gradients go through several communicators in turn.
#include <gtest/gtest.h>

#include <set>

#include "bonfire/bonfire.h"
#include "bonfire/runtime/plan_cache.h"
#include "bonfire/runtime/profile.h"
#include "tests/parallel/two_ranks.h"

namespace bonfire::communicators_test {
namespace {

nn::Linear layer(Device device) {
  nn::Linear plain({.in = 4, .out = 3});
  plain.to(device);
  return fleet::distributed_model(plain);
}

TEST(DataParallel, CommunicatorsAreShownInThePlan) {
  runtime::clear_plan_cache();
  testing::Outcome outcome;
  testing::on_two_ranks(outcome, [](Device device) {
    nn::Linear model = layer(device);
    auto optimizer = fleet::distributed_optimizer(optim::SGD(model.parameters(), {.lr = 0.1}),
                                                  {.nccl_comm_num = 2, .fuse_all_reduce_ops = false});
    sum(model(ones({2, 4}, DType::f32, device))).backward();
    optimizer.step();
    synchronize();
  });
  EXPECT_EQ(outcome.errors[0] + outcome.errors[1], "");
  int seen = 0;
  for (const auto& plan : runtime::cached_plans()) {
    std::string text = runtime::print_plan(*plan);
    if (text.find("all_reduce") == std::string::npos) continue;
    ++seen;
    EXPECT_NE(text.find("agree (data, communicator 0)"), std::string::npos) << text;
    EXPECT_NE(text.find("all_reduce (data, communicator 0)"), std::string::npos) << text;
    EXPECT_NE(text.find("all_reduce (data, communicator 1)"), std::string::npos) << text;
  }
  EXPECT_GT(seen, 0);
}

TEST(DataParallel, CommunicatorsAreTracksOfTheirOwnInATrace) {
  runtime::clear_plan_cache();
  testing::Outcome outcome;
  std::set<int> seen[2];
  testing::on_two_ranks(outcome, [&](Device device) {
    nn::Linear model = layer(device);
    auto optimizer = fleet::distributed_optimizer(optim::SGD(model.parameters(), {.lr = 0.1}),
                                                  {.nccl_comm_num = 2, .fuse_all_reduce_ops = false});
    std::shared_ptr<runtime::Plan> plan;
    for (int step = 0; step < 2; ++step) {
      sum(model(ones({2, 4}, DType::f32, device))).backward();
      optimizer.step();
      optimizer.clear_grad();
      synchronize();
      for (const auto& one : runtime::cached_plans())
        if (one->programs[0].program->device == device) plan = one;
      if (step == 0) runtime::start_profile(*plan);
    }
    for (const runtime::NodeSpan& span : runtime::spans_of(*plan))
      seen[fleet::rank()].insert(span.line ? span.line->number : -1);
  });
  EXPECT_EQ(outcome.errors[0] + outcome.errors[1], "");
  for (const std::set<int>& communicators : seen) EXPECT_EQ(communicators, (std::set<int>{-1, 0, 1}));
}

TEST(DataParallel, AnotherNumberOfCommunicatorsOnOneRankIsNamed) {
  testing::Outcome outcome;
  testing::on_two_ranks(outcome, [](Device device) {
    nn::Linear model = layer(device);
    fleet::distributed_optimizer(optim::SGD(model.parameters(), {.lr = 0.1}), {.nccl_comm_num = 2 + fleet::rank()});
  });
  for (const std::string& error : outcome.errors)
    EXPECT_EQ(
        error,
        "[distributed_optimizer] the ranks differ: nccl_comm_num is 2 on rank 0 and 3 on rank 1; give all ranks the "
        "same");
}

// Each optimizer's gradients lie side by side in memory of their own: one all-reduce for each.
TEST(DataParallel, SeveralOptimizersShareCommunicatorsAndStayMerged) {
  testing::Outcome outcome;
  constexpr int kSteps = 3;
  testing::on_two_ranks(outcome, [](Device device) {
    nn::Linear a = layer(device), b = layer(device);
    std::vector<optim::SGD> optimizers;
    for (const nn::Linear& model : {a, b})
      optimizers.push_back(fleet::distributed_optimizer(optim::SGD(model.parameters(), {.lr = 0.1})));
    auto step = compile([&](const Tensor& x) {
      Tensor loss = sum(a(x)) + sum(b(x));
      loss.backward();
      for (optim::SGD& optimizer : optimizers) {
        optimizer.step();
        optimizer.clear_grad();
      }
      return loss;
    });
    for (int i = 0; i < kSteps; ++i) step(ones({2, 4}, DType::f32, device)).item();
  });
  EXPECT_EQ(outcome.errors[0] + outcome.errors[1], "");
  EXPECT_EQ(outcome.reductions, 2 * 2 * kSteps);  // ranks × optimizers × steps
}

// A step that was compiled before goes on when another optimizer comes.
TEST(DataParallel, AnotherOptimizerBreaksNoStepThatWasCompiled) {
  testing::Outcome outcome;
  testing::on_two_ranks(outcome, [](Device device) {
    nn::Linear a = layer(device);
    auto first = fleet::distributed_optimizer(optim::SGD(a.parameters(), {.lr = 0.1}), {.nccl_comm_num = 2});
    auto step = compile([&](const Tensor& x) {
      Tensor loss = sum(a(x));
      loss.backward();
      first.step();
      first.clear_grad();
      return loss;
    });
    step(ones({2, 4}, DType::f32, device)).item();
    nn::Linear b = layer(device);
    fleet::distributed_optimizer(optim::SGD(b.parameters(), {.lr = 0.1}));
    step(ones({2, 4}, DType::f32, device)).item();
  });
  EXPECT_EQ(outcome.errors[0] + outcome.errors[1], "");
}

}  // namespace
}  // namespace bonfire::communicators_test
