// Trainers as ranks of one run, each a thread with a device of its own. (tests/launch/train_test.cpp has processes.)

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <numeric>

#include "bonfire/base/error.h"
#include "bonfire/parallel/fleet.h"
#include "bonfire/train/checkpoint/checkpoint.h"
#include "bonfire/train/trainer.h"
#include "tests/support/scratch_folder.h"
#include "tests/train/as_ranks.h"
#include "tests/train/course.h"
#include "tests/train/digits.h"

namespace bonfire::train::ranks_test {
namespace {

namespace fs = std::filesystem;
using bonfire::testing::ScratchFolder;
using Words = std::vector<std::string>;

struct Plan {
  int ranks = 1;
  Words settings = {};
  int64_t stop_at = -1;
  std::function<Words(int rank)> own = {};  // settings of one rank only
};

Course train(const ScratchFolder& folder, const Plan& plan) {
  const std::string data = data_of_digits(folder);
  Course course;
  course.errors = as_ranks(plan.ranks, [&](int rank) {
    Words settings{data,
                   "output=" + (folder / "runs").string(),
                   "place=cpu:" + std::to_string(rank),
                   "model=lenet",
                   "lr=0.005",
                   "epochs=2",
                   "log_freq=1"};
    settings.insert(settings.end(), plan.settings.begin(), plan.settings.end());
    if (plan.own) {
      Words own = plan.own(rank);
      settings.insert(settings.end(), own.begin(), own.end());
    }
    Trainer trainer(default_config(settings));
    trainer.add(std::make_unique<Witness>(course, plan.stop_at));
    trainer.add(metrics_log());
    trainer.run();
  });
  return course;
}

Course train_well(const ScratchFolder& folder, const Plan& plan) {
  Course course = train(folder, plan);
  for (const std::string& error : course.errors) EXPECT_EQ(error, "");
  EXPECT_EQ(course.told, 1);
  return course;
}

Words with(Words settings, const Words& more) {
  settings.insert(settings.end(), more.begin(), more.end());
  return settings;
}

// Of the steps that both have. A ReLU net's losses drift apart by rounding, so only few steps at a small rate.
void expect_same_losses(const Course& found, const Course& expected, double tolerance) {
  for (const StepReport& report : found.steps) {
    ASSERT_LE(report.step, static_cast<int64_t>(expected.steps.size()));
    const StepReport& other = expected.steps[static_cast<size_t>(report.step - 1)];
    EXPECT_NEAR(report.loss, other.loss, tolerance * other.loss) << "step " << report.step;
    EXPECT_EQ(report.lr, other.lr) << "step " << report.step;
    EXPECT_EQ(report.epoch, other.epoch) << "step " << report.step;
  }
}

// How often each class was a label.
std::vector<int64_t> labels_in(const EvaluationReport& report) {
  std::vector<int64_t> counts;
  for (size_t row = 0; row < 10; ++row)
    counts.push_back(std::accumulate(report.confusion.begin() + static_cast<int64_t>(10 * row),
                                     report.confusion.begin() + static_cast<int64_t>(10 * row + 10), int64_t{0}));
  return counts;
}

void expect_same_evaluations(const Course& found, const Course& expected) {
  ASSERT_EQ(found.evaluations.size(), expected.evaluations.size());
  for (size_t i = 0; i < found.evaluations.size(); ++i) {
    const EvaluationReport &one = found.evaluations[i], &other = expected.evaluations[i];
    EXPECT_NEAR(one.loss, other.loss, 1e-3 * other.loss);
    EXPECT_NEAR(one.headline(), other.headline(), 1.5 / 41);  // one of the 41 images may be a tie
    EXPECT_EQ(labels_in(one), labels_in(other));
    for (const Prediction& kept : one.predictions) EXPECT_EQ(kept.image.bytes.size(), 28U * 28);
  }
}

std::string note_with(const Course& course, const std::string& text) {
  for (const std::string& note : course.notes)
    if (note.find(text) != std::string::npos) return note;
  return {};
}

// The fifth batch of each epoch has 2 or 3 samples: of 3 ranks, one has none of 2; of 2 ranks, one has two of 3.
TEST(TrainerRanks, TrainAsOneDoesOnTheWholeBatchAndItsLastSamples) {
  for (const char* limit : {"limit=194", "limit=195"}) {
    ScratchFolder folder;
    Words settings{limit, "drop_last=false", "schedule=cosine", "ema_decay=0.9", "lr=0.05"};
    Course whole = train_well(folder, {.settings = with(settings, {"batch_size=48"})});
    EXPECT_EQ(whole.steps.size(), 10U);
    for (int ranks : {2, 3}) {
      Words own{"batch_size=" + std::to_string(48 / ranks)};
      Course parts = train_well(folder, {.ranks = ranks, .settings = with(settings, own)});
      EXPECT_EQ(parts.begin.ranks, ranks);
      ASSERT_EQ(parts.steps.size(), 10U);
      expect_same_losses(parts, whole, 1e-5);
      expect_same_evaluations(parts, whole);
    }
  }
}

// The second batch has one sample: of 2 ranks one has none. The evaluation sees what it has changed.
TEST(TrainerRanks, SyncBatchNormCountsNoStandIns) {
  ScratchFolder folder;
  Words settings{"model=resnet18_small",          "image_size=16", "limit=5", "drop_last=false",
                 "strategy.sync_batch_norm=true", "epochs=1",      "lr=0.001"};
  Course whole = train_well(folder, {.settings = with(settings, {"batch_size=4"})});
  ASSERT_EQ(whole.steps.size(), 2U);
  Course parts = train_well(folder, {.ranks = 2, .settings = with(settings, {"batch_size=2"})});
  ASSERT_EQ(parts.steps.size(), 2U);
  expect_same_losses(parts, whole, 1e-4);
  const double expected = whole.evaluations.at(0).loss;
  EXPECT_NEAR(parts.evaluations.at(0).loss, expected, 1e-4 * expected);
}

// Updates of 2, 2 and 1 batches an epoch, the last of 3 samples.
TEST(TrainerRanks, AccumulateAsOneDoes) {
  ScratchFolder folder;
  Words settings{"limit=195", "drop_last=false", "strategy.accumulate_steps=2", "lr=0.05"};
  Course whole = train_well(folder, {.settings = with(settings, {"batch_size=48"})});
  Course parts = train_well(folder, {.ranks = 2, .settings = with(settings, {"batch_size=24"})});
  ASSERT_EQ(parts.steps.size(), 10U);
  expect_same_losses(parts, whole, 1e-5);
}

// Sequences differ in how many of their words are asked for (ends of lines never are), and BERT has dropout.
TEST(TrainerRanks, TrainOnTextAsOneDoes) {
  ScratchFolder folder;
  std::string line, short_lines;
  for (int i = 0; i < 80; ++i) line += i % 3 == 0 ? "red fire " : "blue sky ";
  for (int i = 0; i < 90; ++i) short_lines += "now\n";
  folder.put("vocab.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nred\nfire\nblue\nsky\nnow\n");
  folder.put("train.txt", line + "\n" + short_lines);
  folder.put("test.txt", line + "\n");
  Words settings{"data=" + folder.path().string(),
                 "model=bert_mini",
                 "seq_length=16",
                 "drop_last=false",
                 "epochs=1",
                 "limit=22",
                 "lr=0.02"};
  Course whole = train_well(folder, {.settings = with(settings, {"batch_size=6"})});
  Course parts = train_well(folder, {.ranks = 3, .settings = with(settings, {"batch_size=2"})});
  ASSERT_EQ(parts.steps.size(), 4U);
  expect_same_losses(parts, whole, 1e-5);
  EXPECT_NEAR(parts.evaluations[0].loss, whole.evaluations[0].loss, 1e-4 * whole.evaluations[0].loss);
  // Of 512 rows of 256 f32 16 positions are looked up, and each has a number of 8 bytes.
  const std::string note = note_with(parts, "gradients of embeddings are reduced dense: ");
  for (const char* part : {"word_embeddings 10.2 kB (a layer shares the table and fills every row)",
                           "position_embeddings 524.3 kB (its rows would be 16.5 kB from each rank)"})
    EXPECT_NE(note.find(part), std::string::npos) << note;
}

// LeNet has ten parameters; beside them goes a number for each, whether it was used.
TEST(TrainerRanks, SayWhatAStepMovesMergedAndNot) {
  ScratchFolder folder;
  Words settings{"model=lenet", "limit=64", "batch_size=16", "epochs=1"};
  Course merged = train_well(folder, {.ranks = 2, .settings = settings});
  EXPECT_EQ(note_with(merged, "a step moves").substr(0, 25), "a step moves 246.9 kB in ");
  EXPECT_NE(note_with(merged, "a step moves").find(" all-reduces, merged from 11"), std::string::npos);
  EXPECT_EQ(note_with(merged, "in 11 all-reduces"), "");
  Course single = train_well(folder, {.ranks = 2, .settings = with(settings, {"strategy.fuse_all_reduce_ops=false"})});
  EXPECT_EQ(note_with(single, "a step moves"), "a step moves 246.9 kB in 11 all-reduces, merged from 11");
  Course alone = train_well(folder, {.settings = settings});
  EXPECT_EQ(note_with(alone, "moves"), "");
}

TEST(TrainerRanks, BatchNormGoesByTheFirstRanksStatisticsInEvaluation) {
  ScratchFolder folder;
  Course parts = train_well(folder, {.ranks = 2,
                                     .settings = {"model=resnet18_small", "image_size=8", "limit=16", "batch_size=8",
                                                  "drop_last=false", "epochs=1", "optimizer=sgd"}});
  ASSERT_EQ(parts.evaluations.size(), 1U);
  // What was saved is what was evaluated.
  Config config = load_config(parts.begin.folder / "config.yaml", Words{"place=cpu"});
  EvaluationReport report = Trainer(config).evaluate(parts.end.weights);
  EXPECT_NEAR(report.loss, parts.evaluations[0].loss, 1e-5 * report.loss);
  EXPECT_EQ(std::accumulate(parts.evaluations[0].confusion.begin(), parts.evaluations[0].confusion.end(), int64_t{0}),
            41);
}

// Stops, and goes on with another number of ranks.
void expect_resumed_elsewhere(int first_ranks, int second_ranks, const Words& more) {
  ScratchFolder folder, other;
  Words settings = with({"limit=200", "drop_last=false", "schedule=cosine", "clip_grad_norm=1"}, more);
  auto batch = [](int ranks) { return Words{"batch_size=" + std::to_string(48 / ranks)}; };
  Course whole = train_well(folder, {.settings = with(settings, batch(1))});
  Course first =
      train_well(other, {.ranks = first_ranks, .settings = with(settings, batch(first_ranks)), .stop_at = 7});
  ASSERT_TRUE(first.end.interrupted);
  fs::path run = first.begin.folder;
  Course second = train_well(other, {.ranks = second_ranks,
                                     .settings = with(settings, batch(second_ranks)),
                                     .own = [&](int rank) {  // only the first rank has the disk
                                       return Words{"resume=" + (rank == 0 ? run : fs::path("/absent/run")).string()};
                                     }});
  EXPECT_EQ(second.begin.folder, run);
  ASSERT_FALSE(second.steps.empty());
  EXPECT_EQ(second.steps.front().step, first.steps.back().step + 1);
  EXPECT_EQ(second.steps.back().step, 10);
  expect_same_losses(first, whole, 1e-5);
  expect_same_losses(second, whole, 1e-5);
}

TEST(TrainerRanks, ACheckpointOfTwoIsTakenUpByOne) { expect_resumed_elsewhere(2, 1, {}); }
TEST(TrainerRanks, ACheckpointOfOneIsTakenUpByThree) {
  expect_resumed_elsewhere(1, 3, {"ema_decay=0.9", "optimizer=adam", "lr=0.001"});
}

// 480 samples twice. After 4 steps of 48, in steps of 24: what was left of the first epoch and the second, each once.
TEST(TrainerRanks, ResumedWithOtherBatchesNoSampleIsRepeatedOrLeftOut) {
  ScratchFolder folder;
  Words settings{"limit=480", "drop_last=false", "batch_size=24"};
  Course first = train_well(folder, {.ranks = 2, .settings = settings, .stop_at = 3});
  int64_t done = first.steps.back().step;
  Course second = train_well(folder, {.settings = with(settings, {"resume=" + first.begin.folder.string()})});
  EXPECT_EQ(second.begin.first_step, done);
  EXPECT_EQ(second.begin.total_steps, done + (960 - 48 * done) / 24);
  EXPECT_EQ(second.steps.back().step, second.begin.total_steps);
  EXPECT_EQ(second.evaluations.size(), 2U);
}

TEST(TrainerRanks, LocalSgdOfOneStepTrainsAsSynchronousRanksDo) {
  ScratchFolder folder;
  Words settings{"limit=192", "batch_size=24", "optimizer=sgd", "lr=0.05"};
  Course together = train_well(folder, {.ranks = 2, .settings = settings});
  Course alone = train_well(
      folder, {.ranks = 2, .settings = with(settings, {"strategy.use_local_sgd=true", "strategy.local_sgd_steps=1"})});
  ASSERT_EQ(alone.steps.size(), together.steps.size());
  expect_same_losses(alone, together, 1e-5);
}

// Averages fall into the middle of epochs; at their ends comes one besides, momentum and running means included.
TEST(TrainerRanks, LocalSgdIsTakenUpToTheSameBits) {
  ScratchFolder folder;
  Words settings{"limit=240",
                 "batch_size=24",
                 "lr=0.05",
                 "ema_decay=0.9",
                 "strategy.use_local_sgd=true",
                 "strategy.local_sgd_steps=3",
                 "strategy.local_sgd_is_warm_steps=1"};
  Course whole = train_well(folder, {.ranks = 2, .settings = with(settings, {"epochs=3"})});
  Course first = train_well(folder, {.ranks = 2, .settings = with(settings, {"epochs=2"})});
  Course second = train_well(
      folder, {.ranks = 2, .settings = with(settings, {"epochs=3", "resume=" + first.begin.folder.string()})});
  ASSERT_EQ(whole.steps.size(), 15U);
  ASSERT_EQ(second.steps.size(), 5U);
  for (size_t i = 0; i < 5; ++i) EXPECT_EQ(second.steps[i].loss, whole.steps[10 + i].loss) << "step " << 11 + i;
  EXPECT_EQ(second.evaluations.back().loss, whole.evaluations.back().loss);
}

TEST(TrainerRanks, SayWhatDoesNotFitTogether) {
  ScratchFolder folder;
  Course sizes = train(folder, {.ranks = 2, .settings = {"limit=64"}, .own = [](int rank) {
                                  return Words{"batch_size=" + std::to_string(16 + rank)};
                                }});
  for (const std::string& error : sizes.errors)
    EXPECT_EQ(error, "[train] the ranks differ: batch_size is 16 on rank 0 and 17 on rank 1; give all ranks the same");
  Course balances = train(folder, {.ranks = 2, .settings = {"limit=64"}, .own = [](int rank) {
                                     return Words{rank == 0 ? "balance=auto" : "balance=equal"};
                                   }});
  for (const std::string& error : balances.errors)
    EXPECT_EQ(
        error,
        "[train] the ranks differ: balance is \"auto\" on rank 0 and \"equal\" on rank 1; give all ranks the same");
  Course single = train(folder, {.ranks = 2, .settings = {"balance=auto", "batch_size=1"}});
  EXPECT_EQ(single.errors[1],
            "[balance] with 1 sample a rank no rank can have fewer than another; use a larger batch_size, or leave "
            "balance: auto out");
  Course local = train(folder, {.ranks = 2, .settings = {"balance=auto", "strategy.use_local_sgd=true"}});
  EXPECT_NE(local.errors[0].find("strategy.use_local_sgd each rank has a gradient of its own; leave one of them out"),
            std::string::npos)
      << local.errors[0];
  Course alone = train(folder, {.settings = {"num_gpus=2"}});
  EXPECT_EQ(alone.errors[0], "[train] num_gpus is 2, and this process is alone; start 2 with: bonfire train --nproc 2");
  Course nccl = train(folder, {.ranks = 2, .settings = {"backend=nccl"}});
  EXPECT_EQ(nccl.errors[1], "[config] backend: nccl is not available yet; leave it out");
  EXPECT_FALSE(fs::exists(folder / "runs"));
}

}  // namespace
}  // namespace bonfire::train::ranks_test
