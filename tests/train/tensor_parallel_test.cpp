// `bonfire train` with mesh.tensor, alone and in the stages of a pipeline: the losses of one rank, from a checkpoint on
// too, whatever mesh has saved it.
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>

#include "bonfire/nn/safetensors.h"
#include "bonfire/nn/tensor_files.h"
#include "bonfire/train/checkpoint/checkpoint.h"
#include "tests/support/scratch_folder.h"
#include "tests/train/as_ranks.h"
#include "tests/train/course.h"
#include "tests/train/digits.h"
#include "tests/train/program.h"

namespace bonfire::train::tensor_parallel_test {
namespace {

using bonfire::testing::ScratchFolder;
using Words = std::vector<std::string>;

class TensorParallel : public ::testing::Test {
 protected:
  TensorParallel() { setenv("BONFIRE_TUNE", "off", 1); }
  ~TensorParallel() override { unsetenv("BONFIRE_TUNE"); }

  // Ranks that share the samples out get parts of a batch of 16.
  Course train(int ranks, int tensor, const Words& more, const std::string& runs = "runs", int pipeline = 1) {
    Course course;
    course.errors = as_ranks(ranks, [&](int rank) {
      Words settings{"data=" + (folder_ / "digits").string(),
                     "output=" + (folder_ / runs).string(),
                     fmt::format("place=cpu:{}", rank),
                     fmt::format("batch_size={}", 16 * tensor * pipeline / ranks),
                     fmt::format("mesh.tensor={}", tensor),
                     fmt::format("mesh.pipeline={}", pipeline),
                     "model=mlp",
                     "num_workers=0",
                     "limit=96",
                     "log_freq=1",
                     "optimizer=adam",
                     "clip_grad_norm=0.5",
                     "lr=0.003"};
      settings.insert(settings.end(), more.begin(), more.end());
      Trainer trainer(default_config(settings));
      if (rank == 0) trainer.add(std::make_unique<Witness>(course, -1));
      trainer.run();
    });
    for (const std::string& error : course.errors) EXPECT_EQ(error, "");
    return course;
  }

  void SetUp() override { put_digits(folder_ / "digits"); }

  static void expect_same_losses(const Course& found, const Course& expected) {
    ASSERT_FALSE(expected.steps.empty());
    ASSERT_EQ(found.steps.size(), expected.steps.size());
    for (size_t i = 0; i < found.steps.size(); ++i)
      EXPECT_NEAR(found.steps[i].loss, expected.steps[i].loss, 1e-4 * expected.steps[i].loss) << "report " << i;
    EXPECT_NEAR(found.end.last_score, expected.end.last_score, 0.02);
  }

  static void expect_same_weights(const Course& found, const Course& expected) {
    const nn::TensorFiles a = open_tensors(found.end.weights), b = open_tensors(expected.end.weights);
    ASSERT_EQ(a.entries().size(), b.entries().size());
    for (size_t i = 0; i < a.entries().size(); ++i) {
      const auto &one = a.entries()[i], &other = b.entries()[i];
      ASSERT_EQ(one.name, other.name);
      ASSERT_EQ(one.shape, other.shape);
      const auto *x = reinterpret_cast<const float*>(one.bytes.data()),
                 *y = reinterpret_cast<const float*>(other.bytes.data());
      for (int64_t j = 0; j < one.shape.count(); ++j) ASSERT_NEAR(x[j], y[j], 1e-4) << one.name;
    }
  }

