#include "bonfire/optim/schedule.h"

#include <gtest/gtest.h>

#include "bonfire/base/error.h"
#include "tests/support/expect_error.h"

namespace bonfire::optim::schedule_test {
namespace {

TEST(Schedule, MovesInFractionsOfAnEpoch) {
  Schedule schedule{.kind = ScheduleKind::polynomial, .lr = 1, .total_steps = 10, .warmup_steps = 2};
  EXPECT_DOUBLE_EQ(schedule.at(0), 0);
  EXPECT_DOUBLE_EQ(schedule.at(0.5), 0.25);
  EXPECT_DOUBLE_EQ(schedule.at(2), 1);
  EXPECT_DOUBLE_EQ(schedule.at(2.5), 0.95);
}

TEST(Schedule, StaysAtItsEnd) {
  Schedule schedule{.kind = ScheduleKind::cosine, .lr = 1, .total_steps = 10, .min_lr = 0.125};
  EXPECT_DOUBLE_EQ(schedule.at(10), 0.125);
  EXPECT_DOUBLE_EQ(schedule.at(17), 0.125);
}

TEST(Schedule, DropsAtAMilestoneAndNotBefore) {
  Schedule schedule{.kind = ScheduleKind::multi_step, .lr = 1, .milestones = {3, 5}, .gamma = 0.5};
  EXPECT_DOUBLE_EQ(schedule.at(2.99), 1);
  EXPECT_DOUBLE_EQ(schedule.at(3), 0.5);
  EXPECT_DOUBLE_EQ(schedule.at(5), 0.25);
}

TEST(Schedule, SaysWhatIsWrong) {
  EXPECT_ERROR(parse_schedule_kind("cosin"), ConfigError, "'cosine'");
  EXPECT_ERROR((Schedule{.kind = ScheduleKind::cosine}.at(1)), ConfigError, "total_steps is 0");
  EXPECT_ERROR((Schedule{.lr = -1}.at(1)), ConfigError, "lr -1");
  auto rate = [](const std::vector<double>& milestones) {
    return Schedule{.kind = ScheduleKind::multi_step, .milestones = milestones, .warmup_steps = 2}.at(0);
  };
  EXPECT_ERROR(rate({}), ConfigError, "multi_step has no milestones");
  EXPECT_ERROR(rate({60, 30}), ConfigError, "milestones are 60 and then 30, expected each to be later");
  EXPECT_ERROR(rate({30, 30}), ConfigError, "milestones are 30 and then 30");
}

}  // namespace
}  // namespace bonfire::optim::schedule_test
