#include "bonfire/train/report/time_left.h"

#include <gtest/gtest.h>

namespace bonfire::train::time_left_test {
namespace {

using Doing = Progress::Doing;

const RunBegins kRun{.folder = {},
                     .model = "m",
                     .data = "d",
                     .place = "cpu:0",
                     .test_samples = 60,
                     .epochs = 2,
                     .steps_per_epoch = 50,
                     .total_steps = 100,
                     .batch_size = 10,
                     .steps_between_evaluations = 50};

Progress at(Doing doing, int64_t step, double compiling) {
  return {.doing = doing, .epoch = 1, .step = step, .done = step % 50, .all = 50, .seconds_compiling = compiling};
}

// A first step of 30 seconds, the others of one; an evaluation has 6 batches.
TEST(TimeLeft, CountsNoSecondThatWasSpentCompiling) {
  TimeLeft time(kRun);
  time.note(at(Doing::compiling, 0, 0), 100);
  EXPECT_FALSE(time.left(110));
  time.note(at(Doing::training, 1, 29), 130);
  EXPECT_FALSE(time.left(130));
  for (int i = 2; i <= 10; ++i) time.note(at(Doing::training, i, 29), 129 + i);
  ASSERT_TRUE(time.left(139));
  EXPECT_NEAR(*time.left(139), 90 + 2 * 6.0 / 3, 1e-9);
  EXPECT_NEAR(*time.left(139.5), *time.left(139) - 0.5, 1e-9);  // it moves between the steps too
  // A batch of another size is compiled, in 8 seconds.
  time.note(at(Doing::training, 11, 37), 148);
  EXPECT_NEAR(*time.left(148), 89 + 4, 1e-9);
}

TEST(TimeLeft, CountsEvaluationsAndCheckpointsThatWillCome) {
  TimeLeft time(kRun);
  double now = 0;
  time.note(at(Doing::compiling, 0, 0), now);
  for (int i = 1; i <= 49; ++i) time.note(at(Doing::training, i, 0), ++now);
  EXPECT_NEAR(*time.left(now), 51 + 4, 1e-9);
  Progress end_of_epoch = at(Doing::training, 50, 0);
  end_of_epoch.done = 50;
  time.note(end_of_epoch, ++now);
  EXPECT_NEAR(*time.left(now), 50 + 4, 1e-9);
  time.note(at(Doing::evaluating, 50, 0), now);
  time.note(at(Doing::evaluating, 50, 4), now += 10);  // of which 4 are compiling
  EXPECT_NEAR(*time.left(now), 50 + 2, 1e-9);          // it takes longer than was expected of it
  time.note(at(Doing::saving, 50, 4), now += 2);
  time.note(at(Doing::training, 50, 4), now += 1);
  EXPECT_NEAR(*time.left(now), 50 + 9, 1e-9);
}

}  // namespace
}  // namespace bonfire::train::time_left_test
