// Data parallel over threads as ranks: each traces, plans and runs on a device of its own.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <set>
#include <thread>

#include "bonfire/base/random.h"
#include "bonfire/bonfire.h"
#include "bonfire/comm/local/local_group.h"
#include "bonfire/graph/fetched.h"
#include "bonfire/parallel/fleet.h"
#include "bonfire/runtime/plan.h"
#include "bonfire/runtime/plan_cache.h"
#include "tests/support/expect_error.h"

namespace bonfire::data_parallel_test {
namespace {

constexpr int64_t kBatch = 16, kSteps = 50;

class SmoothNet : public nn::Callable<SmoothNet> {
 public:
  SmoothNet() : Callable("SmoothNet") {}
  Tensor forward(const Tensor& x) const {  // [N, 1, 12, 12]
    Tensor y = avg_pool2d(tanh(conv1_(x)), {.kernel = {2}});
    y = avg_pool2d(tanh(conv2_(y)), {.kernel = {2}});
    return fc_(flatten(y, 1));
  }

 private:
  nn::Conv2d conv1_ = register_module("conv1", nn::Conv2d({.in = 1, .out = 8, .kernel = {3}, .padding = {1}}));
  nn::Conv2d conv2_ = register_module("conv2", nn::Conv2d({.in = 8, .out = 16, .kernel = {3}, .padding = {1}}));
  nn::Linear fc_ = register_module("fc", nn::Linear({.in = 144, .out = 10}));
};

// Samples [first, first + count) of a step's batch.
Tensor images(int64_t step, int64_t first, int64_t count, Device device) {
  std::vector<float> pixels(static_cast<size_t>(count) * 144);
  for (size_t i = 0; i < pixels.size(); ++i)
    pixels[i] = normal_at(3, static_cast<uint64_t>(step), static_cast<size_t>(first) * 144 + i);
  return Tensor::from<float>(pixels, {count, 1, 12, 12}, device);
}

Tensor labels(int64_t step, int64_t first, int64_t count, Device device) {
  std::vector<int64_t> classes(static_cast<size_t>(count));
  for (size_t i = 0; i < classes.size(); ++i) classes[i] = (7 * step + 3 * (first + static_cast<int64_t>(i))) % 10;
  return Tensor::from<int64_t>(classes, {count}, device);
}

struct Course {
  std::vector<double> losses;  // of this rank's samples, each step
  std::vector<float> weights;  // of the last layer, at the end
};

// One rank's training; `share` samples of each batch are its own.
Course train(Device device, int64_t share, const DistributedStrategy& strategy) {
  manual_seed(5 + static_cast<uint64_t>(fleet::rank()));  // only rank 0's weights count
  SmoothNet plain;
  plain.to(device);
  SmoothNet model = fleet::distributed_model(plain);
  auto optimizer =
      fleet::distributed_optimizer(optim::Momentum(model.parameters(), {.lr = 0.05, .momentum = 0.9}), strategy);
  Course course;
  for (int64_t step = 0; step < kSteps; ++step) {
    int64_t first = share * fleet::rank();
    Tensor loss = cross_entropy(model(images(step, first, share, device)), labels(step, first, share, device));
    loss.backward();
    optimizer.step();
    optimizer.clear_grad();
    course.losses.push_back(loss.item());
  }
  std::vector<std::byte> bytes = model.parameters().back().save();
  course.weights.resize(bytes.size() / sizeof(float));
  std::memcpy(course.weights.data(), bytes.data(), bytes.size());
  return course;
}

std::vector<Course> train_on(int ranks, const DistributedStrategy& strategy) {
  auto groups = comm::local_groups(ranks, {.timeout = std::chrono::seconds(60)});
  std::vector<Course> courses(static_cast<size_t>(ranks));
  std::vector<std::thread> threads;
  for (int r = 0; r < ranks; ++r)
    threads.emplace_back([&, r] {
      fleet::join(groups[static_cast<size_t>(r)]);
      courses[static_cast<size_t>(r)] = train({DeviceType::cpu, static_cast<int16_t>(r)}, kBatch / ranks, strategy);
      fleet::leave();
    });
  for (std::thread& thread : threads) thread.join();
  return courses;
}

void expect_same_training(int ranks, const DistributedStrategy& strategy) {
  std::vector<Course> whole = train_on(1, {}), parts = train_on(ranks, strategy);
  for (int64_t step = 0; step < kSteps; ++step) {
    double mean = 0;
    for (const Course& part : parts) mean += part.losses[static_cast<size_t>(step)] / ranks;
    double expected = whole[0].losses[static_cast<size_t>(step)];
    ASSERT_NEAR(mean, expected, 1e-5 * std::abs(expected)) << "step " << step << ", " << ranks << " ranks";
  }
  for (const Course& part : parts) EXPECT_EQ(part.weights, parts[0].weights);  // the same bits everywhere
}

TEST(DataParallel, RanksTrainAsOneWouldOnTheWholeBatch) {
  for (int ranks : {2, 4}) expect_same_training(ranks, {});
}

TEST(DataParallel, WithoutMergingTheResultIsTheSame) { expect_same_training(2, {.fuse_all_reduce_ops = false}); }

TEST(DataParallel, GradientsAreMadeWhereTheyAreReduced) {
  runtime::clear_plan_cache();
  train_on(2, {});
  int seen = 0;
  for (const auto& plan : runtime::cached_plans())
    for (const runtime::PlanProgram& program : plan->programs)
      for (const ProgramStep& step : program.program->steps) {
        if (!step.line) continue;
        ++seen;
        for (size_t i = 0; i < step.outputs.size(); ++i) {
          auto source = [&](int position) { return program.locations[static_cast<size_t>(position)].source; };
          EXPECT_EQ(source(step.outputs[i]), runtime::Source::variable);
          // Beside the gradients goes which of them this rank has used.
          if (source(step.inputs[i]) == runtime::Source::feed) continue;
          EXPECT_EQ(step.inputs[i], step.outputs[i]);
        }
      }
  EXPECT_GT(seen, 0);
}

TEST(DataParallel, ModelsThatDifferAreNamed) {
  auto groups = comm::local_groups(2, {.timeout = std::chrono::seconds(60)});
  std::vector<std::string> errors(2);
  std::vector<std::thread> threads;
  for (int r = 0; r < 2; ++r)
    threads.emplace_back([&, r] {
      fleet::join(groups[static_cast<size_t>(r)]);
      try {
        fleet::distributed_model(nn::Linear({.in = 4, .out = 3 + r}));
      } catch (const ConfigError& error) {
        errors[static_cast<size_t>(r)] = error.what();
      }
      fleet::leave();
    });
  for (std::thread& thread : threads) thread.join();
  for (const std::string& error : errors)
    EXPECT_EQ(
        error.substr(0, error.find(", parameter 1 ")),
        "[distributed_model] the ranks differ: parameter 0 is 'weight' f32 [3, 4] on rank 0 and 'weight' f32 [4, 4] "
        "on rank 1");
}

// Runs the body as ranks, each a thread with a device of its own, and returns what each has thrown ("" for nothing).
std::vector<std::string> errors_of(int ranks, const std::function<void(Device)>& body) {
  auto groups = comm::local_groups(ranks, {.timeout = std::chrono::seconds(60)});
  std::vector<std::string> errors(static_cast<size_t>(ranks));
  std::vector<std::thread> threads;
  for (int r = 0; r < ranks; ++r)
    threads.emplace_back([&, r] {
      try {
        fleet::join(groups[static_cast<size_t>(r)]);
        body({DeviceType::cpu, static_cast<int16_t>(r)});
        fleet::leave();
      } catch (const Error& error) {
        errors[static_cast<size_t>(r)] = error.what();
      }
    });
  for (std::thread& thread : threads) thread.join();
  return errors;
}

// Layers of one shape, of which a sample goes through one.
class Branches : public nn::Callable<Branches> {
 public:
  Branches() : Callable("Branches") {}
  Tensor forward(const Tensor& x, int branch) const {
    return branch == 0 ? left_(x) : branch == 1 ? right_(x) : last_(x);
  }

