// `placement`: modules of the trained model on several devices of one process.

#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <regex>

#include "bonfire/base/error.h"
#include "bonfire/runtime/plan_cache.h"
#include "bonfire/train/config/config.h"
#include "bonfire/train/report/step_profile.h"
#include "bonfire/train/trainer.h"
#include "tests/support/expect_error.h"
#include "tests/support/scratch_folder.h"
#include "tests/train/few_digits.h"

namespace bonfire::train::placement_test {
namespace {

using bonfire::testing::ScratchFolder;
using Words = std::vector<std::string>;

const char* const kParted = "placement={fc*: cpu:1, conv2: cpu:2}";

Course train(const ScratchFolder& folder, const Words& more, int64_t stop_at = -1) {
  Words settings{"model=lenet", "place=cpu", "lr=0.01"};
  settings.insert(settings.end(), more.begin(), more.end());
  return train_few_digits(folder, settings, stop_at);
}

TEST(TrainerPlacement, TrainsAndEvaluatesAsOneDeviceDoes) {
  ScratchFolder folder;
  for (const Words& more : {Words{}, Words{"ema_decay=0.9", "strategy.accumulate_steps=2", "optimizer=adam"},
                            Words{"strategy.use_amp=true"}}) {
    SCOPED_TRACE(more.empty() ? "" : more[0]);
    Words parted = more;
    parted.emplace_back(kParted);
    const Course whole = train(folder, more), parts = train(folder, parted);
    ASSERT_EQ(parts.steps.size(), 8U);
    expect_same_losses(parts, whole, 0);
    ASSERT_EQ(parts.evaluations.size(), whole.evaluations.size());
    for (size_t i = 0; i < whole.evaluations.size(); ++i)
      EXPECT_EQ(parts.evaluations[i].loss, whole.evaluations[i].loss);
    EXPECT_EQ(parts.begin.place, "cpu:0, conv2 on cpu:2, fc* on cpu:1");
    const std::string notes = fmt::format("{}", fmt::join(parts.notes, "\n"));
    EXPECT_TRUE(std::regex_search(notes, std::regex("cpu:0 [0-9.]+ [kM]?B.*; cpu:1 [0-9.]+ .*; cpu:2 "))) << notes;
  }
}

TEST(TrainerPlacement, ClippingAddsUpSquaresOfAllDevices) {
  ScratchFolder folder;
  const Course whole = train(folder, {"clip_grad_norm=0.05"}), parts = train(folder, {"clip_grad_norm=0.05", kParted});
  expect_same_losses(parts, whole, 1e-5);
}

TEST(TrainerPlacement, ARunStopsAndGoesOnInOtherPlaces) {
  ScratchFolder folder;
  const Course whole = train(folder, {"optimizer=adam", "lr=0.002"});
  const Course first = train(folder, {"optimizer=adam", "lr=0.002", kParted}, 3);
  ASSERT_TRUE(first.end.interrupted);
  const std::filesystem::path run = first.begin.folder;
  const Config config = load_config(run / "config.yaml");
  EXPECT_EQ(config.placement, (Placement{{"fc*", "cpu:1"}, {"conv2", "cpu:2"}}));
  const Course second =
      train(folder, {"resume=" + run.string(), "optimizer=adam", "lr=0.002", "placement={conv*: cpu:1}"}, 5);
  EXPECT_EQ(second.begin.place, "cpu:0, conv* on cpu:1");
  const Course third = train(folder, {"resume=" + run.string(), "optimizer=adam", "lr=0.002"});
  for (const Course* part : {&first, &second, &third}) expect_same_losses(*part, whole, 0);
  EXPECT_EQ(third.steps.back().step, 8);
  EXPECT_NEAR(Trainer(config).evaluate(third.end.weights).loss, third.evaluations.back().loss, 1e-6);
}

TEST(TrainerPlacement, IsReadFromFilesAndTheCommandLine) {
  const Words overrides{"placement.fc2=cpu:3", "placement.conv1=cpu:1"};
  const Config config = parse_config("model: lenet\nplacement: {fc1: cpu:1, fc2: cpu:2}\n", "a.yaml", overrides);
  EXPECT_EQ(config.placement, (Placement{{"fc1", "cpu:1"}, {"fc2", "cpu:3"}, {"conv1", "cpu:1"}}));
  EXPECT_EQ(parse_config(to_yaml(config), "b.yaml").placement, config.placement);
  EXPECT_EQ(parse_config("model: vgg11\nplacement:\n  features: cpu:0\n  features.10: cpu:1\n  '*': cpu:2\n", "a.yaml")
                .placement,
            (Placement{{"features", "cpu:0"}, {"features.10", "cpu:1"}, {"*", "cpu:2"}}));
  EXPECT_TRUE(default_config(Words{"placement={}"}).placement.empty());
  EXPECT_EQ(parse_config("placement: {fc1: cpu:1}\n", "a.yaml", Words{"placement={fc2: cpu:2}"}).placement,
            (Placement{{"fc2", "cpu:2"}}));
  EXPECT_ERROR(default_config(Words{"placement=cpu:1"}), ConfigError, "placement is one value, expected a map");
  EXPECT_ERROR(parse_config("placement: {fc1: [cpu:0, cpu:1]}\n", "a.yaml"), ConfigError,
               "a.yaml:1: placement.fc1 is a list, expected one value");
}

TEST(TrainerPlacement, WhatCannotBeIsRefused) {
  ScratchFolder folder;
  EXPECT_ERROR(train(folder, {"placement={fc9: cpu:1}"}), ConfigError,
               "'fc9' matches no module of the model; the nearest is 'fc1'; there are: conv1, conv2, fc1, fc2, fc3");
  EXPECT_ERROR(train(folder, {"placement={fc1: cuda:9}"}), DeviceError, "cpu:0");
  EXPECT_ERROR(train(folder, {"placement={fc1: cpu:1}", "place=cpu:0,cpu:1"}), ConfigError,
               "placement parts the model; leave one of them out");
}

TEST(TrainerPlacement, TheProfileNamesDevices) {
  runtime::clear_plan_cache();
  const StepSubject subject =
      step_subject("lenet", {.batch = 4, .place = {}, .placement = {{"fc1", "cpu:1"}, {"fc2", "cpu:1"}}});
  const std::string text = to_string(profile_step(subject, {.steps = 1}));
  EXPECT_NE(text.find(" on cpu:1 "), std::string::npos) << text;
  EXPECT_NE(text.find("MiB on cpu:0, "), std::string::npos) << text;
}

}  // namespace
}  // namespace bonfire::train::placement_test
