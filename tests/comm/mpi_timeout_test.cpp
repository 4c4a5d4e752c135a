// MPI's own calls wait for ever; ours do not.
#include <gtest/gtest.h>

#include "bonfire/base/error.h"
#include "bonfire/comm/mpi/mpi_group.h"
#include "tests/comm/ranks.h"

namespace bonfire::testing::mpi_timeout_test {
namespace {

using namespace std::chrono_literals;

class MpiTimeout : public ::testing::Test {
  void SetUp() override {
    if (!is_here(Backend::mpi)) GTEST_SKIP() << "no MPI here";
  }
};

// Ranks 0 and 1 are told within the timeout that rank 2 does not come; it stays where it is until then.
void expect_named(const std::function<void(Rank&)>& early, const std::function<void(Rank&)>& late) {
  auto endings = run_ranks(
      Backend::mpi, 3,
      [&](Rank& rank) {
        rank.group->barrier();
        if (rank.rank() == 2) {
          late(rank);
          return rank.wait_for(0, 2);
        }
        try {
          early(rank);
        } catch (const Error&) {  // one may hear from the other, which noticed first
          ++rank.counters[0];
          throw;
        }
      },
      2s);
  for (size_t r : {0, 1}) {
    EXPECT_NE(endings[r].find(" waited 2 s for rank 2"), std::string::npos) << endings[r];
  }
  EXPECT_EQ(endings[2], "");
}

TEST_F(MpiTimeout, ARankThatDoesNotComeToASplitIsNamed) {
  expect_named([](Rank& rank) { rank.group->split(0); }, [](Rank&) {});
}

// It gives its colour, as split() does first, and then nothing.
TEST_F(MpiTimeout, ARankThatStopsHalfwayThroughASplitIsNamed) {
  expect_named([](Rank& rank) { rank.group->split(0); },
               [](Rank& rank) {
                 int colour = 0, colours[3] = {};
                 rank.group->all_gather({&colour, 1, DType::i32}, {colours, 3, DType::i32});
               });
}

TEST_F(MpiTimeout, ARankThatMakesNoGroupIsNamed) {
  expect_named([](Rank&) { comm::mpi_group({.timeout = 2s}); }, [](Rank&) {});
}

// Groups of groups, of which some ranks have made more than others, do not mix up their messages.
TEST_F(MpiTimeout, GroupsThatWereSplitUnequallyOftenStayApart) {
  expect_all_fine(run_ranks(Backend::mpi, 4, [](Rank& rank) {
    auto half = rank.group->split(rank.rank() / 2), other = rank.group->split(rank.rank() % 2);
    if (rank.rank() < 2) half = half->split(0)->split(0);
    auto again = comm::mpi_group();
    auto all = rank.group->split(0);
    for (int i = 0; i < 20; ++i)
      for (auto& [group, expected] :
           {std::pair{half, rank.rank() < 2 ? 1 : 5}, std::pair{other, rank.rank() % 2 == 0 ? 2 : 4},
            std::pair{again, 6}, std::pair{all, 6}}) {
        int sum = rank.rank();
        group->all_reduce({&sum, 1, DType::i32}, comm::Reduce::sum);
        require(sum == expected, "a sum of " + std::to_string(sum) + ", expected " + std::to_string(expected));
      }
    rank.group->barrier();
  }));
}

}  // namespace
}  // namespace bonfire::testing::mpi_timeout_test
