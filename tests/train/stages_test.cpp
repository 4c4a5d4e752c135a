// `bonfire train` in stages, beside what else shapes a step: the losses, the evaluations and the weights of one rank,
// or of as many replicas of the whole model.
#include <gtest/gtest.h>

#include <cstdlib>

#include "bonfire/nn/tensor_files.h"
#include "bonfire/train/checkpoint/checkpoint.h"
#include "tests/support/scratch_folder.h"
#include "tests/train/as_ranks.h"
#include "tests/train/course.h"
#include "tests/train/digits.h"

namespace bonfire::train::stages_test {
namespace {

using bonfire::testing::ScratchFolder;
using Words = std::vector<std::string>;

class Stages : public ::testing::Test {
 protected:
  Stages() { setenv("BONFIRE_TUNE", "off", 1); }
  ~Stages() override { unsetenv("BONFIRE_TUNE"); }
  void SetUp() override { put_digits(folder_ / "digits"); }

  struct Arrangement {
    int replicas = 1, stages = 1;
  };

  // Replicas share out a batch of 24, micro-batches of stages have 4 rows; the last batch of an epoch is smaller.
  Course train(const Arrangement& on, const Words& more, const std::string& runs, int64_t stop_at = -1) {
    Course course;
    const int ranks = on.replicas * on.stages;
    course.errors = as_ranks(ranks, [&](int rank) {
      Words settings{"data=" + (folder_ / "digits").string(),
                     "output=" + (folder_ / runs).string(),
                     fmt::format("place=cpu:{}", rank),
                     fmt::format("batch_size={}", 24 / on.replicas),
                     fmt::format("mesh.pipeline={}", on.stages),
                     "model=lenet",
                     "num_workers=0",
                     "limit=90",
                     "drop_last=false",
                     "epochs=2",
                     "log_freq=1",
                     "lr=0.01"};
      if (on.stages > 1) {
        settings.push_back(fmt::format("pipeline.micro_batches={}", 24 / on.replicas / 4));
        settings.emplace_back("pipeline.cut=[conv2]");
      }
      settings.insert(settings.end(), more.begin(), more.end());
      Trainer trainer(default_config(settings));
      if (rank == 0) trainer.add(std::make_unique<Witness>(course, stop_at));
      trainer.run();
    });
    for (const std::string& error : course.errors) EXPECT_EQ(error, "");
    return course;
  }

  static void expect_same(const Course& found, const Course& expected, double tolerance = 1e-4) {
    ASSERT_FALSE(expected.steps.empty());
    ASSERT_EQ(found.steps.size(), expected.steps.size());
    for (size_t i = 0; i < found.steps.size(); ++i)
      EXPECT_NEAR(found.steps[i].loss, expected.steps[i].loss, tolerance * expected.steps[i].loss) << "report " << i;
    ASSERT_EQ(found.evaluations.size(), expected.evaluations.size());
    for (size_t i = 0; i < found.evaluations.size(); ++i)
      EXPECT_NEAR(found.evaluations[i].loss, expected.evaluations[i].loss, tolerance * expected.evaluations[i].loss)
          << "evaluation " << i;
    expect_same_values(open_tensors(found.end.weights), open_tensors(expected.end.weights), 10 * tolerance);
  }

  static void expect_same_values(const nn::TensorFiles& found, const nn::TensorFiles& expected, double tolerance) {
    for (const nn::TensorEntry& one : expected.entries()) {
      const std::vector<std::byte> mine = found.read(one.name, Slice(one.shape)),
                                   other = expected.read(one.name, Slice(one.shape));
      const auto *x = reinterpret_cast<const float*>(mine.data()), *y = reinterpret_cast<const float*>(other.data());
      for (int64_t j = 0; j < one.shape.count(); ++j) ASSERT_NEAR(x[j], y[j], tolerance) << one.name;
    }
  }

