// DataParallel: one process, a thread and a device for each part of a batch.
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <set>
#include <sstream>
#include <thread>

#include "bonfire/base/random.h"
#include "bonfire/bonfire.h"
#include "bonfire/comm/collectives.h"
#include "bonfire/comm/local/local_group.h"
#include "bonfire/runtime/plan.h"
#include "bonfire/runtime/plan_cache.h"
#include "tests/support/cuda_device.h"
#include "tests/support/expect_error.h"
#include "tests/support/scratch_folder.h"

namespace bonfire::in_process_test {
namespace {

constexpr int64_t kSteps = 10;
using Bytes = std::vector<std::vector<std::byte>>;

Device cpu(int index) { return {DeviceType::cpu, static_cast<int16_t>(index)}; }

std::vector<Device> first_devices(int count) {
  std::vector<Device> list;
  for (int i = 0; i < count; ++i) list.push_back(cpu(i));
  return list;
}

class SmoothNet : public nn::Callable<SmoothNet> {
 public:
  struct Options {
    bool batch_norm = false;
    double dropout = 0;
  };
  explicit SmoothNet(const Options& options) : Callable("SmoothNet"), options_(options) {}
  Tensor forward(const Tensor& x) const {  // [N, 1, 8, 8]
    Tensor y = conv_(x);
    if (options_.batch_norm) y = norm_(y);
    y = avg_pool2d(tanh(y), {.kernel = {2}});
    return fc_(dropout(flatten(y, 1), options_.dropout, training()));
  }

