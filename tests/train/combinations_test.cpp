// What shapes a training step, two at a time and three: a run of `bonfire train` by a YAML file and the loop that a C++
// program writes with fleet have the same losses, step for step, on two ranks.

#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <functional>
#include <optional>
#include <random>
#include <set>
#include <thread>

#include "bonfire/base/error.h"
#include "bonfire/bonfire.h"
#include "bonfire/comm/local/local_group.h"
#include "bonfire/ops/image.h"
#include "bonfire/optim/weight_average.h"
#include "bonfire/train/trainer.h"
#include "tests/support/scratch_folder.h"
#include "tests/train/course.h"
#include "tests/train/digits.h"

namespace bonfire::train::combinations_test {
namespace {

using bonfire::testing::ScratchFolder;
using Words = std::vector<std::string>;

enum Feature : unsigned { local_sgd, accumulation, amp, sync_batch_norm, weight_average, clipping };
constexpr std::array kNames{"LocalSgd", "Accumulation", "Amp", "SyncBatchNorm", "WeightAverage", "Clipping"};
const std::array<Words, kNames.size()> kSettings{{
    {"strategy.use_local_sgd=true", "strategy.local_sgd_steps=2"},
    {"strategy.accumulate_steps=2"},
    {"strategy.use_amp=true"},
    {"strategy.sync_batch_norm=true"},
    {"ema_decay=0.9"},
    {"clip_grad_norm=0.5"},
}};
constexpr int kRanks = 2;
constexpr double kLearningRate = 0.02;  // as in the settings below
constexpr uint64_t kSeed = 3;

using Features = unsigned;  // a bit each
bool has(Features features, Feature one) { return (features >> one & 1U) != 0; }

std::string name_of(Features features) {
  std::string name;
  for (unsigned i = 0; i < kNames.size(); ++i)
    if (has(features, static_cast<Feature>(i))) name += (name.empty() ? "" : "And") + std::string(kNames[i]);
  return name.empty() ? "Nothing" : name;
}

// Batch norm needs a model that has it; others are quicker.
bool normalises(Features features) { return has(features, sync_batch_norm); }
int64_t batch_of(Features features) { return normalises(features) ? 4 : 8; }  // samples of a rank
int64_t samples_of(Features features) { return normalises(features) ? 32 : 128; }

struct Losses {
  std::vector<double> of_steps;  // the mean over the ranks
  double of_evaluation = 0;      // with the mean of the weights, where one is kept
};

template <class Body>
void on_ranks(const Body& body) {
  auto groups = comm::local_groups(kRanks, {.timeout = std::chrono::seconds(60)});
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kRanks; ++rank)
    threads.emplace_back([&, rank] {
      fleet::join(groups[static_cast<size_t>(rank)]);
      body(Device{DeviceType::cpu, static_cast<int16_t>(rank)});
      fleet::leave();
    });
  for (std::thread& thread : threads) thread.join();
}

// A file of these settings: "strategy.sync_batch_norm=true" stands in a block of its own.
std::string yaml_file(const ScratchFolder& folder, const Words& settings) {
  std::string text, strategy;
  for (const std::string& setting : settings) {
    const size_t at = setting.find('=');
    const std::string line = setting.substr(0, at) + ": " + setting.substr(at + 1) + "\n", block = "strategy.";
    if (line.starts_with(block))
      strategy += "  " + line.substr(block.size());
    else
      text += line;
  }
  if (!strategy.empty()) text += "strategy:\n" + strategy;
  return folder.put("run.yaml", text).string();
}

Losses from_yaml(const ScratchFolder& folder, Features features) {
  Words settings{data_of_digits(folder),
                 "output=" + (folder / "runs").string(),
                 normalises(features) ? "model=resnet18_small" : "model=lenet",
                 "lr=0.02",
                 "momentum=0.9",
                 "epochs=1",
                 "limit=" + std::to_string(samples_of(features)),
                 "batch_size=" + std::to_string(batch_of(features)),
                 "mean=[0.25]",
                 "deviation=[0.5]",
                 "seed=3",
                 "log_freq=1"};
  for (unsigned i = 0; i < kNames.size(); ++i)
    if (has(features, static_cast<Feature>(i)))
      settings.insert(settings.end(), kSettings[i].begin(), kSettings[i].end());
  const std::string file = yaml_file(folder, settings);
  Course course;
  on_ranks([&](Device place) {
    Trainer trainer(load_config(file, Words{"place=" + to_string(place)}));
    trainer.add(std::make_unique<Witness>(course, -1));
    trainer.run();
  });
  Losses losses;
  for (const StepReport& report : course.steps) losses.of_steps.push_back(report.loss);
  losses.of_evaluation = course.evaluations.at(0).loss;
  return losses;
}

DistributedStrategy strategy_of(Features features) {
  DistributedStrategy strategy;
  if (has(features, local_sgd)) {
    strategy.use_local_sgd = true;
    strategy.local_sgd_steps = 2;
  }
  if (has(features, accumulation)) strategy.accumulate_steps = 2;
  if (has(features, amp)) strategy.use_amp = true;
  if (has(features, sync_batch_norm)) strategy.sync_batch_norm = true;
  return strategy;
}

models::Model make_model(Features features, Device place) {
  models::Model model =
      models::make(normalises(features) ? "resnet18_small" : "lenet", {.classes = 10, .in_channels = 1});
  model.to(place);
  return model;
}

// The first rank's, of all test samples.
double evaluated(const models::Model& model, const std::function<Tensor(const Tensor&)>& pixels, Device place,
                 const std::filesystem::path& digits) {
  NoGrad no_grad;
  model.eval();
  double loss = 0;
  int64_t samples = 0;
  data::DataLoader test(data::load_mnist(digits, data::Split::test), {.batch_size = 8, .device = place});
  for (const auto& [image, label] : test.epoch(0)) {
    loss += cross_entropy(model(pixels(image)), label).item() * static_cast<double>(label.size(0));
    samples += label.size(0);
  }
  return loss / static_cast<double>(samples);
}

Losses from_a_loop(const ScratchFolder& folder, Features features, bool compiled) {
  const std::filesystem::path digits = folder / "digits";
  std::array<std::vector<double>, kRanks> of_ranks;
  Losses losses;
  on_ranks([&](Device place) {
    manual_seed(kSeed);
    const models::Model model = fleet::distributed_model(make_model(features, place));
    auto optimizer = fleet::distributed_optimizer(
        optim::Momentum(model.parameters(), {.lr = kLearningRate, .momentum = 0.9}), strategy_of(features));
    std::optional<optim::WeightAverage> average;
    if (has(features, weight_average)) average.emplace(model, optimizer, 0.9);
    const int64_t batches_an_update = has(features, accumulation) ? 2 : 1;

    const Tensor mean = Tensor::from<float>(std::vector<float>{0.25F}, {1}, place);
    const Tensor deviation = Tensor::from<float>(std::vector<float>{0.5F}, {1}, place);
    auto pixels = [&](const Tensor& image) { return normalize_image(image, mean, deviation, {.channels_last = true}); };
    auto step_of = [&](const Tensor& image, const Tensor& label) {
      Tensor loss = cross_entropy(model(pixels(image)), label);
      loss.backward();
      if (has(features, clipping)) optim::clip_grad_norm(optimizer.parameters(), Scalar(0.5));
      optimizer.step();
      optimizer.clear_grad();
      return loss;
    };
    auto compiled_step = compile(step_of);

    data::DataLoader train(data::load_mnist(digits, data::Split::train), {.batch_size = batch_of(features),
                                                                          .sampler = fleet::sampler(),
                                                                          .shuffle = true,
                                                                          .drop_last = true,
                                                                          .limit = samples_of(features),
                                                                          .seed = kSeed,
                                                                          .device = place});
    int64_t batches = 0;
    for (const auto& [image, label] : train.epoch(0)) {
      if (average) average->set_step(batches / batches_an_update);
      Tensor loss = compiled ? compiled_step(image, label) : step_of(image, label);
      of_ranks[static_cast<size_t>(fleet::rank())].push_back(loss.item());
      ++batches;
    }

    std::vector<Variable> more;
    if (average) {
      std::set<std::string> trained;
      for (const auto& [name, parameter] : model.named_parameters()) trained.insert(name);
      for (const auto& [name, mean_of_it] : average->state())
        if (trained.contains(name)) more.push_back(mean_of_it);
    }
    if (has(features, local_sgd)) fleet::average(more);
    std::optional<UseCopies> means;
    if (average) means.emplace(average->copies());
    if (fleet::rank() == 0) losses.of_evaluation = evaluated(model, pixels, place, digits);
  });
  for (size_t step = 0; step < of_ranks[0].size(); ++step)
    losses.of_steps.push_back((of_ranks[0][step] + of_ranks[1][step]) / kRanks);
  return losses;
}

void expect_same(Features features, bool compiled) {
  ScratchFolder folder;
  const Losses yaml = from_yaml(folder, features), loop = from_a_loop(folder, features, compiled);
  ASSERT_EQ(yaml.of_steps.size(), static_cast<size_t>(samples_of(features) / (kRanks * batch_of(features))));
  EXPECT_NE(yaml.of_steps.back(), yaml.of_steps.front());
  // Bits: the same operations in the same order, be they traced each time or compiled.
  EXPECT_EQ(loop.of_steps, yaml.of_steps) << name_of(features);
  EXPECT_NEAR(loop.of_evaluation, yaml.of_evaluation, 1e-5 * yaml.of_evaluation) << name_of(features);
}

class Combinations : public ::testing::TestWithParam<Features> {};

TEST_P(Combinations, TrainAlikeFromYamlAndFromALoop) { expect_same(GetParam(), false); }

std::vector<Features> up_to_two() {
  std::vector<Features> all{0};
  for (unsigned i = 0; i < kNames.size(); ++i)
    for (unsigned j = i; j < kNames.size(); ++j) all.push_back(1U << i | 1U << j);
  return all;
}

INSTANTIATE_TEST_SUITE_P(Of, Combinations, ::testing::ValuesIn(up_to_two()),
                         [](const auto& features) { return name_of(features.param); });

// Three by chance, with another seed each time; the step of the loop is compiled.
TEST(CombinationsOfThree, TrainAlikeFromYamlAndFromALoop) {
  const unsigned seed = std::random_device()();
  std::printf("seed %u\n", seed);
  std::mt19937 random(seed);
  for (int trial = 0; trial < 3; ++trial) {
    Features features = 0;
    while (std::popcount(features) < 3) features |= 1U << random() % kNames.size();
    expect_same(features, true);
  }
}

// "" where nothing is refused.
std::string refusal(const std::function<void()>& body) {
  try {
    body();
  } catch (const ConfigError& error) {
    return error.what();
  }
  return {};
}

TEST(CombinationsRefused, AreRefusedAlikeFromSettingsAndFromALoop) {
  struct Row {
    Words settings;
    DistributedStrategy strategy;
    const char* reason;  // both name it
  };
  const Row rows[] = {
      {{"strategy.local_sgd_steps=2"}, {.local_sgd_steps = 2}, "local_sgd_steps has no effect without use_local_sgd"},
      {{"strategy.local_sgd_is_warm_steps=1"},
       {.local_sgd_is_warm_steps = 1},
       "local_sgd_is_warm_steps has no effect without use_local_sgd"},
      {{"strategy.use_local_sgd=true", "strategy.local_sgd_steps=0"},
       {.use_local_sgd = true, .local_sgd_steps = 0},
       "local_sgd_steps is 0, expected at least 1"},
      {{"strategy.accumulate_steps=0"}, {.accumulate_steps = 0}, "accumulate_steps is 0, expected at least 1"},
      {{"strategy.amp_dtype=f16"}, {.amp_dtype = "f16"}, "amp_dtype has no effect without use_amp"},
      {{"strategy.use_amp=true", "strategy.amp_dtype=f16"},
       {.use_amp = true, .amp_dtype = "f16"},
       "amp_dtype f16 is not available yet"},
      {{"strategy.use_amp=true", "strategy.loss_scaling=8"},
       {.use_amp = true, .loss_scaling = 8},
       "loss_scaling has no effect without use_amp and amp_dtype f16"},
      {{"memory_budget=6"}, {.memory_budget = "6"}, "memory_budget is '6', expected bytes with their unit"},
  };
  nn::Linear model({.in = 2, .out = 2});
  fleet::join(nullptr);
  for (const Row& row : rows) {
    const std::string settings = refusal([&] { Trainer trainer(default_config(row.settings)); });
    const std::string loop =
        refusal([&] { fleet::distributed_optimizer(optim::SGD(model.parameters(), {.lr = 0.1}), row.strategy); });
    EXPECT_NE(settings.find(row.reason), std::string::npos) << settings;
    EXPECT_NE(loop.find(row.reason), std::string::npos) << loop;
  }
  fleet::leave();
}

TEST(CombinationsRefused, AverageOfWeightsAndBalanceAreRefusedAlike) {
  nn::Linear model({.in = 2, .out = 2});
  auto optimizer = optim::SGD(model.parameters(), {.lr = 0.1});
  EXPECT_NE(refusal([&] { default_config(Words{"ema_decay=1"}); }).find("is 1, expected above 0, below 1"),
            std::string::npos);
  EXPECT_NE(refusal([&] { optim::WeightAverage(model, optimizer, 1); }).find("is 1, expected above 0, below 1"),
            std::string::npos);

  const char* reason = "a gradient of its own; leave one of them out";
  EXPECT_NE(refusal([&] {
              Trainer trainer(default_config(Words{"balance=auto", "strategy.use_local_sgd=true"}));
            }).find(reason),
            std::string::npos);
  EXPECT_NE(refusal([&] {
              DataParallel parallel(model,
                                    [](const nn::Linear& one) { return optim::SGD(one.parameters(), {.lr = 0.1}); },
                                    {parse_device("cpu:0"), parse_device("cpu:1")}, {.use_local_sgd = true});
              parallel.balance_by_speed();
            }).find(reason),
            std::string::npos);
}

}  // namespace
}  // namespace bonfire::train::combinations_test
