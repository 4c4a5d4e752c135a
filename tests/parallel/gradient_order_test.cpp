// Gradients are reduced in the order in which they are made, whatever order the modules were registered in.
#include <gtest/gtest.h>

#include "bonfire/bonfire.h"
#include "bonfire/runtime/plan_cache.h"
#include "tests/parallel/two_ranks.h"

namespace bonfire::gradient_order_test {
namespace {

// Two heads on a trunk, registered in the order of use or the other way round.
class Heads : public nn::Callable<Heads> {
 public:
  enum class Registered { as_used, reversed };
  explicit Heads(Registered registered) : Callable("Heads") {
    std::vector<std::pair<const char*, nn::Linear*>> layers{
        {"first", &first_}, {"second", &second_}, {"left", &left_}, {"right", &right_}};
    if (registered == Registered::reversed) std::reverse(layers.begin(), layers.end());
    for (auto& [name, layer] : layers) *layer = register_module(name, *layer);
  }
  Tensor forward(const Tensor& x) const {
    Tensor y = tanh(second_(tanh(first_(x))));
    Tensor left = sum(left_(y)), right = sum(tanh(right_(y)));
    return left + right;
  }

 private:
  nn::Linear first_{{.in = 4, .out = 8}}, second_{{.in = 8, .out = 8}};
  nn::Linear left_{{.in = 8, .out = 2}}, right_{{.in = 8, .out = 3}};
};

constexpr int kSteps = 4;

// The weights after a few steps, by name.
using Weights = std::map<std::string, std::vector<std::byte>>;
Weights train(Device device, const Heads& model, optim::Momentum optimizer) {
  auto step = compile([&](const Tensor& x) {
    Tensor loss = model(x);
    loss.backward();
    optimizer.step();
    optimizer.clear_grad();
    return loss;
  });
  for (int i = 0; i < kSteps; ++i) step(full({2, 4}, 0.1 * i + 0.3 * fleet::rank(), DType::f32, device)).item();
  Weights weights;
  for (const Parameter& parameter : model.parameters()) weights[parameter.name()] = parameter.save();
  return weights;
}

Weights train(Device device, Heads::Registered registered) {
  manual_seed(3);
  Heads plain(registered);
  plain.to(device);
  Heads model = fleet::distributed_model(plain);
  return train(device, model,
               fleet::distributed_optimizer(optim::Momentum(model.parameters(), {.lr = 0.1, .momentum = 0.9}),
                                            {.fuse_parameter_groups_size = 2}));
}

// Of each step with collectives: what it runs, as "all_reduce" or the module that a node belongs to.
std::vector<std::vector<std::string>> steps_in_order() {
  std::vector<std::vector<std::string>> steps;
  for (const auto& plan : runtime::cached_plans()) {
    if (!plan->waits_for_ranks) continue;
    steps.emplace_back();
    for (const runtime::PlanNote& note : plan->notes)
      steps.back().push_back(note.node == "all_reduce" ? note.node : note.path);
  }
  return steps;
}

TEST(DataParallel, TheFirstAllReduceBeginsWhenTheFirstGradientsAreThere) {
  for (auto registered : {Heads::Registered::as_used, Heads::Registered::reversed}) {
    runtime::clear_plan_cache();
    testing::Outcome outcome;
    testing::on_two_ranks(outcome, [&](Device device) { train(device, registered); });
    ASSERT_EQ(outcome.errors[0] + outcome.errors[1], "");
    auto steps = steps_in_order();
    EXPECT_EQ(steps.size(), 2U);  // one plan a rank, from the first step on
    for (const std::vector<std::string>& step : steps) {
      auto reduced = std::find(step.begin(), step.end(), "all_reduce");
      ASSERT_NE(reduced, step.end());
      for (const char* later : {"left", "second", "first"})
        EXPECT_NE(std::find(reduced, step.end(), later), step.end()) << later;
      EXPECT_EQ(std::find(reduced, step.end(), "right"), step.end());  // the last that was used
    }
  }
}

TEST(DataParallel, GradientsLieInTheOrderInWhichTheyAreReduced) {
  int reductions[2];
  for (auto registered : {Heads::Registered::as_used, Heads::Registered::reversed}) {
    runtime::clear_plan_cache();
    testing::Outcome outcome;
    testing::on_two_ranks(outcome, [&](Device device) { train(device, registered); });
    reductions[static_cast<int>(registered)] = outcome.reductions;
    auto steps = steps_in_order();
    EXPECT_EQ(outcome.reductions, 2 * kSteps * std::count(steps[0].begin(), steps[0].end(), "all_reduce"));
  }
  EXPECT_EQ(reductions[0], reductions[1]);
}

TEST(DataParallel, TheOrderOfRegistrationChangesNoBit) {
  Weights weights[2][2];  // [registered][rank]
  for (auto registered : {Heads::Registered::as_used, Heads::Registered::reversed}) {
    testing::Outcome outcome;
    testing::on_two_ranks(outcome, [&](Device device) {
      weights[static_cast<int>(registered)][fleet::rank()] = train(device, registered);
    });
    ASSERT_EQ(outcome.errors[0] + outcome.errors[1], "");
  }
  EXPECT_EQ(weights[0][0], weights[0][1]);
  EXPECT_EQ(weights[0][0], weights[1][0]);
  EXPECT_EQ(weights[0][0], weights[1][1]);
}

// Of an optimizer that comes first nobody knows yet which model its gradients are of.
TEST(DataParallel, ModelAndOptimizerAreDistributedInEitherOrder) {
  struct Case {
    const char* name;
    DistributedStrategy strategy;
  };
  const Case cases[] = {{"as usual", {}},
                        {"two communicators", {.nccl_comm_num = 2, .fuse_parameter_groups_size = 2}},
                        {"local SGD", {.use_local_sgd = true, .local_sgd_steps = 2}},
                        {"two batches an update", {.accumulate_steps = 2}}};
  for (const Case& one : cases) {
    SCOPED_TRACE(one.name);
    Weights weights[2][2];  // [optimizer first][rank]
    for (bool optimizer_first : {false, true}) {
      testing::Outcome outcome;
      testing::on_two_ranks(outcome, [&](Device device) {
        manual_seed(3 + static_cast<uint64_t>(fleet::rank()));  // only rank 0's weights count
        Heads model(Heads::Registered::as_used);
        model.to(device);
        optim::Momentum optimizer(model.parameters(), {.lr = 0.1, .momentum = 0.9});
        if (!optimizer_first) fleet::distributed_model(model);
        fleet::distributed_optimizer(optimizer, one.strategy);
        if (optimizer_first) fleet::distributed_model(model);
        weights[optimizer_first ? 1 : 0][fleet::rank()] = train(device, model, optimizer);
      });
      ASSERT_EQ(outcome.errors[0] + outcome.errors[1], "");
      EXPECT_GT(outcome.reductions, 0);
    }
    EXPECT_EQ(weights[0][0], weights[0][1]);
    EXPECT_EQ(weights[0][0], weights[1][0]);
    EXPECT_EQ(weights[0][0], weights[1][1]);
  }
}

// Two layers that a rank uses in an order of its own.
class Either : public nn::Callable<Either> {
 public:
  Either() : Callable("Either") {}
  Tensor forward(const Tensor& x, bool swapped) const { return sum(swapped ? a_(tanh(b_(x))) : b_(tanh(a_(x)))); }

 private:
  nn::Linear a_ = register_module("a", nn::Linear({.in = 4, .out = 4}));
  nn::Linear b_ = register_module("b", nn::Linear({.in = 4, .out = 4}));
};

TEST(DataParallel, RanksThatMakeGradientsInAnotherOrderFollowTheFirst) {
  std::vector<std::byte> weights[2];
  testing::Outcome outcome;
  testing::on_two_ranks(outcome, [&](Device device) {
    Either plain;
    plain.to(device);
    Either model = fleet::distributed_model(plain);
    auto optimizer = fleet::distributed_optimizer(optim::SGD(model.parameters(), {.lr = 0.1}));
    for (int step = 0; step < 4; ++step) {
      model(ones({2, 4}, DType::f32, device), (step + fleet::rank()) % 2 == 0).backward();
      optimizer.step();
      optimizer.clear_grad();
    }
    weights[fleet::rank()] = model.parameters()[0].save();
  });
  EXPECT_EQ(outcome.errors[0] + outcome.errors[1], "");
  EXPECT_EQ(weights[0], weights[1]);
}

}  // namespace
}  // namespace bonfire::gradient_order_test
