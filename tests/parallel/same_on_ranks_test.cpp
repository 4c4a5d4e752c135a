// Programs through fleet: a model, an optimizer or a strategy that is another one on some rank is named before a step.
#include <gtest/gtest.h>

#include "bonfire/bonfire.h"
#include "bonfire/parallel/pipeline/pipeline.h"
#include "tests/parallel/on_mesh.h"
#include "tests/parallel/two_ranks.h"

namespace bonfire::same_on_ranks_test {
namespace {

// A model with something that no parameter shows.
nn::Sequential layers(Device device, double dropout = 0.1) {
  nn::Sequential model({nn::Linear({.in = 4, .out = 3}), nn::Dropout(dropout)});
  model.to(device);
  return model;
}

// What both ranks say; the second gets true.
std::string error_of(const std::function<void(Device, bool is_second)>& body) {
  testing::Outcome outcome;
  testing::on_two_ranks(outcome, [&](Device device) { body(device, fleet::rank() == 1); });
  EXPECT_EQ(outcome.errors[0], outcome.errors[1]);
  EXPECT_EQ(outcome.reductions, 0);
  return outcome.errors[1];
}

template <class Make>
std::string error_of_optimizer(const Make& make) {
  return error_of([&](Device device, bool is_second) {
    auto model = fleet::distributed_model(layers(device));
    fleet::distributed_optimizer(make(model, is_second));
  });
}

std::string differ(const std::string& what) {
  return "[distributed_optimizer] the ranks differ: " + what + "; give all ranks the same";
}

TEST(SameOnRanks, AnOptimizersKindRateAndNumbersAreCompared) {
  EXPECT_EQ(error_of_optimizer([](auto& model, bool) { return optim::SGD(model.parameters(), {.lr = 0.1}); }), "");
  EXPECT_EQ(error_of_optimizer(
                [](auto& model, bool second) { return optim::SGD(model.parameters(), {.lr = second ? 0.2 : 0.1}); }),
            differ("lr is 0.1 on rank 0 and 0.2 on rank 1"));
  EXPECT_EQ(error_of_optimizer([](auto& model, bool second) {
              return optim::Momentum(model.parameters(),
                                     {.lr = 0.1, .momentum = second ? 0.5 : 0.9, .nesterov = second});
            }),
            differ("momentum is 0.9 on rank 0 and 0.5 on rank 1, nesterov is false on rank 0 and true on rank 1"));
  EXPECT_EQ(error_of_optimizer([](auto& model, bool second) {
              return optim::Adam(model.parameters(), {.betas = {0.9, second ? 0.99 : 0.999}, .weight_decay = 0.5});
            }),
            differ("betas is 0.9 and 0.999 on rank 0 and 0.9 and 0.99 on rank 1"));
  EXPECT_EQ(error_of_optimizer([](auto& model, bool second) -> optim::Optimizer {
              if (second) return optim::AdamW(model.parameters(), {.weight_decay = 0});
              return optim::Adam(model.parameters(), {});
            }),
            differ("optimizer is adam on rank 0 and adamw on rank 1"));
}

TEST(SameOnRanks, AGroupsOwnSettingsAreCompared) {
  EXPECT_EQ(error_of_optimizer([](auto& model, bool second) {
              const auto all = model.parameters();
              return optim::SGD(optim::ParameterGroups{{.parameters = {all[0]}},
                                                       {.parameters = {all[1]}, .weight_decay = second ? 0.5 : 0.0}},
                                {.lr = 0.1});
            }),
            differ("weight_decay of group 2 is 0 on rank 0 and 0.5 on rank 1"));
  EXPECT_EQ(error_of_optimizer([](auto& model, bool second) {
              auto some = model.parameters();
              if (second) some.pop_back();
              return optim::SGD(some, {.lr = 0.1});
            }),
            differ("parameter 1 of the optimizer is '0.bias' f32 [3] on rank 0 and not there on rank 1"));
}

TEST(SameOnRanks, AStrategyIsCompared) {
  auto error = [](const DistributedStrategy& strategy) {
    return error_of([&](Device device, bool is_second) {
      auto model = fleet::distributed_model(layers(device));
      fleet::distributed_optimizer(optim::SGD(model.parameters(), {.lr = 0.1}),
                                   is_second ? strategy : DistributedStrategy{});
    });
  };
  EXPECT_EQ(error({.use_amp = true}), differ("use_amp is false on rank 0 and true on rank 1"));
  EXPECT_EQ(error({.fuse_all_reduce_ops = false}), differ("fuse_all_reduce_ops is true on rank 0 and false on rank 1"));
  EXPECT_EQ(error({.fuse_parameter_memory_size = 1.0}),
            differ("fuse_parameter_memory_size is auto on rank 0 and 1048576 bytes on rank 1"));
  EXPECT_EQ(error({.use_local_sgd = true}), differ("use_local_sgd is false on rank 0 and true on rank 1"));
  EXPECT_EQ(error({.sync_batch_norm = true}), differ("sync_batch_norm is false on rank 0 and true on rank 1"));
  EXPECT_EQ(error({.fuse_bn_act_ops = true}), "");  // as it is by default
  EXPECT_EQ(error({.num_iteration_per_drop_scope = 7}), "");
}

TEST(SameOnRanks, AModelIsComparedWithWhatNoParameterShows) {
  EXPECT_EQ(
      error_of([](Device device, bool is_second) { fleet::distributed_model(layers(device, is_second ? 0.5 : 0.1)); }),
      "[distributed_model] the ranks differ: line 3 of the model is (1): Dropout(p=0.1, inplace=False) on rank 0 and "
      "(1): "
      "Dropout(p=0.5, inplace=False) on rank 1; give all ranks the same");
}

// Where no rank has a replica, too: ranks that share layers, and stages.
TEST(SameOnRanks, OptimizersAndStrategiesAreComparedOnEveryMesh) {
  auto errors = [](const MeshSizes& sizes, double rate, const DistributedStrategy& strategy) {
    return testing::errors_on_mesh(2, sizes, [&](Device device) {
      const bool is_second = fleet::rank() == 1;
      auto model = layers(device);
      if (sizes.tensor > 1) model = fleet::distributed_model(model, {.split = {{"0.weight", 1}}});
      fleet::distributed_optimizer(optim::SGD(model.parameters(), {.lr = is_second ? rate : 0.1}),
                                   is_second ? strategy : DistributedStrategy{});
    });
  };
  for (const MeshSizes& sizes : {MeshSizes{.tensor = 2}, MeshSizes{.pipeline = 2}}) {
    for (const std::string& error : errors(sizes, 0.1, {})) EXPECT_EQ(error, "");
    for (const std::string& error : errors(sizes, 0.2, {}))
      EXPECT_EQ(error, differ("lr is 0.1 on rank 0 and 0.2 on rank 1"));
    for (const std::string& error : errors(sizes, 0.1, {.use_amp = true}))
      EXPECT_EQ(error, differ("use_amp is false on rank 0 and true on rank 1"));
  }
}

TEST(SameOnRanks, AModelInStagesIsComparedWithWhatNoParameterShows) {
  const std::vector<std::string> errors = testing::errors_on_mesh(2, {.pipeline = 2}, [&](Device device) {
    nn::Sequential model({nn::Linear({.in = 4, .out = 4}), nn::Dropout(fleet::rank() == 1 ? 0.5 : 0.1),
                          nn::Linear({.in = 4, .out = 3})});
    model.to(device);
    optim::SGD optimizer(model.parameters(), {.lr = 0.1});
    pipeline::Pipeline pipeline(
        model, optimizer,
        [&](std::span<const Tensor> batch) -> std::vector<Tensor> { return {mean(square(model(batch[0])))}; },
        {.cut = {{"2"}}});
    const TensorSpec specs[] = {{{4, 4}, DType::f32, device}};
    pipeline.prepare(specs);
  });
  for (const std::string& error : errors)
    EXPECT_NE(error.find("(1): Dropout(p=0.1, inplace=False) on rank 0 and (1): Dropout(p=0.5, inplace=False) on rank "
                         "1; give all ranks the same"),
              std::string::npos)
        << error;
}

TEST(SameOnRanks, HierarchicalReductionIsRefusedWhereNothingIsReduced) {
  for (const MeshSizes& sizes : {MeshSizes{.tensor = 2}, MeshSizes{.pipeline = 2}})
    for (const std::string& error : testing::errors_on_mesh(2, sizes, [](Device device) {
           auto model = layers(device);
           fleet::distributed_optimizer(optim::SGD(model.parameters(), {.lr = 0.1}),
                                        {.use_hierarchical_allreduce = true});
         }))
      EXPECT_NE(error.find("use_hierarchical_allreduce has no effect without data parallel"), std::string::npos)
          << error;
}

TEST(SameOnRanks, CallsInAnotherOrderAreNamed) {
  testing::Outcome outcome;
  testing::on_two_ranks(outcome, [](Device device) {
    auto model = layers(device);
    optim::SGD optimizer(model.parameters(), {.lr = 0.1});
    if (fleet::rank() == 0) fleet::distributed_model(model);
    fleet::distributed_optimizer(optimizer);
    if (fleet::rank() == 1) fleet::distributed_model(model);
  });
  for (const std::string& error : outcome.errors)
    EXPECT_NE(error.find("the call is distributed_model on rank 0 and distributed_optimizer on rank 1"),
              std::string::npos)
        << error;
}

}  // namespace
}  // namespace bonfire::same_on_ranks_test
