// What scores are of: runs that choose their best weights on samples they hold back, and runs that do not.

#include <gtest/gtest.h>

#include <fstream>
#include <thread>

#include "bonfire/comm/local/local_group.h"
#include "bonfire/parallel/fleet.h"
#include "bonfire/train/checkpoint/checkpoint.h"
#include "bonfire/train/trainer.h"
#include "tests/support/scratch_folder.h"
#include "tests/train/course.h"
#include "tests/train/digits.h"

namespace bonfire::train::validation_test {
namespace {

namespace fs = std::filesystem;
using bonfire::testing::ScratchFolder;
using Words = std::vector<std::string>;
using On = EvaluationReport::On;

Words settings(const ScratchFolder& folder, const Words& more) {
  Words all{data_of_digits(folder),
            "output=" + (folder / "runs").string(),
            "place=cpu",
            "model=lenet",
            "batch_size=32",
            "optimizer=adam",
            "lr=0.002",
            "epochs=3",
            "validation_share=0.25"};
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

Course train(const ScratchFolder& folder, const Words& more, int64_t stop_at = -1) {
  Course course;
  Trainer trainer(default_config(settings(folder, more)));
  trainer.add(std::make_unique<Witness>(course, stop_at));
  trainer.add(metrics_log());
  trainer.add(report_page());
  trainer.run();
  return course;
}

std::string text_of(const fs::path& file) {
  std::ifstream stream(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

std::vector<On> seen_on(const Course& course) {
  std::vector<On> all;
  for (const EvaluationReport& report : course.evaluations) all.push_back(report.on);
  return all;
}

TEST(Validation, ChoosesTheBestOnWhatIsHeldBackAndTestsItOnce) {
  ScratchFolder folder;
  Course course = train(folder, {});
  EXPECT_EQ(course.begin.train_samples + course.begin.validation_samples, 480);
  EXPECT_NEAR(static_cast<double>(course.begin.validation_samples), 120, 5);  // each class is rounded
  EXPECT_EQ(seen_on(course), (std::vector{On::validation, On::validation, On::validation, On::test}));
  double best = 0;
  for (const EvaluationReport& report : course.evaluations)
    if (report.on == On::validation) best = std::max(best, report.headline());
  EXPECT_EQ(course.end.best_score, best);
  EXPECT_EQ(course.end.last_score, course.evaluations[2].headline());
  EXPECT_EQ(course.end.test_score, course.evaluations[3].headline());
  EXPECT_EQ(Trainer(load_config(course.begin.folder / "config.yaml")).evaluate(course.end.weights).headline(),
            course.end.test_score);
  const std::string page = text_of(course.begin.folder / "report.html");
  for (const char* part : {"to validate, 41 to test", "on 41 test images, evaluated once, with the best weights",
                           "chosen on the validation images", ">validation</text>", "Test images"})
    EXPECT_NE(page.find(part), std::string::npos) << part;
}

// The rate grows until the model has forgotten all: the last weights are not the best.
TEST(Validation, TestsTheBestWeightsWhereTheyAreNotTheLastAndKeepsTheLast) {
  ScratchFolder folder, without;
  const Words worse{"milestones=[2]", "gamma=300"};
  Course course = train(folder, worse);
  ASSERT_GT(course.end.best_score, course.end.last_score + 0.1);
  EXPECT_EQ(Trainer(load_config(course.begin.folder / "config.yaml")).evaluate(course.end.weights).headline(),
            course.end.test_score);
  // The last weights are as if nobody had looked at the test data.
  Course longer = train(without, [&] {
    Words more = worse;
    more.insert(more.end(), {"epochs=4", "keep_last=4"});
    return more;
  }());
  EXPECT_EQ(text_of(weights_file(longer.begin.folder / "checkpoints" / course.end.checkpoint.filename())),
            text_of(weights_file(course.end.checkpoint)));
}

TEST(Validation, IsTheSameAfterAResumeAndTestsOnceThen) {
  ScratchFolder folder, other;
  Course expected = train(folder, {"log_freq=1"}), first = train(other, {"log_freq=1"}, 5);
  ASSERT_TRUE(first.end.interrupted);
  EXPECT_EQ(first.end.test_score, std::nullopt);
  Course second = train(other, {"log_freq=1", "resume=" + first.begin.folder.string()});
  EXPECT_EQ(seen_on(second), seen_on(expected));
  EXPECT_EQ(second.end.test_score, expected.end.test_score);
  EXPECT_EQ(second.end.best_score, expected.end.best_score);
  EXPECT_EQ(text_of(second.end.weights), text_of(expected.end.weights));
}

TEST(Validation, IsTheSameOnAnyNumberOfRanks) {
  ScratchFolder folder;
  Course one = train(folder, {"epochs=1", "drop_last=false"});
  auto groups = comm::local_groups(2, {.timeout = std::chrono::seconds(60)});
  Course two;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank)
    threads.emplace_back([&, rank] {
      fleet::join(groups[static_cast<size_t>(rank)]);
      Trainer trainer(default_config(
          settings(folder, {"epochs=1", "drop_last=false", "batch_size=16", "place=cpu:" + std::to_string(rank)})));
      trainer.add(std::make_unique<Witness>(two, -1));
      trainer.run();
      fleet::leave();
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(two.begin.validation_samples, one.begin.validation_samples);
  ASSERT_EQ(seen_on(two), (std::vector{On::validation, On::test}));
  auto labels = [](const EvaluationReport& report) {
    std::vector<int64_t> counts(10);
    for (size_t i = 0; i < report.confusion.size(); ++i) counts[i / 10] += report.confusion[i];
    return counts;
  };
  for (size_t i : {0, 1}) {
    EXPECT_EQ(labels(two.evaluations[i]), labels(one.evaluations[i]));
    EXPECT_NEAR(two.evaluations[i].loss, one.evaluations[i].loss, 0.02 * one.evaluations[i].loss);
  }
}

TEST(Intervals, EvaluationsAndCheckpointsMayComeInsideAnEpochAndChangeNothing) {
  ScratchFolder folder, other;
  const Words usual{"validation_share=0", "epochs=2", "keep_last=100"};  // of 15 steps
  Words often = usual;
  often.insert(often.end(), {"eval_freq=4 steps", "save_freq=7 steps"});
  Course expected = train(folder, usual), course = train(other, often);
  std::vector<int64_t> steps;
  for (const EvaluationReport& report : course.evaluations) {
    steps.push_back(report.step);
    EXPECT_EQ(report.ends_epoch, report.step % 15 == 0) << report.step;
  }
  EXPECT_EQ(steps, (std::vector<int64_t>{4, 8, 12, 16, 20, 24, 28, 30}));
  for (int64_t step : {7, 14, 21, 28, 30})
    EXPECT_TRUE(fs::exists(course.begin.folder / "checkpoints" / checkpoint_name(step))) << step;
  EXPECT_EQ(text_of(weights_file(course.end.checkpoint)), text_of(weights_file(expected.end.checkpoint)));
  EXPECT_NE(text_of(course.begin.folder / "config.yaml").find("eval_freq: 4 steps\nsave_freq: 7 steps\n"),
            std::string::npos);
}

TEST(Intervals, WaitForAnUpdateWhereGradientsAddUp) {
  ScratchFolder folder;
  Course course = train(folder, {"validation_share=0", "epochs=1", "eval_freq=5 steps", "strategy.accumulate_steps=3"});
  std::vector<int64_t> steps;
  for (const EvaluationReport& report : course.evaluations) steps.push_back(report.step);
  EXPECT_EQ(steps, (std::vector<int64_t>{6, 12, 15}));
}

// The first rank's clock is that of all: none waits for another.
TEST(Intervals, OfMinutesAreAgreedOnByAllRanks) {
  ScratchFolder folder;
  auto groups = comm::local_groups(2, {.timeout = std::chrono::seconds(60)});
  Course course;
  std::vector<std::thread> threads;
  data_of_digits(folder);
  for (int rank = 0; rank < 2; ++rank)
    threads.emplace_back([&, rank] {
      fleet::join(groups[static_cast<size_t>(rank)]);
      Trainer trainer(default_config(
          settings(folder, {"validation_share=0", "epochs=1", "batch_size=16", "eval_freq=0.000000001 min",
                            "save_freq=0.000000001 min", "keep_last=100", "place=cpu:" + std::to_string(rank)})));
      trainer.add(std::make_unique<Witness>(course, -1));
      trainer.run();
      fleet::leave();
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(course.evaluations.size(), 15U);  // each step takes longer than that
  EXPECT_TRUE(fs::exists(course.begin.folder / "checkpoints" / checkpoint_name(3)));
}

}  // namespace
}  // namespace bonfire::train::validation_test
