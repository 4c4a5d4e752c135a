// `place` names several devices: trainers as threads of one process, and every batch dealt out to them.

#include <gtest/gtest.h>

#include "bonfire/base/error.h"
#include "bonfire/train/trainer.h"
#include "tests/support/expect_error.h"
#include "tests/support/scratch_folder.h"
#include "tests/train/few_digits.h"

namespace bonfire::train::devices_test {
namespace {

using bonfire::testing::ScratchFolder;
using Words = std::vector<std::string>;

Course train(const ScratchFolder& folder, const Words& more, int64_t stop_at = -1) {
  Words settings{"model=mlp", "lr=0.005"};
  settings.insert(settings.end(), more.begin(), more.end());
  return train_few_digits(folder, settings, stop_at);
}

constexpr double kRounding = 1e-5;

// The fourth batch of an epoch has 18 samples.
TEST(TrainerDevices, TrainsAsOneDeviceDoes) {
  ScratchFolder folder;
  Course whole = train(folder, {"place=cpu"});
  ASSERT_EQ(whole.steps.size(), 8U);
  for (const char* places : {"cpu:0,cpu:1", "cpu:2, cpu:0, cpu:1"}) {
    Course parts = train(folder, {std::string("place=") + places});
    ASSERT_EQ(parts.steps.size(), 8U);
    expect_same_losses(parts, whole, kRounding);
    EXPECT_EQ(parts.begin.place, places);
    EXPECT_EQ(parts.begin.ranks * parts.begin.batch_size, 24);
    ASSERT_EQ(parts.evaluations.size(), 2U);
    EXPECT_EQ(parts.evaluations[1].headline(), whole.evaluations[1].headline());
  }
}

// 40 steps, of which the first windows measure. Whichever shares the devices have then, losses are those of one.
TEST(TrainerDevices, BalancedTheyTrainAsOneDeviceDoes) {
  ScratchFolder folder;
  const Words settings{"epochs=10", "lr=0.0005", "eval_freq=10", "balance=auto"};
  auto with_place = [&](const char* place) {
    Words all = settings;
    all.push_back(std::string("place=") + place);
    return train(folder, all);
  };
  Course whole = with_place("cpu"), parts = with_place("cpu:0,cpu:1");
  ASSERT_EQ(parts.steps.size(), 40U);
  expect_same_losses(parts, whole, kRounding);
  EXPECT_EQ(parts.evaluations.at(0).headline(), whole.evaluations.at(0).headline());
}

// What the run's folder says starts the same run again, and one device evaluates what it has saved.
TEST(TrainerDevices, ARunStopsIsResumedAndEvaluatedElsewhere) {
  ScratchFolder folder;
  Course whole = train(folder, {"place=cpu"}), first = train(folder, {"place=cpu:0,cpu:1"}, 5);
  ASSERT_TRUE(first.end.interrupted);
  Config config = load_config(first.begin.folder / "config.yaml");
  EXPECT_EQ(config.place, "cpu:0,cpu:1");
  EXPECT_EQ(config.batch_size, 24);
  Course second = train(folder, {"place=cpu:1", "resume=" + first.begin.folder.string()});
  expect_same_losses(first, whole, kRounding);
  expect_same_losses(second, whole, kRounding);
  EXPECT_EQ(second.steps.back().step, 8);
  EvaluationReport report = Trainer(config).evaluate(second.end.weights);
  double best = 0;  // loss of the evaluation that the weights were saved at
  for (const Course* course : {&first, &second})
    for (const EvaluationReport& evaluated : course->evaluations)
      if (evaluated.best) best = evaluated.loss;
  EXPECT_NEAR(report.loss, best, 1e-5 * report.loss);
}

TEST(TrainerDevices, WhatCannotBeIsRefused) {
  ScratchFolder folder;
  EXPECT_ERROR(train(folder, {"place=cpu:0,cpu:1", "batch_size=25"}), ConfigError,
               "batch_size is 25, which 2 devices cannot share evenly; use 24 or 26");
  EXPECT_ERROR(train(folder, {"place=cpu:0,cpu"}), ConfigError, "cpu:0 is named twice");
  EXPECT_ERROR(train(folder, {"place=cpu:0,tpu"}), ConfigError, "'tpu' is not a device");
  EXPECT_ERROR(train(folder, {"place=cpu:0,cpu:1", "num_gpus=2"}), ConfigError,
               "place names 2 devices for one process, and num_gpus asks for 2 processes; leave one of them out");
  EXPECT_ERROR(train(folder, {"place=cpu:0,cpu:1", "init_from=/absent.safetensors"}), Error, "/absent.safetensors");
}

}  // namespace
}  // namespace bonfire::train::devices_test
