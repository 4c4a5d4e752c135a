// The tuning record is rank 0's.
#include <gtest/gtest.h>

#include "bonfire/runtime/tuning.h"
#include "tests/comm/ranks.h"

namespace bonfire::testing::shared_tuning_test {
namespace {

TEST(SharedTuning, IsRankZeros) {
  expect_all_fine(run_ranks(Backend::shm, 3, [](Rank& rank) {
    std::string mine = R"({"times": {"relu {} f32[4] cpu/1 this": {"plain": 1)" + std::to_string(rank.rank()) + "}}}";
    runtime::set_tuning_record(mine);
    runtime::share_tuning(*rank.group);
    std::string record = runtime::tuning_record();
    require(record.find(R"("plain":10.0)") != std::string::npos, record);
    rank.group->barrier();
  }));
}

}  // namespace
}  // namespace bonfire::testing::shared_tuning_test
