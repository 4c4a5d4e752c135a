// strategy.sharding: ranks that share out optimizer states, gradients and parameters train as ranks that have copies
// do. With kernels that were not timed, optimizers that look at each element alone give the same bits.
//
//   BONFIRE_SHARDING_SEED=7 test_parallel --gtest_filter=Sharding.RandomPrograms*       one program
//   BONFIRE_SHARDING_PROGRAMS=1000 test_parallel --gtest_filter=Sharding.RandomPrograms*
#include "bonfire/parallel/strategies/sharding.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <map>

#include "bonfire/comm/flat_parts.h"
#include "bonfire/parallel/gather.h"
#include "bonfire/parallel/step_communication.h"
#include "bonfire/runtime/plan_cache.h"
#include "tests/parallel/on_mesh.h"
#include "tests/parallel/small_models.h"
#include "tests/support/expect_error.h"
#include "tests/support/pinned_kernels.h"
#include "tests/support/under_sanitizer.h"

namespace bonfire::sharding_test {
namespace {

using in_stages::batch_of;
using in_stages::Data;
using in_stages::Net;
using in_stages::Subject;
using testing::errors_on_mesh;
using testing::on_mesh;
using testing::PinnedKernels;

struct Program {
  Subject subject;
  std::string optimizer = "adamw";
  std::string sharding = "off";
  int ranks = 2, steps = 4;
  int64_t accumulate_steps = 1;
  int by_hand = 1;  // backward passes before an update, all but the last without reduction
  bool compiled = true, clips = false, averages = false, mixed_precision = false, recomputes = false;
};

// What a rank ends with, whole.
struct Course {
  std::vector<float> losses;
  std::map<std::string, std::vector<std::byte>> values;
  std::map<std::string, DType> types;
};

optim::Optimizer make_optimizer(const std::string& name, const optim::ParameterGroups& parameters) {
  if (name == "sgd") return optim::SGD(parameters, {.lr = 0.05, .weight_decay = 0.01});
  if (name == "momentum") return optim::Momentum(parameters, {.lr = 0.02, .momentum = 0.9});
  if (name == "adagrad") return optim::Adagrad(parameters, {.lr = 0.01});
  if (name == "adam") return optim::Adam(parameters, {.lr = 0.002});
  if (name == "lamb") return optim::LAMB(parameters, {.lr = 0.002, .weight_decay = 0.01});
  if (name == "lars") return optim::LARS(parameters, {.lr = 0.05, .momentum = 0.9, .weight_decay = 0.01});
  return optim::AdamW(parameters, {.lr = 0.002, .weight_decay = 0.01});
}

void keep(Course& course, const std::string& name, const Variable& variable) {
  const Tensor whole = fleet::gather(variable);
  std::vector<std::byte>& bytes = course.values[name];
  bytes.resize(whole.spec().bytes());
  whole.copy_to_host(bytes);
  course.types[name] = whole.dtype();
}

Course train(const Program& program, Device device) {
  manual_seed(11);
  const Net net = program.subject.make();
  nn::Module model = net.module;
  model.to(device);
  model = fleet::distributed_model(model);
  DistributedStrategy strategy{.accumulate_steps = program.accumulate_steps, .sharding = program.sharding};
  if (program.mixed_precision) strategy.use_amp = true;
  if (program.recomputes) {
    strategy.use_recompute = true;
    strategy.recompute_segments = {{"*"}};
  }
  optim::Optimizer optimizer =
      fleet::distributed_optimizer(make_optimizer(program.optimizer, model.parameters()), strategy);
  std::optional<optim::WeightAverage> average;
  if (program.averages) average.emplace(model, optimizer, 0.9);
  auto forward_backward = [&](std::span<const Tensor> batch) {
    const std::vector<Tensor> results = net.forward(batch);
    results[0].backward();
    return results[0];
  };
  auto update = [&] {
    if (program.clips) optim::clip_grad_norm(optimizer.parameters(), 0.05);
    optimizer.step();
    optimizer.clear_grad();
  };
  auto whole_step = compile([&](const Tensor& input, const Tensor& label) {
    Tensor loss = forward_backward(std::vector<Tensor>{input, label});
    update();
    return loss;
  });
  Course course;
  uint64_t number = 0;
  auto next = [&] {
    return batch_of(program.subject.data, 4, number++ * 8 + static_cast<uint64_t>(fleet::rank()), device);
  };
  for (int step = 0; step < program.steps; ++step) {
    for (int i = 1; i < program.by_hand; ++i) {
      const fleet::WithoutReduction own;
      course.losses.push_back(forward_backward(next()).item<float>());
    }
    const std::vector<Tensor> batch = next();
    Tensor loss;
    if (program.compiled && program.by_hand == 1) {
      loss = whole_step(batch[0], batch[1]);
    } else {
      loss = forward_backward(batch);
      update();
    }
    course.losses.push_back(loss.item<float>());
  }
  for (const auto& [name, variable] : model.state_dict())
    if (variable.requires_grad()) keep(course, name, variable);
  for (const auto& [name, state] : optimizer.state()) keep(course, name, state);
  if (average)
    for (const auto& [name, variable] : average->state())
      if (variable.requires_grad()) keep(course, "average of " + name, variable);
  return course;
}

std::vector<Course> courses_of(const Program& program) {
  std::vector<Course> all(static_cast<size_t>(program.ranks));
  on_mesh(program.ranks, {}, [&](Device device) { all[static_cast<size_t>(device.index)] = train(program, device); });
  return all;
}

std::vector<double> numbers_of(const std::vector<std::byte>& bytes, DType dtype) {
  std::vector<double> numbers(bytes.size() / size_of(dtype));
  for (size_t i = 0; i < numbers.size(); ++i) {
    if (dtype == DType::i64) {
      int64_t one = 0;
      std::memcpy(&one, bytes.data() + i * sizeof one, sizeof one);
      numbers[i] = static_cast<double>(one);
    } else {
      float one = 0;
      std::memcpy(&one, bytes.data() + i * sizeof one, sizeof one);
      numbers[i] = one;
    }
  }
  return numbers;
}

// As a part of the tensor's largest number.
double distance(const std::vector<double>& a, const std::vector<double>& b) {
  double most = 1e-3, apart = 0;
  for (double one : b) most = std::max(most, std::abs(one));
  for (size_t i = 0; i < b.size(); ++i) apart = std::max(apart, std::abs(a[i] - b[i]));
  return apart / most;
}

void expect_same(const Course& found, const Course& expected, double tolerance) {
  ASSERT_EQ(found.values.size(), expected.values.size());
  for (const auto& [name, bytes] : expected.values) {
    ASSERT_TRUE(found.values.contains(name)) << name;
    const std::vector<std::byte>& own = found.values.at(name);
    ASSERT_EQ(own.size(), bytes.size()) << name;
    if (tolerance == 0) {
      EXPECT_TRUE(own == bytes) << name << " has other bits";
    } else {
      const DType dtype = expected.types.at(name);
      EXPECT_LE(distance(numbers_of(own, dtype), numbers_of(bytes, dtype)), tolerance) << name;
    }
  }
  for (size_t i = 0; i < expected.losses.size(); ++i) {
    if (tolerance == 0)
      EXPECT_EQ(found.losses[i], expected.losses[i]) << "loss " << i;
    else
      EXPECT_NEAR(found.losses[i], expected.losses[i], tolerance) << "loss " << i;
  }
}

// Sums of squares, and of several batches, are added in another order.
double tolerance_of(const Program& program) {
  const bool by_element = program.optimizer != "lamb" && program.optimizer != "lars";
  const bool same_order = !program.clips && program.accumulate_steps == 1 && program.by_hand == 1;
  if (by_element && same_order) return 0;
  return program.mixed_precision ? 3e-2 : 2e-4;
}

void expect_as_with_copies(Program program) {
  const PinnedKernels pinned;
  const std::string sharding = std::exchange(program.sharding, "off");
  const std::vector<Course> copies = courses_of(program);
  program.sharding = sharding;
  const std::vector<Course> shared = courses_of(program);
  for (size_t rank = 0; rank < shared.size(); ++rank) {
    SCOPED_TRACE(fmt::format("rank {}", rank));
    expect_same(shared[rank], copies[rank], tolerance_of(program));
  }
}

constexpr const char* kLevels[] = {"optimizer", "gradients", "parameters"};

TEST(Sharding, OfEachLevelTrainsAsCopiesDo) {
  for (const char* level : kLevels)
    for (bool compiled : {false, true}) {
      SCOPED_TRACE(fmt::format("{}, compiled {}", level, compiled));
      expect_as_with_copies({.subject = in_stages::small_bert(), .sharding = level, .compiled = compiled});
    }
}

// Parts lie in rows, so that another kernel may be the first choice; then the losses are as near as bf16 is.
TEST(Sharding, ConvolutionsInBf16MayHaveOtherKernels) {
  const PinnedKernels pinned;
  Program program{.subject = in_stages::small_vgg(), .optimizer = "momentum", .mixed_precision = true};
  const std::vector<float> expected = courses_of(program)[0].losses;
  for (const char* level : kLevels) {
    program.sharding = level;
    const std::vector<float> found = courses_of(program)[0].losses;
    for (size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(found[i], expected[i], 1e-2 * expected[i]) << level;
  }
}

// --- memory ----------------------------------------------------------------------------------------------------------

// Bytes of the allocations that these variables lie in.
size_t allocated(const std::vector<Variable>& variables) {
  std::map<const Storage*, size_t> storages;
  for (const Variable& variable : variables)
    if (const Buffer& buffer = variable.state().buffer; buffer.storage && buffer.storage->is_allocated())
      storages[buffer.storage.get()] = buffer.storage->bytes();
  size_t bytes = 0;
  for (const auto& [storage, own] : storages) bytes += own;
  return bytes;
}

struct Held {
  size_t parameters = 0, gradients = 0, states = 0;
};

Held held_with(const std::string& level, int ranks) {
  std::vector<Held> held(static_cast<size_t>(ranks));
  on_mesh(ranks, {}, [&](Device device) {
    nn::Sequential model({nn::Linear({.in = 200, .out = 300}), nn::ReLU(), nn::Linear({.in = 300, .out = 100}),
                          nn::LayerNorm({.shape = {100}})});
    model.to(device);
    model = fleet::distributed_model(model);
    optim::Optimizer optimizer =
        fleet::distributed_optimizer(optim::AdamW(model.parameters(), {.lr = 0.001}), {.sharding = level});
    for (int step = 0; step < 3; ++step) {
      mean(square(model(ones({8, 200}, DType::f32, device)) - 1.0)).backward();
      optimizer.step();
      optimizer.clear_grad();
    }
    synchronize();
    std::vector<Variable> parameters, gradients, states;
    for (const Variable& parameter : optimizer.parameters()) {
      parameters.push_back(parameter);
      gradients.push_back(parameter.grad_variable());
      for (const auto& [name, state] : optimizer.state_of(parameter)) states.push_back(state);
    }
    held[static_cast<size_t>(device.index)] = {allocated(parameters), allocated(gradients), allocated(states)};
  });
  return held[0];  // the last ranks have what is left
}

TEST(Sharding, ARankHoldsItsPart) {
  constexpr int kRanks = 4;
  const Held whole = held_with("off", kRanks);
  auto share = [](size_t part, size_t all) { return static_cast<double>(part) / static_cast<double>(all); };
  for (const char* level : kLevels) {
    SCOPED_TRACE(level);
    const Held part = held_with(level, kRanks);
    const bool parameters = std::string(level) == "parameters";
    EXPECT_NEAR(share(part.states, whole.states), 0.25, 0.25 * 0.02);
    EXPECT_NEAR(share(part.gradients, whole.gradients), 0.25, 0.25 * 0.02);
    EXPECT_NEAR(share(part.parameters, whole.parameters), parameters ? 0.25 : 1, 0.25 * 0.02);
  }
}

// Gathered groups come and go: of a deep model a step has less at a time than all of its parameters.
TEST(Sharding, AStepHasFewParametersAtATime) {
  constexpr int kLayers = 24, kWidth = 128;
  std::map<std::string, size_t> peak;
  for (const char* level : {"gradients", "parameters"})
    on_mesh(2, {}, [&](Device device) {
      nn::Sequential model;
      for (int i = 0; i < kLayers; ++i) model.push_back(nn::Linear({.in = kWidth, .out = kWidth}));
      model.to(device);
      model = fleet::distributed_model(model);
      optim::Optimizer optimizer =
          fleet::distributed_optimizer(optim::AdamW(model.parameters(), {.lr = 0.001}), {.sharding = level});
      for (int step = 0; step < 2; ++step) {
        mean(square(model(ones({2, kWidth}, DType::f32, device)))).backward();
        optimizer.step();
        optimizer.clear_grad();
        synchronize();
        if (step == 0) reset_most_storage(device);
      }
      if (device.index == 0) peak[level] = storage_use(device).most;
    });
  constexpr size_t kParameters = kLayers * (kWidth + 1) * kWidth * sizeof(float);
  EXPECT_LT(peak["parameters"] + kParameters / 4, peak["gradients"]);
}

TEST(Sharding, GradientsAreWholeInAStepAndPartsOutsideOfIt) {
  for (const char* level : kLevels)
    on_mesh(3, {}, [&](Device device) {
      nn::Linear model({.in = 7, .out = 11});
      model.to(device);
      model = fleet::distributed_model(model);
      const Variable& weight = model.weight;
      optim::Optimizer optimizer =
          fleet::distributed_optimizer(optim::SGD(model.parameters(), {.lr = 1}), {.sharding = level});
      const double own = device.index + 1;  // 1, 2, 3: 2 on average
      (sum(model(ones({1, 7}, DType::f32, device))) * own).backward();
      EXPECT_EQ(weight.stored_grad().shape(), Shape{std::clamp<int64_t>(77 - 32 * device.index, 0, 32)});
      EXPECT_EQ(weight.grad().to_vector<float>(), std::vector<float>(77, 2)) << level;
    });
}

// A parameter that some ranks do not use in a step: their part of its gradient is 0; one that nobody uses stays.
TEST(Sharding, RanksMayUseOtherParameters) {
  for (const char* level : {"optimizer", "gradients"}) {
    std::map<std::string, std::vector<float>> weights[2];
    for (int with : {0, 1})
      on_mesh(2, {}, [&](Device device) {
        manual_seed(4);
        nn::Linear a({.in = 9, .out = 5}), b({.in = 9, .out = 5}), c({.in = 9, .out = 5});
        nn::ModuleList<nn::Linear> model;
        for (const nn::Linear& one : {a, b, c}) model.push_back(one);
        model.to(device);
        model = fleet::distributed_model(model);
        optim::Optimizer optimizer = fleet::distributed_optimizer(optim::Adam(model.parameters(), {.lr = 0.01}),
                                                                  {.sharding = with == 1 ? level : "off"});
        for (int step = 0; step < 4; ++step) {
          const Tensor x = ones({2, 9}, DType::f32, device) * (1.0 + step);
          Tensor y = a(x);
          if ((step + device.index) % 2 == 0) y = y + b(x);
          if (step == 2) y = y + c(x);
          mean(square(y)).backward();
          optimizer.step();
          optimizer.clear_grad();
        }
        if (device.index == 0)
          for (const auto& [name, variable] : model.state_dict())
            weights[with][name] = variable.value().to_vector<float>();
      });
    EXPECT_EQ(weights[1], weights[0]) << level;
  }
}

TEST(Sharding, WhatCannotBeIsRefused) {
  auto refused = [](const DistributedStrategy& strategy, const MeshSizes& sizes, const std::string& why) {
    for (const std::string& error : errors_on_mesh(4, sizes, [&](Device device) {
           nn::Linear model({.in = 8, .out = 8});
           model.to(device);
           model = fleet::distributed_model(model);
           fleet::distributed_optimizer(optim::SGD(model.parameters(), {.lr = 1}), strategy);
         }))
      EXPECT_NE(error.find(why), std::string::npos) << error;
  };
  refused({.sharding = "states"}, {}, "sharding is 'states', expected off, optimizer, gradients or parameters");
  refused({.use_local_sgd = true, .sharding = "optimizer"}, {}, "with use_local_sgd each rank updates by itself");
  refused({.sharding = "optimizer"}, {.tensor = 2}, "this job is data 2 × tensor 2");
}

TEST(Sharding, RanksMustAgree) {
  for (const std::string& error : errors_on_mesh(2, {}, [](Device device) {
         nn::Linear model({.in = 8, .out = 8});
         model.to(device);
         model = fleet::distributed_model(model);
         fleet::distributed_optimizer(optim::SGD(model.parameters(), {.lr = 1}),
                                      {.sharding = device.index == 0 ? "optimizer" : "gradients"});
       }))
    EXPECT_NE(error.find("sharding is optimizer on rank 0 and gradients on rank 1"), std::string::npos) << error;
}

TEST(Sharding, AModelIsDistributedFirst) {
  for (const std::string& error : errors_on_mesh(2, {}, [](Device device) {
         nn::Linear model({.in = 8, .out = 8});
         model.to(device);
         fleet::distributed_optimizer(optim::SGD(model.parameters(), {.lr = 1}), {.sharding = "gradients"});
       }))
    EXPECT_NE(error.find("call fleet::distributed_model before distributed_optimizer"), std::string::npos) << error;
}

// Several losses of one update, whichever way their passes follow each other, and nothing is read in between.
TEST(Sharding, LossesMayShareAForwardPhase) {
  enum Order { one_by_one, forward_first, together };
  for (Order order : {one_by_one, forward_first, together})
    for (bool compiled : {false, true}) {
      std::map<std::string, std::vector<float>> weights;
      for (const std::string level : {"off", "optimizer", "gradients", "parameters"})
        on_mesh(2, {}, [&](Device device) {
          manual_seed(4);
          nn::Linear model({.in = 9, .out = 5});
          model.to(device);
          model = fleet::distributed_model(model);
          optim::Optimizer optimizer =
              fleet::distributed_optimizer(optim::Momentum(model.parameters(), {.lr = 0.1}), {.sharding = level});
          auto loss = [&](const Tensor& x) { return mean(square(model(x))); };
          auto step = [&](const Tensor& x, const Tensor& y) {
            if (order == one_by_one) {
              loss(x).backward();
              loss(y).backward();
            } else {
              const Tensor first = loss(x), second = loss(y);
              if (order == together) {
                (first + second).backward();
              } else {
                first.backward();
                second.backward();
              }
            }
            optimizer.step();
            optimizer.clear_grad();
            return Tensor();
          };
          auto compiled_step = compile([&](const Tensor& x, const Tensor& y) {
            step(x, y);
            return x;
          });
          for (int i = 0; i < 3; ++i) {
            const Tensor x = ones({2, 9}, DType::f32, device) * (1.0 + i + device.index), y = x * 0.5;
            compiled ? static_cast<void>(compiled_step(x, y)) : static_cast<void>(step(x, y));
          }
          const std::vector<float> found = fleet::gather(model.weight).to_vector<float>();
          if (device.index == 0) weights[level] = found;
        });
      for (const char* level : kLevels)
        for (size_t i = 0; i < weights["off"].size(); ++i)
          EXPECT_NEAR(weights[level][i], weights["off"][i], 1e-5) << level << ", order " << order << ", " << compiled;
    }
}

// --- random programs -------------------------------------------------------------------------------------------------

class Draw {
 public:
  explicit Draw(uint64_t seed) : seed_(seed) {}
  int64_t below(int64_t count) {
    return static_cast<int64_t>(uniform_at(19, seed_, number_++) * static_cast<float>(count));
  }
  bool once_in(int64_t times) { return below(times) == 0; }
  template <class T>
  T one_of(const std::vector<T>& some) {
    return some[static_cast<size_t>(below(static_cast<int64_t>(some.size())))];
  }

 private:
  uint64_t seed_;
  size_t number_ = 0;
};

struct Named {
  const char* name;
  Subject (*subject)();
};

std::pair<Program, std::string> drawn(uint64_t seed) {
  Draw draw(seed);
  const auto [name, subject] = draw.one_of<Named>({{"vgg", in_stages::small_vgg},
                                                   {"lstm", in_stages::small_lstm},
                                                   {"bert", in_stages::small_bert},
                                                   {"gpt2", in_stages::small_gpt2},
                                                   {"two-headed", in_stages::two_headed}});
  Program program{.subject = subject()};
  const bool has_convolutions = std::string(name) == "vgg" || std::string(name) == "two-headed";
  program.optimizer = draw.one_of<std::string>({"sgd", "momentum", "adagrad", "adam", "adamw", "lamb", "lars"});
  program.sharding = draw.one_of<std::string>({"optimizer", "gradients", "parameters"});
  program.ranks = draw.one_of<int>({2, 3, 4});
  program.accumulate_steps = draw.one_of<int64_t>({1, 1, 2, 3});
  if (program.accumulate_steps == 1) program.by_hand = draw.one_of<int>({1, 1, 1, 2});
  program.compiled = !draw.once_in(3);
  program.clips = draw.once_in(3);
  program.averages = draw.once_in(3);
  program.mixed_precision = draw.once_in(4) && !has_convolutions;  // see ConvolutionsInBf16MayHaveOtherKernels
  program.recomputes = draw.once_in(4);
  // What divides gradients by their size makes whole steps of rounding in those that are 0: of a bias before a batch
  // norm, of the keys' in attention.
  if (std::string(name) != "lstm" && tolerance_of(program) > 0)
    program.optimizer = draw.one_of<std::string>({"sgd", "momentum", "lars"});
  return {program, fmt::format("{} with {}, sharding {}, {} ranks, accumulate_steps {}, by hand {}{}{}{}{}{}", name,
                               program.optimizer, program.sharding, program.ranks, program.accumulate_steps,
                               program.by_hand, program.compiled ? ", compiled" : "", program.clips ? ", clips" : "",
                               program.averages ? ", averages" : "", program.mixed_precision ? ", mixed precision" : "",
                               program.recomputes ? ", recomputes" : "")};
}

TEST(Sharding, RandomProgramsTrainAsWithCopies) {
  const char* only = std::getenv("BONFIRE_SHARDING_SEED");
  const char* many = std::getenv("BONFIRE_SHARDING_PROGRAMS");
  const uint64_t usual = testing::kUnderSanitizer ? 6 : 24;
  const uint64_t first = only != nullptr ? std::stoull(only) : 1;
  const uint64_t last = only != nullptr ? first : many != nullptr ? std::stoull(many) : usual;
  for (uint64_t seed = first; seed <= last && !::testing::Test::HasFailure(); ++seed) {
    const auto [program, text] = drawn(seed);
    SCOPED_TRACE(fmt::format("BONFIRE_SHARDING_SEED={}: {}", seed, text));
    expect_as_with_copies(program);
  }
}

}  // namespace
}  // namespace bonfire::sharding_test