  ScratchFolder folder_;
};

TEST_F(TensorParallel, TrainsAsOneRankDoes) {
  const Words settings{"epochs=2", "ema_decay=0.9"};
  const Course one = train(1, 1, settings, "one"), two = train(2, 2, settings, "two"),
               four = train(4, 2, settings, "four");
  expect_same_losses(two, one);
  expect_same_losses(four, one);
  expect_same_weights(two, one);
  expect_same_weights(four, one);
  EXPECT_EQ(two.begin.mesh, "tensor 2");
  EXPECT_EQ(four.begin.mesh, "data 2 × tensor 2");
  EXPECT_EQ(four.begin.replicas, 2);
  EXPECT_EQ(two.end.samples, one.end.samples);
}

TEST_F(TensorParallel, GoesOnAtAnyOtherDegree) {
  const Course whole = train(1, 1, {"epochs=2"}, "whole");
  const Course begun = train(2, 2, {"epochs=1"}, "begun");
  for (int ranks : {1, 4}) {
    SCOPED_TRACE(fmt::format("{} ranks", ranks));
    const auto copy = folder_ / fmt::format("on {}", ranks);
    std::filesystem::copy(begun.end.weights.parent_path(), copy, std::filesystem::copy_options::recursive);
    Course course;
    course.errors = as_ranks(ranks, [&](int rank) {
      const Words settings{"resume=" + copy.string(), "epochs=2", fmt::format("place=cpu:{}", rank),
                           fmt::format("mesh.tensor={}", ranks)};
      Trainer trainer(default_config(settings));
      if (rank == 0) trainer.add(std::make_unique<Witness>(course, -1));
      trainer.run();
    });
    for (const std::string& error : course.errors) EXPECT_EQ(error, "");
    expect_same_weights(course, whole);
  }
}

const Words kStages{"pipeline.micro_batches=4", "pipeline.cut=[fc2]"};

Words with(Words words, const Words& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

TEST_F(TensorParallel, TrainsInStagesAsOneRankDoes) {
  const Course one = train(1, 1, {"epochs=2"}, "one");
  const Course four = train(4, 2, with(kStages, {"epochs=2", "pipeline.schedule=zero_bubble"}), "four", 2),
               eight = train(8, 2, {"epochs=2", "pipeline.micro_batches=2", "pipeline.cut=[fc2]"}, "eight", 2);
  for (const Course* other : {&four, &eight}) {
    expect_same_losses(*other, one);
    expect_same_weights(*other, one);
  }
  EXPECT_EQ(eight.begin.mesh, "data 2 × pipeline 2 × tensor 2");
  EXPECT_EQ(eight.begin.replicas, 2);
}

TEST_F(TensorParallel, GoesOnFromStagesAndInThem) {
  struct Ranks {
    int pipeline, tensor;
    int world() const { return pipeline * tensor; }
  };
  const Course whole = train(1, 1, {"epochs=3"}, "whole");
  train(4, 2, with(kStages, {"epochs=1"}), "begun", 2);
  auto go_on = [&](Ranks ranks, const Words& more) {
    Course course;
    course.errors = as_ranks(ranks.world(), [&](int rank) {
      Words settings{"resume=" + (folder_ / "begun/1").string(), fmt::format("place=cpu:{}", rank),
                     fmt::format("mesh.tensor={}", ranks.tensor), fmt::format("mesh.pipeline={}", ranks.pipeline)};
      Trainer trainer(default_config(with(settings, more)));
      if (rank == 0) trainer.add(std::make_unique<Witness>(course, -1));
      trainer.run();
    });
    for (const std::string& error : course.errors) EXPECT_EQ(error, "");
    return course;
  };
  go_on({1, 2}, {"epochs=2", "pipeline.micro_batches=auto", "pipeline.cut=auto"});
  expect_same_weights(go_on({2, 2}, with(kStages, {"epochs=3"})), whole);
}

// Logits are split by classes; the count of hits in the training steps wants them whole.
TEST_F(TensorParallel, ARunSaysWhichOpsGather) {
  auto gathers = [](const Course& course) {
    Words found;
    for (const std::string& note : course.notes)
      if (note.find("gather") != std::string::npos) found.push_back(note);
    return found;
  };
  const Words split{"epochs=1", "tensor.split.fc3.weight=0", "tensor.split.fc3.bias=0"};
  const std::string note = "ops that have no rule for parts, for which ranks along mesh.tensor gather: ";
  // Once, not with every step: 16 rows of 10 logits, of a micro-batch 4, f32.
  EXPECT_EQ(gathers(train(2, 2, split, "split")), Words{note + "top_k (640 bytes)"});
  EXPECT_EQ(gathers(train(4, 2, with(kStages, split), "stages", 2)), Words{note + "top_k (160 bytes)"});
  EXPECT_EQ(gathers(train(2, 2, {"epochs=1"}, "own")), Words{});
}

// The losses of a run's log.
std::vector<double> losses_in(const std::filesystem::path& run) {
  std::ifstream log(run / "metrics.jsonl");
  std::vector<double> losses;
  for (std::string line; std::getline(log, line);) {
    const nlohmann::json words = nlohmann::json::parse(line);
    if (words.at("event") == "step") losses.push_back(words.at("loss"));
  }
  return losses;
}

TEST_F(TensorParallel, ProcessesFromTheCommandLineTrainAsOneDoes) {
  auto run = [&](const std::string& name, int ranks, int tensor, int pipeline = 1) {
    bonfire::testing::Program program(
        {"train", "--nproc", std::to_string(ranks), fmt::format("mesh.tensor={}", tensor),
         "data=" + (folder_ / "digits").string(), "output=" + (folder_ / name).string(), "place=cpu",
         fmt::format("batch_size={}", 16 * tensor * pipeline / ranks), fmt::format("mesh.pipeline={}", pipeline),
         "model=mlp", "limit=96", "log_freq=1", "epochs=1", "strategy.cpu_threads=1"},
        folder_ / (name + ".txt"));
    EXPECT_EQ(program.wait(), 0) << program.output();
    return losses_in(folder_ / name / "1");
  };
  const std::vector<double> one = run("one", 1, 1);
  ASSERT_EQ(one.size(), 6U);
  for (const std::vector<double>& other : {run("two", 2, 2), run("four", 4, 2), run("stages", 4, 2, 2)}) {
    ASSERT_EQ(other.size(), one.size());
    for (size_t i = 0; i < one.size(); ++i) EXPECT_NEAR(other[i], one[i], 1e-4 * one[i]) << "step " << i + 1;
  }
}

TEST_F(TensorParallel, AMeshThatDoesNotFitSaysHowManyRanksWould) {
  const auto errors = as_ranks(3, [&](int rank) {
    Trainer trainer(
        default_config(Words{"data=" + (folder_ / "digits").string(), "output=" + (folder_ / "runs").string(),
                             fmt::format("place=cpu:{}", rank), "model=mlp", "mesh.tensor=2"}));
    trainer.run();
  });
  for (const std::string& error : errors)
    EXPECT_NE(error.find("3 ranks cannot be arranged as data ? × pipeline 1 × tensor 2: start a multiple of 2"),
              std::string::npos)
        << error;
}

}  // namespace
}  // namespace bonfire::train::tensor_parallel_test