  ScratchFolder folder_;
};

// What is evaluated and saved as the best is the mean, of which each stage has its part.
TEST_F(Stages, EachKeepsTheMeanOfItsWeights) {
  const Words settings{"ema_decay=0.9", "lr=0.05"};
  const Course one = train({}, settings, "one"), plain = train({}, {"lr=0.05"}, "plain");
  expect_same(train({.stages = 2}, settings, "stages"), one);
  expect_same(train({.replicas = 2, .stages = 2}, settings, "mesh"), one);
  // By more than stages and one rank may differ.
  EXPECT_GT(std::abs(plain.evaluations[1].loss - one.evaluations[1].loss), 2e-4 * one.evaluations[1].loss);
}

TEST_F(Stages, AddUpTheGradientsOfSeveralBatches) {
  const Words settings{"strategy.accumulate_steps=2", "clip_grad_norm=0.5", "ema_decay=0.9"};
  const Course one = train({}, settings, "one");
  for (const char* schedule : {"gpipe", "zero_bubble"}) {
    Words staged = settings;
    staged.push_back(std::string("pipeline.schedule=") + schedule);
    expect_same(train({.stages = 2}, staged, schedule), one);
  }
  expect_same(train({.replicas = 2, .stages = 2}, settings, "mesh"), one);
}

// Each reads its part for itself, from a file that may be another one on another host.
TEST_F(Stages, ThatWouldBeginWithOtherWeightsAreNamed) {
  const std::string first = train({}, {"epochs=1"}, "first").end.weights.string(),
                    second = train({}, {"epochs=1", "seed=7"}, "second").end.weights.string();
  const auto errors_with = [&](const std::string& of_first, const std::string& of_second) {
    return as_ranks(2, [&](int rank) {
      Words settings{"data=" + (folder_ / "digits").string(),
                     "output=" + (folder_ / "mixed").string(),
                     fmt::format("place=cpu:{}", rank),
                     "batch_size=24",
                     "mesh.pipeline=2",
                     "pipeline.micro_batches=2",
                     "pipeline.cut=[conv2]",
                     "model=lenet",
                     "limit=48",
                     "epochs=1"};
      const std::string& from = rank == 0 ? of_first : of_second;
      if (!from.empty()) settings.push_back("init_from=" + from);
      Trainer trainer(default_config(settings));
      trainer.run();
    });
  };
  for (const std::string& error : errors_with(first, first)) EXPECT_EQ(error, "");
  for (const std::string& other : {second, std::string()})
    for (const std::string& error : errors_with(first, other))
      EXPECT_NE(error.find("the ranks differ: init_from is"), std::string::npos) << error;
}

TEST_F(Stages, OfReplicasThatTrainOnTheirOwnAreAveragedStageByStage) {
  const Words settings{"strategy.use_local_sgd=true", "strategy.local_sgd_steps=3", "optimizer=adam", "lr=0.002",
                       "ema_decay=0.9"};
  const Course whole = train({.replicas = 2}, settings, "whole");
  expect_same(train({.replicas = 2, .stages = 2}, settings, "stages"), whole);
  const Course together = train({.replicas = 2}, {"optimizer=adam", "lr=0.002", "ema_decay=0.9"}, "together");
  EXPECT_GT(std::abs(together.steps[3].loss - whole.steps[3].loss), 1e-5);
}

TEST_F(Stages, InMixedPrecisionDifferByItsRoundingAlone) {
  const Words settings{"strategy.use_amp=true"};
  const Course one = train({}, settings, "one");
  expect_same(train({.stages = 2}, settings, "stages"), one, 0.01);
  expect_same(train({.replicas = 2, .stages = 2}, settings, "mesh"), one, 0.01);
}

TEST_F(Stages, GoOnWithTheirMeansAtAnyOtherMesh) {
  const Words settings{"ema_decay=0.9", "strategy.accumulate_steps=2"};
  const Course whole = train({}, settings, "whole");
  const Course begun = train({.stages = 2}, settings, "begun", 4);
  EXPECT_TRUE(begun.end.interrupted);
  for (const Arrangement& on : {Arrangement{}, {.stages = 2}, {.replicas = 2, .stages = 2}}) {
    const std::string name = fmt::format("{} {}", on.replicas, on.stages);
    std::filesystem::copy(folder_ / "begun", folder_ / name, std::filesystem::copy_options::recursive);
    Words more = settings;
    more.emplace_back("resume=auto");
    if (on.stages == 1) {
      more.emplace_back("pipeline.micro_batches=auto");
      more.emplace_back("pipeline.cut=auto");
    }
    const Course second = train(on, more, name);
    for (const char* file : {"weights", "average"}) {
      SCOPED_TRACE(file);
      auto in = [&](const Course& course) {
        return open_tensors(file == std::string("weights") ? weights_file(course.end.checkpoint)
                                                           : average_file(course.end.checkpoint));
      };
      expect_same_values(in(second), in(whole), 1e-4);
    }
  }
}

}  // namespace
}  // namespace bonfire::train::stages_test