 private:
  nn::Linear left_ = register_module("left", nn::Linear({.in = 4, .out = 3}));
  nn::Linear right_ = register_module("right", nn::Linear({.in = 4, .out = 3}));
  nn::Linear last_ = register_module("last", nn::Linear({.in = 4, .out = 3}));
};

// Everything that training has changed: parameters, then the optimizer's state.
std::vector<std::vector<std::byte>> all_values(const Branches& model, const optim::Optimizer& optimizer) {
  std::vector<std::vector<std::byte>> all;
  for (const Parameter& parameter : model.parameters()) all.push_back(parameter.save());
  for (const auto& [name, variable] : optimizer.state()) all.push_back(variable.save());
  return all;
}

// Two samples a step go through branches[step]: the first one's rank, or the first half's, is 0.
std::vector<std::vector<std::byte>> train_branches(Device device, const std::vector<std::array<int, 2>>& branches,
                                                   bool adam) {
  manual_seed(3);
  Branches plain;
  plain.to(device);
  Branches model = fleet::distributed_model(plain);
  auto optimizer = fleet::distributed_optimizer(
      adam ? optim::Optimizer(optim::Adam(model.parameters(), {.lr = 0.1, .weight_decay = 0.01}))
           : optim::Momentum(model.parameters(), {.lr = 0.1, .momentum = 0.9, .weight_decay = 0.01}));
  for (const std::array<int, 2>& step : branches) {
    Tensor x = ones({1, 4}, DType::f32, device);
    Tensor loss = fleet::world_size() == 1 ? (sum(model(x, step[0])) + sum(model(x, step[1]))) * 0.5
                                           : sum(model(x, step[static_cast<size_t>(fleet::rank())]));
    loss.backward();
    optimizer.step();
    optimizer.clear_grad();
  }
  return all_values(model, optimizer);
}

TEST(DataParallel, RanksMayUseDifferentParameters) {
  // The last branch is used by nobody, by one rank, by the other, and by nobody again.
  const std::vector<std::array<int, 2>> branches{{0, 1}, {1, 0}, {0, 0}, {2, 1}, {1, 2}, {0, 1}, {0, 1}};
  for (bool adam : {false, true}) {
    std::vector<std::vector<std::byte>> alone, ranks[2];
    std::thread([&] {
      fleet::join(nullptr);
      alone = train_branches({DeviceType::cpu, 2}, branches, adam);
      fleet::leave();
    }).join();
    auto errors = errors_of(2, [&](Device device) { ranks[fleet::rank()] = train_branches(device, branches, adam); });
    ASSERT_EQ(errors, std::vector<std::string>(2));
    EXPECT_EQ(ranks[0], alone);  // these gradients are exact in any order
    EXPECT_EQ(ranks[1], alone);
  }
}

// Two batches an update: what only the first has used, on one rank, is reduced with the second.
TEST(DataParallel, AnUpdateOfSeveralBatchesCountsWhatAnyOfThemHasUsed) {
  std::vector<std::vector<std::byte>> ranks[2], alone;
  auto train = [](Device device) {
    manual_seed(3);
    Branches plain;
    plain.to(device);
    Branches model = fleet::distributed_model(plain);
    auto optimizer = fleet::distributed_optimizer(optim::SGD(model.parameters(), {.lr = 0.1, .weight_decay = 0.01}));
    Tensor x = ones({1, 4}, DType::f32, device);
    for (int update = 0; update < 3; ++update) {
      const bool first = fleet::rank() == 0, both = fleet::world_size() == 1;
      {
        fleet::WithoutReduction not_yet;
        (both ? (sum(model(x, 2)) + sum(model(x, 0))) * 0.5 : sum(model(x, first ? 2 : 0))).backward();
      }
      sum(model(x, 0)).backward();
      optimizer.step();
      optimizer.clear_grad();
    }
    return all_values(model, optimizer);
  };
  std::thread([&] {
    fleet::join(nullptr);
    alone = train({DeviceType::cpu, 2});
    fleet::leave();
  }).join();
  ASSERT_EQ(errors_of(2, [&](Device device) { ranks[fleet::rank()] = train(device); }), std::vector<std::string>(2));
  EXPECT_EQ(ranks[0], alone);
  EXPECT_EQ(ranks[1], alone);
}

TEST(DataParallel, GradientsOfEqualSizeThatDoNotBelongTogetherAreNamed) {
  std::vector<std::string> errors = errors_of(2, [](Device device) {
    std::vector<nn::Linear> models;
    for (int i = 0; i < 2; ++i) {
      nn::Linear plain({.in = 4, .out = 3});
      plain.to(device);
      models.push_back(fleet::distributed_model(plain));
    }
    for (int step = 0; step < 4; ++step) {
      size_t model = step % 2 == 0 || (step == 3 && fleet::rank() == 1) ? 0 : 1;  // plans that all ranks have by then
      Tensor loss = sum(models[model](ones({2, 4}, DType::f32, device)));
      loss.backward();
      loss.item();
    }
    synchronize();
  });
  for (const std::string& error : errors) {
    EXPECT_NE(
        error.find("rank 0 takes part in the mean of uses of parameters of model 2 (f32 [2]), mean of bias of model "
                   "2 (f32 [3]), mean of weight of model 2 (f32 [3, 4]), rank 1 does not; rank 1 takes part in the"),
        std::string::npos)
        << error;
    EXPECT_NE(error.find("all ranks must go back through the same models"), std::string::npos) << error;
  }
}

TEST(DataParallel, BatchesOfAnySizeBelongTogether) {
  std::vector<std::string> errors = errors_of(2, [](Device device) {
    nn::Linear plain({.in = 4, .out = 3});
    plain.to(device);
    nn::Linear model = fleet::distributed_model(plain);
    auto optimizer = fleet::distributed_optimizer(optim::SGD(model.parameters(), {.lr = 0.1}));
    for (int64_t step = 0; step < 4; ++step) {
      Tensor loss = sum(model(ones({1 + step * fleet::rank(), 4}, DType::f32, device)));
      loss.backward();
      optimizer.step();
      optimizer.clear_grad();
    }
    synchronize();
  });
  EXPECT_EQ(errors, std::vector<std::string>(2));
}

TEST(DataParallel, OptimizersOfDifferentParametersAreNamed) {
  std::vector<std::string> errors = errors_of(2, [](Device device) {
    Branches plain;
    plain.to(device);
    Branches model = fleet::distributed_model(plain);
    std::vector<Parameter> some = model.parameters();
    if (fleet::rank() == 1) std::swap(some[0], some[2]);
    fleet::distributed_optimizer(optim::SGD(some, {.lr = 0.1}));
  });
  for (const std::string& error : errors)
    EXPECT_NE(
        error.find("parameter 0 of the optimizer is 'left.weight' f32 [3, 4] on rank 0 and 'right.weight' f32 [3, 4] "
                   "on rank 1"),
        std::string::npos)
        << error;
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

// What each rank hears in the step in which ranks `failing` have a label that is no class, and in the step after it.
struct Heard {
  std::vector<std::string> first, later;
};
Heard after_bad_labels(int ranks, const std::set<int>& failing) {
  Heard heard{std::vector<std::string>(static_cast<size_t>(ranks)), {}};
  heard.later = errors_of(ranks, [&](Device device) {
    nn::Linear plain({.in = 4, .out = 3});
    plain.to(device);
    nn::Linear model = fleet::distributed_model(plain);
    auto optimizer = fleet::distributed_optimizer(optim::SGD(model.parameters(), {.lr = 0.1}));
    auto step = [&](int64_t label) {
      Tensor labels = Tensor::from<int64_t>(std::vector<int64_t>{label}, {1}, device);
      Tensor loss = cross_entropy(model(ones({1, 4}, DType::f32, device)), labels);
      loss.backward();
      optimizer.step();
      optimizer.clear_grad();
      loss.item();
    };
    step(0);
    try {
      step(failing.contains(fleet::rank()) ? 9 : 1);
    } catch (const Error& error) {
      heard.first[static_cast<size_t>(fleet::rank())] = error.what();
    }
    for (const Parameter& parameter : model.parameters()) parameter.load(parameter.save());  // trusted again
    step(2);
  });
  return heard;
}

TEST(DataParallel, AStepThatFailsOnOneRankEndsItOnAll) {
  Heard heard = after_bad_labels(3, {1});
  EXPECT_TRUE(contains(heard.first[1], "target 9 of row 0 is not a class")) << heard.first[1];
  EXPECT_FALSE(contains(heard.first[1], "aborted")) << heard.first[1];
  for (size_t r : {0, 2}) {
    EXPECT_TRUE(contains(heard.first[r], "aborted by rank 1 (thread): ")) << heard.first[r];
    EXPECT_TRUE(contains(heard.first[r], "target 9 of row 0 is not a class")) << heard.first[r];
  }
  for (const std::string& later : heard.later) EXPECT_TRUE(contains(later, "target 9 of row 0")) << later;
}

TEST(DataParallel, AStepThatFailsOnAllRanksIsTheirOwnFailure) {
  Heard heard = after_bad_labels(2, {0, 1});
  for (const std::string& first : heard.first) EXPECT_TRUE(contains(first, "target 9 of row 0")) << first;
  for (const std::string& later : heard.later) EXPECT_TRUE(contains(later, "target 9 of row 0")) << later;
}

// One layer, stepped once by a body that fails on rank 1; what rank 0 hears.
std::string heard_from_rank_1(const std::function<Tensor(const nn::Linear&, const Tensor&)>& loss_of) {
  return errors_of(2, [&](Device device) {
    nn::Linear plain({.in = 4, .out = 3});
    plain.to(device);
    nn::Linear model = fleet::distributed_model(plain);
    auto step = compile([&](const Tensor& x) {
      Tensor loss = loss_of(model, x);
      loss.backward();
      return loss;
    });
    step(ones({1, 4}, DType::f32, device)).item();
  })[0];
}

TEST(DataParallel, AStepThatCannotBeTracedEndsTheOthers) {
  std::string heard = heard_from_rank_1([](const nn::Linear& model, const Tensor& x) {
    if (fleet::rank() == 1) throw_error<DataError>("no more samples");
    return sum(model(x));
  });
  EXPECT_TRUE(contains(heard, "aborted by rank 1 (thread): no more samples")) << heard;
}

TEST(DataParallel, ANumberThatIsNoneOnOneRankEndsTheOthers) {
  set_check_numbers(true);
  std::string heard = heard_from_rank_1([](const nn::Linear& model, const Tensor& x) {
    return sum(model(x)) * log(sum(x) * (fleet::rank() == 1 ? -1.0 : 1.0));
  });
  set_check_numbers(false);
  EXPECT_TRUE(contains(heard, "aborted by rank 1 (thread): [log]")) << heard;
  EXPECT_TRUE(contains(heard, "nan in output 0")) << heard;
}

TEST(DataParallel, WhatIsNotBuiltIsRefused) {
  fleet::join(nullptr);
  nn::Linear model({.in = 2, .out = 2});
  optim::SGD plain(model.parameters(), {.lr = 0.1});
  EXPECT_ERROR(fleet::distributed_optimizer(plain, {.amp_dtype = "f16"}), ConfigError,
               "amp_dtype has no effect without use_amp");
  EXPECT_ERROR(fleet::distributed_optimizer(plain, {.use_amp = true, .loss_scaling = 8}), ConfigError,
               "loss_scaling has no effect without use_amp and amp_dtype f16");
  EXPECT_ERROR(fleet::distributed_optimizer(plain, {.recompute_segments = {{"fc"}}}), ConfigError,
               "recompute_segments has no effect without use_recompute");
  EXPECT_ERROR(fleet::distributed_optimizer(plain, {.local_sgd_steps = 8}), ConfigError,
               "local_sgd_steps has no effect without use_local_sgd");
  EXPECT_ERROR(fleet::distributed_optimizer(plain, {.fuse_parameter_memory_size = 0}), ConfigError,
               "expected more than 0");
  fleet::leave();
}

TEST(DataParallel, VariablesOfTheEnvironmentWinOverTheProgram) {
  fleet::join(nullptr);
  nn::Linear model({.in = 2, .out = 2});
  optim::SGD plain(model.parameters(), {.lr = 0.1});
  const passes::Options& options = StepContext::current().options;
  fleet::distributed_optimizer(plain, {.fuse_parameter_memory_size = 1, .fuse_parameter_groups_size = 9});
  EXPECT_EQ(options.all_reduce_bytes, 1 << 20);
  EXPECT_EQ(options.all_reduce_layers, 9);
  ::setenv("FLAGS_fuse_parameter_memory_size", "16", 1);
  ::setenv("FLAGS_fuse_parameter_groups_size", "3", 1);
  fleet::distributed_optimizer(plain, {.fuse_parameter_memory_size = 1, .fuse_parameter_groups_size = 9});
  EXPECT_EQ(options.all_reduce_bytes, 16 << 20);
  EXPECT_EQ(options.all_reduce_layers, 3);
  ::unsetenv("FLAGS_fuse_parameter_memory_size");
  ::unsetenv("FLAGS_fuse_parameter_groups_size");
  fleet::distributed_optimizer(plain);
  fleet::leave();
}

// A rank that gives up leaves; the others learn it from the collective they wait in.
TEST(DataParallel, ARankThatLeavesInTheMiddleIsNotWaitedFor) {
  auto groups = comm::local_groups(2, {.timeout = std::chrono::seconds(60)});
  std::string told;
  std::thread quitter([&] {
    fleet::join(groups[0]);
    fleet::distributed_model(nn::Linear({.in = 2, .out = 2}));
    EXPECT_THROW(fleet::leave(), CommError);
  });
  std::thread other([&] {
    fleet::join(groups[1]);
    nn::Linear plain({.in = 2, .out = 2});
    plain.to({DeviceType::cpu, 1});
    nn::Linear model = fleet::distributed_model(plain);
    Tensor loss = sum(model(ones({1, 2}, DType::f32, {DeviceType::cpu, 1})));
    try {
      loss.backward();
      model.parameters()[0].grad().to_vector<float>();
    } catch (const Error& error) {
      told = error.what();
    }
    EXPECT_THROW(fleet::leave(), CommError);
  });
  quitter.join();
  other.join();
  EXPECT_NE(told.find("rank 0 takes part in the end of the job"), std::string::npos) << told;
}

TEST(DataParallel, EverySoManyStepsValuesComeBack) {
  fleet::join(nullptr);
  nn::Linear model({.in = 2, .out = 2});
  auto optimizer = fleet::distributed_optimizer(optim::SGD(model.parameters(), {.lr = 0.1}), {.fetch_frequency = 3});
  const uint64_t before = values_fetched();
  std::vector<int> steps;
  for (int step = 0; step < 8; ++step) {
    Tensor loss = sum(model(ones({1, 2}, DType::f32)));
    loss.backward();
    optimizer.step();
    optimizer.clear_grad();
    if (!fleet::fetch_due()) continue;
    loss.item();
    steps.push_back(step);
  }
  EXPECT_EQ(steps, (std::vector<int>{0, 3, 6}));
  EXPECT_EQ(values_fetched() - before, 3U);
  EXPECT_ERROR(fleet::distributed_optimizer(optimizer, {.fetch_frequency = 0}), ConfigError,
               "fetch_frequency is 0, expected at least 1");
  fleet::leave();
}

TEST(DataParallel, APlainProcessIsRankZeroOfOne) {
  fleet::join(nullptr);
  EXPECT_EQ(fleet::rank(), 0);
  EXPECT_EQ(fleet::world_size(), 1);
  EXPECT_THROW(fleet::group(), ConfigError);
  fleet::leave();
}

}  // namespace
}  // namespace bonfire::data_parallel_test
