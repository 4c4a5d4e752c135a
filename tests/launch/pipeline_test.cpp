// `bonfire train` with a model in stages: as one process that trains on the same batches, whatever the schedule; a run
// goes on at another mesh; what cannot be is refused by all.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/launch/launched.h"
#include "tests/launch/trained.h"
#include "tests/support/expect_error.h"

namespace bonfire::launch::pipeline_test {
namespace {

using testing::ChildProcess;
using testing::clean;
using testing::expect_mentions;
using testing::expect_same;
using testing::joined;
using testing::log_of;
using testing::ScratchFolder;
using testing::settings;
using testing::trained_alone;
using testing::Words;

Words two_stages(const Words& more = {}) {
  return joined({"mesh.pipeline=2", "pipeline.micro_batches=4", "pipeline.cut=[conv2]"}, more);
}

Words train_on(int ranks) { return {BONFIRE_PROGRAM, "train", "--nproc", std::to_string(ranks)}; }

TEST(LaunchPipeline, TrainsInTwoStagesAsOneProcessDoesInEverySchedule) {
  ScratchFolder other;
  const testing::Log expected = trained_alone(other);
  for (const char* schedule : {"gpipe", "1f1b", "zero_bubble"}) {
    ScratchFolder folder;
    ChildProcess stages(
        joined(train_on(2), settings(folder, 32, two_stages({fmt::format("pipeline.schedule={}", schedule)}))),
        clean());
    ASSERT_EQ(stages.wait(), 0) << stages.output();
    expect_same(log_of(folder / "runs/1"), expected);
  }
}

// Evaluations too, whose results come from the last stage. A run goes on with one stage a rank.
TEST(LaunchPipeline, TrainsWithTwoStagesOnEachRank) {
  ScratchFolder folder, other;
  const Words interleaved{"mesh.pipeline=2", "pipeline.micro_batches=3", "pipeline.schedule=interleaved"};
  ChildProcess first(
      joined(train_on(2), settings(folder, 32, joined(interleaved, {"pipeline.cut=[conv2, fc1, fc2]", "epochs=1"}))),
      clean());
  ASSERT_EQ(first.wait(), 0) << first.output();
  expect_mentions(first.output(), {"stage 0 of 4, until conv2", "stage 2 of 4, from fc1 on, until fc2"});
  ChildProcess second(
      joined(train_on(2),
             settings(folder, 32, joined({"resume=auto", "epochs=2"}, two_stages({"pipeline.schedule=1f1b"})))),
      clean());
  ASSERT_EQ(second.wait(), 0) << second.output();
  expect_same(log_of(folder / "runs/1"), trained_alone(other));
}

TEST(LaunchPipeline, OfTwoReplicasTrainsAsOneProcess) {
  ScratchFolder folder, other;
  ChildProcess stages(joined(train_on(4), settings(folder, 16, {"mesh.pipeline=2", "pipeline.micro_batches=2"})),
                      clean());
  ASSERT_EQ(stages.wait(), 0) << stages.output();
  expect_same(log_of(folder / "runs/1"), trained_alone(other));
}

// VGG-16 has 138 million parameters: a small net stands in, cut before its own classifier. Where VGG-16 itself is cut
// `inspect schedule` says (tests/train/command_line_test.cpp).
TEST(LaunchPipeline, TheVggGuidesFileTrainsAsOneProcess) {
  ScratchFolder folder, other;
  auto train = [](const ScratchFolder& where, const Words& more) {
    const Words guides{BONFIRE_PROGRAM, "train", BONFIRE_SOURCE_DIR "/configs/vgg16.yaml"};
    const Words small = settings(where, 16, {"image_size=28", "num_workers=1", "pipeline.cut=[fc1]"});
    ChildProcess run(joined(joined(guides, small), more), clean());
    EXPECT_EQ(run.wait(), 0) << run.output();
    return run.output();
  };
  expect_mentions(train(folder, {}), {"2 epochs of 13 steps of 16 images", "mesh: pipeline 2, 2 ranks",
                                      "stage 0 of 2, until fc1", "stage 1 of 2, from fc1 on"});
  train(other, {"num_gpus=1", "mesh.pipeline=1", "pipeline.micro_batches=auto", "pipeline.cut=auto"});
  expect_same(log_of(folder / "runs/1"), log_of(other / "runs/1"));
}

TEST(LaunchPipeline, ARunGoesOnAtAnotherMesh) {
  ScratchFolder folder, other;
  auto go_on = [&](const Words& program, const Words& more) {
    ChildProcess run(joined(program, settings(folder, 32, joined({"resume=auto"}, more))), clean());
    ASSERT_EQ(run.wait(), 0) << run.output();
  };
  ChildProcess first(joined(train_on(2), settings(folder, 32, two_stages({"epochs=1"}))), clean());
  ASSERT_EQ(first.wait(), 0) << first.output();
  go_on({BONFIRE_PROGRAM, "train"},
        {"epochs=2", "num_gpus=1", "mesh.pipeline=1", "pipeline.micro_batches=auto", "pipeline.cut=auto"});
  expect_same(log_of(folder / "runs/1"), trained_alone(other));
  go_on(train_on(2), joined({"epochs=3", "num_gpus=2"}, two_stages()));
  EXPECT_EQ(log_of(folder / "runs/1").losses.size(), 21U);
}

TEST(LaunchPipeline, RefusesWhatCannotBe) {
  ScratchFolder folder;
  auto error_of = [&](const Words& more) {
    ChildProcess run(joined(train_on(2), settings(folder, 32, joined({"mesh.pipeline=2"}, more))), clean());
    EXPECT_NE(run.wait(), 0);
    return run.output();
  };
  expect_mentions(
      error_of({"pipeline.cut=[conv3]"}),
      {"cut names 'conv3', and the step runs through no such module; there are conv1, conv2, fc1, fc2, fc3"});
  expect_mentions(error_of({"pipeline.cut=[conv1]"}), {"cut names 'conv1', with which the first stage would begin"});
  expect_mentions(error_of({"pipeline.cut=[conv2, fc1]"}), {"pipeline.cut names 2 modules, and mesh.pipeline is 2"});
  expect_mentions(error_of({"pipeline.micro_batches=64"}), {"pipeline.micro_batches is 64, and batch_size 32"});
}

}  // namespace
}  // namespace bonfire::launch::pipeline_test
