// nccl_comm_num: gradients go through several communicators in turn.
#include <gtest/gtest.h>

#include <atomic>
#include <set>
#include <thread>

#include "bonfire/bonfire.h"
#include "bonfire/comm/local/local_group.h"
#include "bonfire/parallel/fleet.h"
#include "bonfire/runtime/plan_cache.h"
#include "bonfire/runtime/profile.h"

namespace bonfire {
namespace {

// A group that counts all-reduces, those of its splits too.
class Counting final : public comm::Group {
 public:
  Counting(std::shared_ptr<comm::Group> group, std::atomic<int>& reductions)
      : group_(std::move(group)), reductions_(reductions) {}
  int rank() const override { return group_->rank(); }
  int size() const override { return group_->size(); }
  void all_reduce(comm::Values values, comm::Reduce reduce) override {
    ++reductions_;
    group_->all_reduce(values, reduce);
  }
  void broadcast(comm::Values values, int root) override { group_->broadcast(values, root); }
  void all_gather(comm::ConstValues mine, comm::Values all) override { group_->all_gather(mine, all); }
  void reduce_scatter(comm::ConstValues all, comm::Values mine, comm::Reduce reduce) override {
    group_->reduce_scatter(all, mine, reduce);
  }
  void all_to_all(comm::ConstValues to, comm::Values from) override { group_->all_to_all(to, from); }
  void send(comm::ConstValues values, int to) override { group_->send(values, to); }
  void receive(comm::Values values, int from) override { group_->receive(values, from); }
  void barrier() override { group_->barrier(); }
  comm::Buffer buffer(size_t bytes) override { return group_->buffer(bytes); }
  std::shared_ptr<comm::Group> split(int colour) override {
    return std::make_shared<Counting>(group_->split(colour), reductions_);
  }
  void abort(const std::string& reason) override { group_->abort(reason); }

 private:
  std::shared_ptr<comm::Group> group_;
  std::atomic<int>& reductions_;
};

// Runs the body on two ranks, each a thread with a device of its own; how many all-reduces they made, and the first
// error of each.
struct Outcome {
  std::atomic<int> reductions{0};
  std::string errors[2];
};
void on_two_ranks(Outcome& outcome, const std::function<void(Device)>& body) {
  auto groups = comm::local_groups(2, {.timeout = std::chrono::seconds(60)});
  std::vector<std::thread> threads;
  for (size_t r = 0; r < 2; ++r)
    threads.emplace_back([&, r] {
      try {
        fleet::join(std::make_shared<Counting>(groups[r], outcome.reductions));
        body({DeviceType::cpu, static_cast<int16_t>(r)});
        fleet::leave();
      } catch (const Error& error) {
        outcome.errors[r] = error.what();
      }
    });
  for (std::thread& thread : threads) thread.join();
}

nn::Linear layer(Device device) {
  nn::Linear plain({.in = 4, .out = 3});
  plain.to(device);
  return fleet::distributed_model(plain);
}

TEST(DataParallel, CommunicatorsAreShownInThePlan) {
  runtime::clear_plan_cache();
  Outcome outcome;
  on_two_ranks(outcome, [](Device device) {
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
    EXPECT_NE(text.find("agree (communicator 0)"), std::string::npos) << text;
    EXPECT_NE(text.find("all_reduce (communicator 0)"), std::string::npos) << text;
    EXPECT_NE(text.find("all_reduce (communicator 1)"), std::string::npos) << text;
  }
  EXPECT_GT(seen, 0);
}

TEST(DataParallel, CommunicatorsAreTracksOfTheirOwnInATrace) {
  runtime::clear_plan_cache();
  Outcome outcome;
  std::set<int> seen[2];
  on_two_ranks(outcome, [&](Device device) {
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
    for (const runtime::NodeSpan& span : runtime::spans_of(*plan)) seen[fleet::rank()].insert(span.communicator);
  });
  EXPECT_EQ(outcome.errors[0] + outcome.errors[1], "");
  for (const std::set<int>& communicators : seen) EXPECT_EQ(communicators, (std::set<int>{-1, 0, 1}));
}

TEST(DataParallel, AnotherNumberOfCommunicatorsOnOneRankIsNamed) {
  Outcome outcome;
  on_two_ranks(outcome, [](Device device) {
    nn::Linear model = layer(device);
    fleet::distributed_optimizer(optim::SGD(model.parameters(), {.lr = 0.1}), {.nccl_comm_num = 2 + fleet::rank()});
  });
  for (const std::string& error : outcome.errors)
    EXPECT_EQ(error, "[fleet] nccl_comm_num is 2 on rank 0 and 3 on rank 1; give all ranks the same strategy");
}

// Each optimizer's gradients lie side by side in memory of their own: one all-reduce for each.
TEST(DataParallel, SeveralOptimizersShareCommunicatorsAndStayMerged) {
  Outcome outcome;
  constexpr int kSteps = 3;
  on_two_ranks(outcome, [](Device device) {
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
  Outcome outcome;
  on_two_ranks(outcome, [](Device device) {
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
}  // namespace bonfire
