// `bonfire train` with strategy.sharding: the losses and the weights of plain data parallel, from a checkpoint on too,
// whatever number of ranks and whatever level has saved it.
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>

#include "bonfire/nn/safetensors.h"
#include "bonfire/nn/tensor_files.h"
#include "bonfire/train/checkpoint/checkpoint.h"
#include "tests/support/scratch_folder.h"
#include "tests/train/as_ranks.h"
#include "tests/train/course.h"
#include "tests/train/digits.h"
#include "tests/train/program.h"

namespace bonfire::train::sharded_run_test {
namespace {

using bonfire::testing::ScratchFolder;
using Words = std::vector<std::string>;

constexpr int kBatch = 16;  // of all ranks
constexpr const char* kLevels[] = {"optimizer", "gradients", "parameters"};

class ShardedRun : public ::testing::Test {
 protected:
  ShardedRun() { setenv("BONFIRE_TUNE", "off", 1); }
  ~ShardedRun() override { unsetenv("BONFIRE_TUNE"); }
  void SetUp() override { put_digits(folder_ / "digits"); }

  Course train(int ranks, const std::string& level, const std::string& runs, const Words& more = {},
               int64_t stop_at = -1) {
    return run(ranks,
               {"data=" + (folder_ / "digits").string(), "output=" + (folder_ / runs).string(),
                fmt::format("batch_size={}", kBatch / ranks), "model=mlp", "num_workers=0", "limit=96", "log_freq=1",
                "optimizer=adam", "lr=0.003", "epochs=3", "strategy.sharding=" + level},
               more, stop_at);
  }

  // From what `from` has saved.
  Course go_on(int ranks, const std::string& level, const std::string& from, const Words& more = {}) {
    const auto copy = folder_ / fmt::format("{} to {} {}", from, ranks, level);
    std::filesystem::copy(folder_ / from / "1", copy, std::filesystem::copy_options::recursive);
    return run(ranks, {"resume=" + copy.string(), "strategy.sharding=" + level}, more, -1);
  }

  static Course run(int ranks, const Words& settings, const Words& more, int64_t stop_at) {
    Course course;
    course.errors = as_ranks(ranks, [&](int rank) {
      Words own = settings;
      own.push_back(fmt::format("place=cpu:{}", rank));
      own.insert(own.end(), more.begin(), more.end());
      Trainer trainer(default_config(own));
      if (rank == 0) trainer.add(std::make_unique<Witness>(course, stop_at));
      trainer.run();
    });
    for (const std::string& error : course.errors) EXPECT_EQ(error, "");
    return course;
  }

  static void expect_same_weights(const Course& found, const Course& expected, float tolerance) {
    const nn::TensorFiles a = open_tensors(found.end.weights), b = open_tensors(expected.end.weights);
    ASSERT_FALSE(b.entries().empty());
    ASSERT_EQ(a.entries().size(), b.entries().size());
    for (size_t i = 0; i < a.entries().size(); ++i) {
      const auto &one = a.entries()[i], &other = b.entries()[i];
      ASSERT_EQ(one.name, other.name);
      ASSERT_EQ(one.shape, other.shape);
      const auto *x = reinterpret_cast<const float*>(one.bytes.data()),
                 *y = reinterpret_cast<const float*>(other.bytes.data());
      for (int64_t j = 0; j < one.shape.count(); ++j) {
        if (tolerance == 0)
          ASSERT_EQ(x[j], y[j]) << one.name;
        else
          ASSERT_NEAR(x[j], y[j], tolerance) << one.name;
      }
    }
  }

  static void expect_same_losses(const Course& found, const Course& expected) {
    ASSERT_FALSE(expected.steps.empty());
    ASSERT_EQ(found.steps.size(), expected.steps.size());
    for (size_t i = 0; i < found.steps.size(); ++i) EXPECT_EQ(found.steps[i].loss, expected.steps[i].loss) << i;
    EXPECT_EQ(found.end.last_score, expected.end.last_score);
  }