 private:
  Options options_;
  nn::Conv2d conv_ = register_module("conv", nn::Conv2d({.in = 1, .out = 6, .kernel = {3}, .padding = {1}}));
  nn::BatchNorm2d norm_ = register_module("norm", nn::BatchNorm2d({.channels = 6}));
  nn::Linear fc_ = register_module("fc", nn::Linear({.in = 96, .out = 10}));
};

struct Batch {
  Tensor image, label;
};

// Samples first, first + stride, … of a step's batch of `count`; none: the first of them, as a stand-in.
Batch batch_of(int64_t step, int64_t count, int64_t first = 0, int64_t stride = 1, Device device = {}) {
  std::vector<float> pixels;
  std::vector<int64_t> classes;
  for (int64_t i = first < count ? first : 0; i < count; i += stride) {
    for (uint64_t k = 0; k < 64; ++k)
      pixels.push_back(normal_at(3, static_cast<uint64_t>(step), static_cast<uint64_t>(i) * 64 + k));
    classes.push_back((7 * step + 3 * i) % 10);
    if (first >= count) break;
  }
  const auto rows = static_cast<int64_t>(classes.size());
  return {Tensor::from<float>(pixels, {rows, 1, 8, 8}, device), Tensor::from<int64_t>(classes, {rows}, device)};
}

auto momentum = [](const auto& model) {
  return optim::Momentum(model.parameters(), {.lr = 0.05, .momentum = 0.9, .weight_decay = 1e-3});
};

auto train_step = [](const auto& model, auto& optimizer, const Tensor& image, const Tensor& label) {
  Tensor loss = cross_entropy(model(image), label);
  loss.backward();
  optimizer.step();
  optimizer.clear_grad();
  return loss;
};

// With twenty products of this width for each sample, none of which counts; 0: without.
auto train_step_and_more = [](const auto& model, auto& optimizer, const Tensor& image, const Tensor& label,
                              int64_t width) {
  Tensor loss = cross_entropy(model(image), label), extra = reshape(image, {image.size(0), 64});
  if (width > 0) {
    extra = matmul(extra, full({64, width}, 0.001, DType::f32, image.device()));
    const Tensor square = full({width, width}, 0.001, DType::f32, image.device());
    for (int i = 0; i < 20; ++i) extra = tanh(matmul(extra, square));
  }
  loss = loss + mean(extra) * 0.0;
  loss.backward();
  optimizer.step();
  optimizer.clear_grad();
  return loss;
};

struct Course {
  std::vector<double> losses;  // of the whole batch, each step
  Bytes values;                // parameters and buffers of the first device, at the end
};

struct Task {
  SmoothNet::Options net = {};
  DistributedStrategy strategy = {};
  std::vector<int64_t> batches = {16};  // sizes of the steps' batches, in turn
  int64_t size(int64_t step) const { return batches[static_cast<size_t>(step) % batches.size()]; }
};

Bytes values_of(const nn::StateDict& variables) {
  Bytes all;
  for (const auto& [name, variable] : variables) all.push_back(variable.save());
  return all;
}
Bytes values_of(const nn::Module& model) { return values_of(model.state_dict()); }

// Copies on devices of one kind have the same bits; a GPU rounds some products and sums otherwise than a CPU.
void expect_same_parameters(const nn::StateDict& own, const nn::StateDict& others) {
  for (size_t i = 0; i < own.size(); ++i) {
    const Variable &mine = own[i].variable, &its = others[i].variable;
    if (!its.requires_grad()) continue;  // running statistics are each device's own
    if (mine.device().type == its.device().type) {
      EXPECT_EQ(mine.save(), its.save());
      continue;
    }
    const std::vector<float> a = mine.value().to_vector<float>(), b = its.value().to_vector<float>();
    for (size_t k = 0; k < a.size(); ++k) EXPECT_NEAR(a[k], b[k], 1e-6) << mine.name() << " " << k;
  }
}

Course in_process(const std::vector<Device>& devices, const Task& task, bool compiled = false) {
  manual_seed(5);
  DataParallel parallel(SmoothNet(task.net), momentum, devices, task.strategy);
  auto step = parallel.compile(train_step);
  Course course;
  for (int64_t i = 0; i < kSteps; ++i) {
    auto [image, label] = batch_of(i, task.size(i));
    Tensor loss = compiled ? step(image, label) : parallel.step(train_step, image, label);
    course.losses.push_back(loss.item());
  }
  course.values = values_of(parallel.module());
  for (const nn::StateDict& copy : parallel.copies()) expect_same_parameters(copy, parallel.module().state_dict());
  return course;
}

Course in_process(int devices, const Task& task, bool compiled = false) {
  return in_process(first_devices(devices), task, compiled);
}

// An ordinary program on one device.
Course plain(const Task& task) {
  Course course;
  std::thread([&] {
    manual_seed(5);
    SmoothNet model(task.net);
    auto optimizer = momentum(model);
    for (int64_t i = 0; i < kSteps; ++i) {
      auto [image, label] = batch_of(i, task.size(i));
      course.losses.push_back(train_step(model, optimizer, image, label).item());
    }
    course.values = values_of(model);
  }).join();
  return course;
}

// Threads that are ranks of fleet, each with the samples that fleet::sampler() gives it.
Bytes as_ranks(int ranks, const Task& task) {
  auto groups = comm::local_groups(ranks, {.timeout = std::chrono::seconds(60)});
  Bytes values;
  std::vector<std::thread> threads;
  for (int r = 0; r < ranks; ++r)
    threads.emplace_back([&, r] {
      fleet::join(groups[static_cast<size_t>(r)]);
      manual_seed(5);
      SmoothNet made(task.net);
      made.to(cpu(r));
      SmoothNet model = fleet::distributed_model(made);
      auto optimizer = fleet::distributed_optimizer(momentum(model), task.strategy);
      for (int64_t i = 0; i < kSteps; ++i) {
        auto [image, label] = batch_of(i, task.size(i), r, ranks, cpu(r));
        Tensor loss = cross_entropy(model(image), label);
        (loss * fleet::sampler().share(task.size(i)).weight()).backward();
        optimizer.step();
        optimizer.clear_grad();
      }
      if (r == 0) values = values_of(model);
      fleet::leave();
    });
  for (std::thread& thread : threads) thread.join();
  return values;
}

void expect_same_losses(const Course& parts, const Course& whole) {
  for (size_t i = 0; i < whole.losses.size(); ++i)
    EXPECT_NEAR(parts.losses[i], whole.losses[i], 1e-5 * std::abs(whole.losses[i])) << "step " << i;
}

TEST(InProcessDataParallel, TrainsAsOneDeviceOnTheWholeBatch) {
  const Course whole = plain({});
  for (int devices : {2, 3}) expect_same_losses(in_process(devices, {}), whole);
}

TEST(InProcessDataParallel, UnevenBatchesHaveTheTrueMean) {
  const Task task{.batches = {7, 4, 5}};
  const Course whole = plain(task);
  for (int devices : {2, 3}) expect_same_losses(in_process(devices, task), whole);
}

TEST(InProcessDataParallel, ADeviceWithoutSamplesTakesPart) {
  const Task task{.batches = {2, 1, 4}};
  expect_same_losses(in_process(3, task), plain(task));
}

TEST(InProcessDataParallel, HasTheBitsOfRanksOnTheSameSamples) {
  for (const Task& task : {Task{}, Task{.batches = {7, 2, 9}}, Task{.net = {.batch_norm = true}}})
    EXPECT_EQ(in_process(3, task).values, as_ranks(3, task));
}

// On device 1 of 2 batches of 4 and of 5 have one shape, and different weights.
TEST(InProcessDataParallel, CompiledStepsHaveTheSameBits) {
  const Task task{.net = {.dropout = 0.3}, .batches = {5, 4}};
  Course traced = in_process(2, task), compiled = in_process(2, task, true);
  EXPECT_EQ(compiled.values, traced.values);
  EXPECT_EQ(compiled.losses, traced.losses);
}

TEST(InProcessDataParallel, SyncBatchNormIsThatOfTheWholeBatch) {
  const Task task{.net = {.batch_norm = true}, .strategy = {.sync_batch_norm = true}, .batches = {16, 9}};
  expect_same_losses(in_process(2, task), plain(task));
}

// Of 3 devices the last has one sample in a batch of 3 and a stand-in in one of 2: the same shape.
TEST(InProcessDataParallel, SyncBatchNormCountsNoStandIns) {
  const Task task{.net = {.batch_norm = true}, .strategy = {.sync_batch_norm = true}, .batches = {3, 2}};
  const Course whole = plain(task), traced = in_process(3, task), compiled = in_process(3, task, true);
  expect_same_losses(traced, whole);
  EXPECT_EQ(compiled.values, traced.values);
  EXPECT_EQ(compiled.losses, traced.losses);
}

TEST(InProcessDataParallel, DropoutGoesByThePlaceInTheBatch) {
  const Task task{.net = {.dropout = 0.5}, .batches = {16, 7}};
  const Course whole = plain(task);
  for (int devices : {2, 3}) expect_same_losses(in_process(devices, task), whole);
}

// Device 1 has more to compute for each sample, none of which counts.
TEST(InProcessDataParallel, BalancedBySpeedASlowDeviceGetsLessAndTheCourseIsThatOfOneDevice) {
  constexpr int64_t kSamples = 16, kMost = 400;
  auto held_up = [](const auto& model, auto& optimizer, const Tensor& image, const Tensor& label) {
    return train_step_and_more(model, optimizer, image, label, fleet::rank() == 1 ? 512 : 0);
  };
  const SmoothNet::Options net{.dropout = 0.3};
  manual_seed(5);
  DataParallel parallel(SmoothNet(net), momentum, first_devices(2));
  parallel.balance_by_speed();
  EXPECT_EQ(parallel.shares(kSamples), (std::vector<int64_t>{8, 8}));
  std::vector<double> losses;
  auto step = [&](int64_t samples) {
    auto [image, label] = batch_of(static_cast<int64_t>(losses.size()), samples);
    losses.push_back(parallel.step(held_up, image, label).item());
  };
  while (parallel.shares(kSamples)[1] >= 8 && static_cast<int64_t>(losses.size()) < kMost) step(kSamples);
  const std::vector<int64_t> shares = parallel.shares(kSamples);
  EXPECT_LT(shares[1], 8);
  EXPECT_EQ(shares[0] + shares[1], kSamples);
  const size_t changed = losses.size();
  for (int64_t samples : {kSamples, int64_t{5}, int64_t{1}, kSamples}) step(samples);
  for (const nn::StateDict& copy : parallel.copies()) expect_same_parameters(copy, parallel.module().state_dict());

  Tensor image = batch_of(0, kSamples).image;
  parallel.eval();
  std::vector<float> parts = parallel(image).to_vector<float>();
  NoGrad no_grad;
  std::vector<float> rows = parallel.module()(image).to_vector<float>();
  ASSERT_EQ(parts.size(), rows.size());
  for (size_t i = 0; i < rows.size(); ++i) EXPECT_NEAR(parts[i], rows[i], 1e-5) << i;  // in the order of the batch

  std::thread([&] {
    manual_seed(5);
    SmoothNet model(net);
    auto optimizer = momentum(model);
    for (size_t i = 0; i < losses.size(); ++i) {
      const int64_t tail = static_cast<int64_t>(i) - static_cast<int64_t>(changed);
      auto [pixels, label] = batch_of(static_cast<int64_t>(i), tail == 1 ? 5 : tail == 2 ? 1 : kSamples);
      EXPECT_NEAR(train_step(model, optimizer, pixels, label).item(), losses[i], 1e-4) << "step " << i;
    }
  }).join();
}

TEST(InProcessDataParallel, OneDeviceIsThePlainProgram) {
  const Task task{.net = {.batch_norm = true, .dropout = 0.5}, .batches = {16, 7}};
  Course one = in_process(1, task), alone = plain(task);
  EXPECT_EQ(one.values, alone.values);
  EXPECT_EQ(one.losses, alone.losses);
}

TEST(InProcessDataParallel, OutputsHaveTheOrderOfTheBatch) {
  DataParallel parallel(SmoothNet({}), momentum, first_devices(3));
  for (int64_t samples : {7, 2}) {
    Tensor image = batch_of(0, samples).image;
    NoGrad no_grad;
    std::vector<float> parts = parallel(image).to_vector<float>(), whole = parallel.module()(image).to_vector<float>();
    ASSERT_EQ(parts.size(), whole.size());
    for (size_t i = 0; i < whole.size(); ++i) EXPECT_NEAR(parts[i], whole[i], 1e-5) << i;
  }
}

TEST(InProcessDataParallel, WhatTheBodyReturnsIsPutTogether) {
  DataParallel parallel(SmoothNet({}), momentum, first_devices(3));
  auto body = [](const SmoothNet&, optim::Momentum&, const Tensor& x) {
    return std::vector<Tensor>{mean(x), sum(greater(x, 1.5)), x * 2.0};
  };
  std::vector<Tensor> whole = parallel.step(body, Tensor::from<float>({1, 2, 3, 4}, {4}));
  EXPECT_FLOAT_EQ(whole[0].item<float>(), 2.5F);
  EXPECT_EQ(whole[1].item<int64_t>(), 3);
  EXPECT_EQ(whole[2].to_vector<float>(), (std::vector<float>{2, 4, 6, 8}));
  whole = parallel.step(body, Tensor::from<float>({3, 5}, {2}));  // the stand-in counts for nothing
  EXPECT_FLOAT_EQ(whole[0].item<float>(), 4);
  EXPECT_EQ(whole[1].item<int64_t>(), 2);
  EXPECT_EQ(whole[2].to_vector<float>(), (std::vector<float>{6, 10}));
  std::atomic<int> calls{0};
  parallel.step([&](const SmoothNet&, optim::Momentum&, const Tensor&) { ++calls; }, Tensor::from<float>({1}, {1}));
  EXPECT_EQ(calls, 3);
  EXPECT_ERROR(parallel.step([](const SmoothNet&, optim::Momentum&, const Tensor&) { return ones({5}, DType::f32); },
                             Tensor::from<float>({1, 2, 3}, {3})),
               ShapeError,
               "the step returned f32 [5] cpu:0, of 1 samples; return one number, or a row for each sample");
}

TEST(InProcessDataParallel, TheModuleIsThePlainModel) {
  testing::ScratchFolder folder;
  manual_seed(1);
  SmoothNet one({});
  DataParallel parallel(SmoothNet({}), momentum, first_devices(2));
  std::vector<std::string> names, expected;
  for (const auto& [name, variable] : parallel.module().state_dict()) names.push_back(name);
  for (const auto& [name, variable] : one.state_dict()) expected.push_back(name);
  EXPECT_EQ(names, expected);
  parallel.module().save(folder / "net.safetensors");
  one.load(folder / "net.safetensors");
  EXPECT_EQ(values_of(one), values_of(parallel.module()));

  SmoothNet other({});
  other.save(folder / "other.safetensors");
  EXPECT_TRUE(parallel.load(folder / "other.safetensors").complete());
  for (const nn::StateDict& copy : parallel.copies()) EXPECT_EQ(values_of(copy), values_of(other));
}

TEST(InProcessDataParallel, AModelThatExistsIsTrainedFromWhereItIs) {
  manual_seed(3);
  SmoothNet model({.batch_norm = true}), alone({.batch_norm = true});
  auto optimizer = momentum(model);
  for (int64_t i = 0; i < 3; ++i) {
    auto [image, label] = batch_of(i, 8);
    train_step(model, optimizer, image, label);
  }
  alone.load_state_dict(model.state_dict());
  auto one = momentum(alone);
  DataParallel parallel(model, momentum, {cpu(2), cpu(0), cpu(1)}, {.sync_batch_norm = true});
  for (int64_t i = 3; i < 6; ++i) {
    auto [image, label] = batch_of(i, 12);
    const double loss = parallel.step(train_step, image, label).item();
    EXPECT_NEAR(loss, train_step(alone, one, image, label).item(), 1e-5 * loss);
  }
  EXPECT_EQ(values_of(model), values_of(parallel.module()));  // the model itself has learnt
  EXPECT_EQ(model.parameters()[0].device(), cpu(2));
  for (const nn::StateDict& copy : parallel.copies()) expect_same_parameters(copy, model.state_dict());
  EXPECT_EQ(parallel.copies()[1][0].variable.device(), cpu(0));
}

TEST(InProcessDataParallel, WithoutAnOptimizerItGivesOutputs) {
  SmoothNet model({.batch_norm = true});
  DataParallel everywhere(model);  // the CPU, or all GPUs
  DataParallel parallel(model, first_devices(2));
  parallel.eval();
  Tensor image = batch_of(0, 5).image;
  NoGrad no_grad;
  const std::vector<float> whole = model(image).to_vector<float>();
  for (const std::vector<float>& parts : {parallel(image).to_vector<float>()})
    for (size_t i = 0; i < whole.size(); ++i) EXPECT_NEAR(parts[i], whole[i], 1e-5) << i;
}

TEST(InProcessDataParallel, ModelsOfAnyKindAreCopied) {  // with parts that copies of a handle share
  manual_seed(2);
  nn::Sequential model({nn::Linear({.in = 4, .out = 8}), nn::Tanh(), nn::Linear({.in = 8, .out = 2})});
  models::Model named = models::make("mlp", {.classes = 3, .in_channels = 1});
  DataParallel first(model, first_devices(3));
  DataParallel second(named, first_devices(2));
  Tensor x = uniform_random({6, 4}), image = uniform_random({4, 1, 28, 28});
  NoGrad no_grad;
  const std::vector<float> parts = first(x).to_vector<float>(), whole = model(x).to_vector<float>();
  for (size_t i = 0; i < whole.size(); ++i) EXPECT_NEAR(parts[i], whole[i], 1e-6) << i;
  const std::vector<float> halves = second(image).to_vector<float>(), all = named(image).to_vector<float>();
  for (size_t i = 0; i < all.size(); ++i) EXPECT_NEAR(halves[i], all[i], 1e-5) << i;
}

TEST(InProcessDataParallel, PrintsPyTorchsTree) {
  nn::Sequential model({nn::Linear({.in = 4, .out = 8}), nn::ReLU({.inplace = true})});
  DataParallel parallel(model, first_devices(2));
  std::ostringstream wrapped, plain;
  wrapped << parallel;
  plain << parallel.module();
  EXPECT_EQ(wrapped.str(),
            "DataParallel(\n"
            "  (module): Sequential(\n"
            "    (0): Linear(in_features=4, out_features=8, bias=True)\n"
            "    (1): ReLU(inplace=True)\n"
            "  )\n"
            ")");
  EXPECT_EQ(plain.str(),
            "Sequential(\n"
            "  (0): Linear(in_features=4, out_features=8, bias=True)\n"
            "  (1): ReLU(inplace=True)\n"
            ")");
}

TEST(InProcessDataParallel, ModesAndRatesAreOfAllCopies) {
  DataParallel parallel(SmoothNet({}), momentum, first_devices(2));
  parallel.eval();
  parallel.set_lr(0.25);
  EXPECT_FALSE(parallel.module().training());
  for (const auto& optimizer : parallel.optimizers()) EXPECT_EQ(optimizer.lr(), 0.25);
}

TEST(InProcessDataParallel, ParametersAreDrawnAsForOneModel) {
  manual_seed(4);
  SmoothNet first({}), second({});
  manual_seed(4);
  DataParallel parallel(SmoothNet({}), momentum, first_devices(2));
  EXPECT_EQ(values_of(parallel.module()), values_of(first));
  EXPECT_EQ(values_of(SmoothNet({})), values_of(second));
}

TEST(InProcessDataParallel, NoDeviceNeedsMoreMemoryThanAnother) {
  runtime::clear_plan_cache();
  in_process(3, {.batches = {12}});
  std::set<size_t> peaks[3];
  for (const auto& plan : runtime::cached_plans())
    for (int device = 0; device < 3; ++device)
      if (plan->waits_for_ranks && runtime::peak_bytes(*plan, cpu(device)) > 0)
        peaks[device].insert(runtime::peak_bytes(*plan, cpu(device)));
  EXPECT_FALSE(peaks[0].empty());
  for (int device : {1, 2}) EXPECT_EQ(peaks[device], peaks[0]);
}

TEST(InProcessDataParallel, WhatCannotBeIsRefused) {
  SmoothNet model({});
  EXPECT_ERROR(DataParallel(model, momentum, std::vector<Device>{}), ConfigError, "the list of devices is empty; name");
  EXPECT_ERROR(DataParallel(model, momentum, {cpu(1), cpu(1)}), ConfigError, "cpu:1 is named twice; each copy of");
  DataParallel parallel(model, momentum, first_devices(2));
  auto [image, label] = batch_of(0, 4);
  EXPECT_ERROR(parallel.step(train_step, image, batch_of(0, 3).label), ShapeError, "have 4 and 3 samples");
  EXPECT_ERROR(parallel(zeros({0, 1, 8, 8})), ShapeError, "it has no samples to deal out");
  EXPECT_GT(parallel.step(train_step, image, label).item(), 0);  // that broke nothing
}

TEST(InProcessDataParallel, AStepThatThrowsOnOneDeviceEndsOnAll) {
  DataParallel parallel(SmoothNet({}), momentum, first_devices(3));
  auto [image, label] = batch_of(0, 6);
  parallel.step(train_step, image, label).item();
  auto failing = [](const SmoothNet& model, optim::Momentum& optimizer, const Tensor& x, const Tensor& y) {
    if (fleet::rank() == 1) throw_error<DataError>("no more samples");
    return train_step(model, optimizer, x, y);
  };
  EXPECT_ERROR(parallel.step(failing, image, label).item(), DataError, "no more samples");
  EXPECT_ERROR(parallel.step(train_step, image, label), CommError,
               "an earlier step has failed: no more samples; make a new DataParallel");
}

TEST(InProcessDataParallel, AKernelThatFailsOnOneDeviceEndsTheStep) {
  DataParallel parallel(SmoothNet({}), momentum, first_devices(2));
  Tensor image = batch_of(0, 2).image;
  Tensor loss = parallel.step(train_step, image, Tensor::from<int64_t>({1, 99}, {2}));  // submitted; not run yet
  EXPECT_ERROR(loss.item(), Error, "target 99 of row 0 is not a class");
  EXPECT_ERROR(parallel.step(train_step, image, Tensor::from<int64_t>({1, 2}, {2})).item(), Error,
               "target 99 of row 0 is not a class");
}

TEST(DataParallelWithAGpu, ItAndACpuTrainAsOneDevice) {
  if (!cuda_device()) GTEST_SKIP() << "no GPU";
  for (const Task& task : {Task{}, Task{.net = {.dropout = 0.3}, .batches = {7, 4, 5, 1}},
                           Task{.net = {.batch_norm = true}, .strategy = {.sync_batch_norm = true}, .batches = {16, 9}},
                           Task{.strategy = {.nccl_comm_num = 2}}, Task{.strategy = {.fuse_all_reduce_ops = false}}}) {
    const Course whole = plain(task);
    for (const std::vector<Device>& devices : {std::vector{*cuda_device(), cpu(0)}, {cpu(0), *cuda_device(), cpu(1)}})
      for (bool compiled : {false, true}) expect_same_losses(in_process(devices, task, compiled), whole);
  }
}

// Local SGD averages parameters, which are staged in memory of the collective's own.
TEST(DataParallelWithAGpu, LocalSgdAveragesParameters) {
  if (!cuda_device()) GTEST_SKIP() << "no GPU";
  DistributedStrategy strategy;
  strategy.use_local_sgd = true;
  strategy.local_sgd_steps = 2;
  const Task task{.strategy = strategy};
  const Course cpus = in_process(2, task), mixed = in_process({*cuda_device(), cpu(0)}, task);
  expect_same_losses(mixed, cpus);
}

// Much to compute for each sample, none of which counts.
TEST(DataParallelWithAGpu, BalancedBySpeedItGetsMore) {
  if (!cuda_device()) GTEST_SKIP() << "no GPU";
  constexpr int64_t kSamples = 16, kMost = 200;
  auto heavy = [](const auto& model, auto& optimizer, const Tensor& image, const Tensor& label) {
    return train_step_and_more(model, optimizer, image, label, 2048);
  };
  manual_seed(5);
  DataParallel parallel(SmoothNet({}), momentum, {cpu(0), *cuda_device()});
  parallel.balance_by_speed();
  std::vector<double> losses;
  while (parallel.shares(kSamples)[1] <= 8 && static_cast<int64_t>(losses.size()) < kMost) {
    auto [image, label] = batch_of(static_cast<int64_t>(losses.size()), kSamples);
    losses.push_back(parallel.step(heavy, image, label).item());
  }
  EXPECT_GT(parallel.shares(kSamples)[1], 8);
  EXPECT_EQ(parallel.shares(kSamples)[0] + parallel.shares(kSamples)[1], kSamples);
  for (int i = 0; i < 3; ++i) {
    auto [image, label] = batch_of(static_cast<int64_t>(losses.size()), kSamples);
    losses.push_back(parallel.step(heavy, image, label).item());
  }
  std::thread([&] {
    manual_seed(5);
    SmoothNet model({});
    auto optimizer = momentum(model);
    for (size_t i = 0; i < losses.size(); ++i) {
      auto [image, label] = batch_of(static_cast<int64_t>(i), kSamples);
      EXPECT_NEAR(train_step(model, optimizer, image, label).item(), losses[i], 1e-4) << "step " << i;
    }
  }).join();
}

// Whichever of them fails: the other one's collectives end, and what follows on that GPU works.
TEST(DataParallelWithAGpu, AStepThatFailsOnOneEndsOnBoth) {
  if (!cuda_device()) GTEST_SKIP() << "no GPU";
  auto [image, label] = batch_of(0, 6);
  for (int culprit : {0, 1})
    for (int64_t before : {0, 1, 4}) {  // the GPU's work is captured then
      DataParallel parallel(SmoothNet({}), momentum, {*cuda_device(), cpu(0)});
      for (int64_t i = 0; i < before; ++i) parallel.step(train_step, image, label).item();
      auto failing = [&](const SmoothNet& model, optim::Momentum& optimizer, const Tensor& x, const Tensor& y) {
        if (fleet::rank() == culprit) throw_error<DataError>("no more samples");
        return train_step(model, optimizer, x, y);
      };
      EXPECT_ERROR(parallel.step(failing, image, label).item(), DataError, "no more samples");
      EXPECT_ERROR(parallel.step(train_step, image, label), CommError, "an earlier step has failed: no more samples");
    }
  expect_same_losses(in_process({*cuda_device(), cpu(0)}, {}), plain({}));
}

TEST(DataParallelWithAGpu, AKernelThatFailsOnTheCpuEndsTheStep) {
  if (!cuda_device()) GTEST_SKIP() << "no GPU";
  DataParallel parallel(SmoothNet({}), momentum, {*cuda_device(), cpu(0)});
  Tensor image = batch_of(0, 2).image;
  for (int i = 0; i < 3; ++i) parallel.step(train_step, image, Tensor::from<int64_t>({1, 2}, {2})).item();
  EXPECT_ERROR(parallel.step(train_step, image, Tensor::from<int64_t>({1, 99}, {2})).item(), Error,
               "target 99 of row 0 is not a class");
}

// Not in the memory that gradients share, of every dtype and size; the third submission on is a replay.
TEST(DataParallelWithAGpu, AllReducesTensorsOfAnyKind) {
  if (!cuda_device()) GTEST_SKIP() << "no GPU";
  auto groups = comm::local_groups(2, {.timeout = std::chrono::seconds(60)});
  std::vector<std::thread> ranks;
  for (size_t r = 0; r < 2; ++r)
    ranks.emplace_back([&, r] {
      const Device device = r == 0 ? *cuda_device() : cpu(0);
      fleet::join(groups[r]);
      for (DType dtype : {DType::f32, DType::bf16, DType::i64})
        for (int64_t count : {0, 1, 1000})
          for (comm::Reduce reduce : {comm::Reduce::sum, comm::Reduce::max})
            for (int round = 0; round < 4; ++round) {
              NoGrad no_grad;
              const Tensor mine =
                  full({count}, static_cast<double>(10 * round + 1 + static_cast<int>(r)), dtype, device);
              const Tensor both = comm::all_reduce(mine + full({count}, 1, dtype, device), Axis::data, reduce);
              const double one = 10 * round + 2, other = one + 1;
              const double expected = reduce == comm::Reduce::sum ? one + other : other;
              for (float found : cast(both, DType::f32).to_vector<float>())
                ASSERT_EQ(found, static_cast<float>(expected)) << name_of(dtype) << " on " << to_string(device);
            }
      fleet::leave();
    });
  for (std::thread& rank : ranks) rank.join();
}

}  // namespace
}  // namespace bonfire::in_process_test
