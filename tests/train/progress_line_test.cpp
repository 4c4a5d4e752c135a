#include "bonfire/train/report/progress_line.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "bonfire/train/report/number_text.h"

namespace bonfire::train::progress_line_test {
namespace {

LineFacts facts(Progress::Doing doing) {
  LineFacts all{.run = {.folder = {},
                        .model = "m",
                        .data = "d",
                        .place = "cpu:0",
                        .epochs = 3,
                        .steps_per_epoch = 312,
                        .total_steps = 936,
                        .batch_size = 64,
                        .ranks = 2,
                        .replicas = 2},
                .now = {.doing = doing, .epoch = 2, .step = 412, .done = 100, .all = 312}};
  all.report = StepReport{.epoch = 2,
                          .step = 400,
                          .loss = 0.30014,
                          .scores = {{{.name = "top1", .brief = "acc"}, 0.9112}},
                          .samples_per_second = 2923.4,
                          .data_wait = 0.01,
                          .communication_wait = 0.24};
  all.seconds_left = 38;
  return all;
}

size_t columns(const std::string& text) {
  return static_cast<size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0U) != 0x80; }));
}

TEST(ProgressLine, SaysWhatThereIsRoomFor) {
  EXPECT_EQ(progress_line(facts(Progress::Doing::training), 200),
            "⠋  epoch 2/3  ━━━━━━──────────────  100/312  loss 0.3001  acc 91.12 %  2,923 images/s  compute 75 % data "
            "1 % comm 24 %  ETA 0:38");
  EXPECT_EQ(progress_line(facts(Progress::Doing::training), 60), "⠋  epoch 2/3  100/312  loss 0.3001  ETA 0:38");
  EXPECT_EQ(progress_line(facts(Progress::Doing::training), 12), "⠋  ETA 0:38");
}

TEST(ProgressLine, NeverIsWiderAndLosesTheTimeLeftLast) {
  for (Progress::Doing doing : {Progress::Doing::training, Progress::Doing::evaluating, Progress::Doing::saving})
    for (size_t width = 1; width < 160; ++width) {
      std::string line = progress_line(facts(doing), width);
      EXPECT_LE(columns(line), width);
      EXPECT_EQ(line.find("ETA 0:38") != std::string::npos, width >= 8) << line;
    }
}

// The bar and the numbers beside it say the same: of the epoch, or where steps were asked for, of the run.
TEST(ProgressLine, CountsTheEpochOrTheRun) {
  LineFacts run = facts(Progress::Doing::training);
  run.run.total_steps = 800;
  EXPECT_EQ(progress_line(run, 70), "⠋  steps  ━━━━━━━━━━──────────  412/800  loss 0.3001  ETA 0:38");
  EXPECT_EQ(report_line(run).substr(0, 25), "step 412/800: loss 0.3001");
  EXPECT_EQ(report_line(facts(Progress::Doing::training)).substr(0, 23), "epoch 2/3, step 100/312");
}

TEST(ProgressLine, ShowsWhatElseARunDoes) {
  EXPECT_EQ(progress_line(facts(Progress::Doing::saving), 80), "⠋  epoch 2/3  saving  ETA 0:38");
  EXPECT_EQ(progress_line(facts(Progress::Doing::evaluating), 80),
            "⠋  epoch 2/3  ━━━━━━──────────────  100/312  evaluating  ETA 0:38");
  LineFacts first = facts(Progress::Doing::compiling);
  first.seconds_left.reset();
  first.seconds = 12;
  first.frame = 11;
  EXPECT_EQ(progress_line(first, 80), "⠙  epoch 2/3  compiling the first step and choosing kernels  0:12");
}

TEST(NumberText, ReadsTheSameEverywhere) {
  EXPECT_EQ(grouped(20000), "20,000");
  EXPECT_EQ(grouped(-999), "-999");
  EXPECT_EQ(grouped(int64_t{-1234567}), "-1,234,567");
  EXPECT_EQ(grouped(20000.25, 1), "20,000.2");
  EXPECT_EQ(duration(3675), "1:01:15");
  EXPECT_EQ(byte_text(246824), "246.8 kB");
  EXPECT_EQ(plural(1, "step"), "1 step");
  EXPECT_EQ(plural(2000, "step"), "2,000 steps");
}

}  // namespace
}  // namespace bonfire::train::progress_line_test