  ScratchFolder folder_;
};

TEST_F(ShardedRun, OfEachLevelIsThatOfPlainDataParallel) {
  const Words more{"ema_decay=0.9", "check_replicas=2"};
  const Course plain = train(2, "off", "plain", more);
  for (const char* level : kLevels) {
    SCOPED_TRACE(level);
    const Course shared = train(2, level, level, more);
    expect_same_losses(shared, plain);
    expect_same_weights(shared, plain, 0);
  }
}

// The best weights, of which ranks read their parts, are evaluated once more on the test data.
TEST_F(ShardedRun, ChoosesTheBestOnHeldBackSamples) {
  const Words more{"validation_share=0.2", "eval_freq=4 steps", "lr=0.03"};
  const Course plain = train(2, "off", "plain", more);
  for (const char* level : kLevels) {
    SCOPED_TRACE(level);
    const Course shared = train(2, level, level, more);
    EXPECT_EQ(shared.end.test_score, plain.end.test_score);
    ASSERT_EQ(shared.evaluations.size(), plain.evaluations.size());
    for (size_t i = 0; i < plain.evaluations.size(); ++i)
      EXPECT_EQ(shared.evaluations[i].loss, plain.evaluations[i].loss) << i;
  }
}

TEST_F(ShardedRun, SaysWhatAStepMoves) {
  auto moved = [](const Course& course) {
    for (const std::string& note : course.notes)
      if (note.starts_with("a step moves")) return note;
    return std::string();
  };
  EXPECT_NE(moved(train(2, "gradients", "gradients")).find("reduce-scatter"), std::string::npos);
  EXPECT_NE(moved(train(2, "parameters", "parameters")).find("gather"), std::string::npos);
}

// Each of four ranks reads its parts of what two have written, and the other way round, and one all of it.
TEST_F(ShardedRun, GoesOnAtAnyNumberOfRanksAndAtAnyLevel) {
  const Course whole = train(2, "off", "whole");
  for (const char* level : kLevels) {
    SCOPED_TRACE(level);
    train(2, level, level, {}, 9);  // inside the second epoch
    expect_same_weights(go_on(2, level, level), whole, 0);
  }
  for (const char* level : {"off", "optimizer"}) {
    SCOPED_TRACE(fmt::format("from parameters to {}", level));
    expect_same_weights(go_on(2, level, "parameters"), whole, 0);
  }
  // Batches are of the same samples, and their sums are added in another order.
  for (const auto& [ranks, level] : {std::pair(4, "parameters"), std::pair(4, "optimizer"), std::pair(1, "off")}) {
    SCOPED_TRACE(fmt::format("from gradients to {} ranks with {}", ranks, level));
    expect_same_weights(go_on(ranks, level, "gradients", {fmt::format("batch_size={}", kBatch / ranks)}), whole, 1e-4F);
  }
}

TEST_F(ShardedRun, WithAccumulationIsThatOfPlainDataParallel) {
  const Words more{"strategy.accumulate_steps=2", "clip_grad_norm=0.5", "optimizer=lamb"};
  const Course plain = train(2, "off", "plain", more);
  for (const char* level : kLevels) {
    SCOPED_TRACE(level);
    expect_same_weights(train(2, level, level, more), plain, 1e-4F);
  }
}

// Threads of one process.
TEST_F(ShardedRun, OnTheDevicesOfAProcessIsThatOfPlainDataParallel) {
  auto on_devices = [&](const std::string& level) {
    Course course;
    Trainer trainer(
        default_config(Words{"data=" + (folder_ / "digits").string(), "output=" + (folder_ / level).string(),
                             "place=cpu:0,cpu:1", fmt::format("batch_size={}", kBatch), "model=mlp", "num_workers=0",
                             "limit=96", "optimizer=adam", "lr=0.003", "epochs=2", "strategy.sharding=" + level}));
    trainer.add(std::make_unique<Witness>(course, -1));
    trainer.run();
    return course;
  };
  const Course plain = on_devices("off");
  for (const char* level : kLevels) {
    SCOPED_TRACE(level);
    expect_same_weights(on_devices(level), plain, 0);
  }
}

TEST_F(ShardedRun, ThatCannotBeSaysWhy) {
  auto errors_of = [&](int ranks, const Words& more) {
    return as_ranks(ranks, [&](int rank) {
      Words settings{"data=" + (folder_ / "digits").string(), "output=" + (folder_ / "refused").string(),
                     fmt::format("place=cpu:{}", rank), "model=mlp"};
      settings.insert(settings.end(), more.begin(), more.end());
      Trainer trainer(default_config(settings));
      trainer.run();
    });
  };
  for (const std::string& error : errors_of(2, {"strategy.sharding=optimizer", "strategy.use_local_sgd=true"}))
    EXPECT_NE(error.find("sharding shares out one update among all ranks"), std::string::npos) << error;
  for (const std::string& error : errors_of(2, {"strategy.sharding=optimizer", "mesh.tensor=2"}))
    EXPECT_NE(error.find("strategy.sharding"), std::string::npos) << error;
}

TEST_F(ShardedRun, ProcessesFromTheCommandLineTrainAsWithCopies) {
  auto weights_of = [&](const std::string& level) {
    bonfire::testing::Program program(
        {"train", "--nproc", "2", "data=" + (folder_ / "digits").string(), "output=" + (folder_ / level).string(),
         "place=cpu", "batch_size=8", "model=mlp", "limit=96", "epochs=1", "strategy.cpu_threads=1", "optimizer=adam",
         "strategy.sharding=" + level},
        folder_ / (level + ".txt"));
    EXPECT_EQ(program.wait(), 0) << program.output();
    Course course;
    course.end.weights = folder_ / level / "1/best.safetensors";
    return course;
  };
  const Course plain = weights_of("off");
  for (const char* level : kLevels) {
    SCOPED_TRACE(level);
    expect_same_weights(weights_of(level), plain, 0);
  }
}

}  // namespace
}  // namespace bonfire::train::sharded_run_test
