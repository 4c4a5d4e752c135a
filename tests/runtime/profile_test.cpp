#include "bonfire/runtime/profile.h"

#include <gtest/gtest.h>

#include "bonfire/graph/trace.h"
#include "bonfire/ops/creation.h"
#include "bonfire/ops/matmul.h"
#include "bonfire/runtime/plan_cache.h"

namespace bonfire::runtime::profile_test {
namespace {

TEST(Profile, NotesEveryNodeOncePerSubmissionAndOnlyWhileAsked) {
  Tensor a = zeros({8, 16}), b = zeros({16, 4});
  commit();
  clear_plan_cache();
  auto step = [&] { matmul(a, b).to_vector<double>(); };
  step();
  std::shared_ptr<Plan> plan = cached_plans().back();
  EXPECT_TRUE(profile_of(*plan).empty());
  start_profile(*plan);
  step();
  step();
  std::vector<NodeTime> times = profile_of(*plan);
  ASSERT_EQ(times.size(), plan->programs[0].program->steps.size());
  EXPECT_EQ(plan->programs[0].program->times->seconds.size(), 2U);
  bool product = false;
  for (const NodeTime& time : times) {
    EXPECT_GT(time.seconds, 0);
    if (time.note->node != "matmul") continue;
    product = true;
    EXPECT_EQ(time.note->operations, 2.0 * 8 * 16 * 4);
    EXPECT_EQ(time.note->bytes, 4.0 * (8 * 16 + 16 * 4 + 8 * 4));
  }
  EXPECT_TRUE(product);
  EXPECT_NE(print_profile(*plan).find("1x  matmul (gemm)"), std::string::npos);  // with its rounding error
  stop_profile(*plan);
  step();
  EXPECT_TRUE(profile_of(*plan).empty());
}

}  // namespace
}  // namespace bonfire::runtime::profile_test
