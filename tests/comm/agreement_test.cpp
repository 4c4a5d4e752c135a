// Ranks that are about to make different collectives say so, whatever they are connected by.
#include "bonfire/comm/agreement.h"

#include <gtest/gtest.h>

#include "bonfire/base/error.h"
#include "tests/comm/ranks.h"

namespace bonfire::testing::agreement_test {
namespace {

using comm::Sequence;

class LocalGroupAgreement : public ::testing::TestWithParam<Backend> {};
class GroupAgreement : public ::testing::TestWithParam<Backend> {
  void SetUp() override {
    if (!is_here(GetParam())) GTEST_SKIP() << "no " << name_of(GetParam()) << " here";
  }
};

// The error that a rank gets, "" for none.
std::string answer(Rank& rank, const Sequence& sequence) {
  try {
    comm::agree(*rank.group, sequence);
    return "";
  } catch (const CommError& error) {
    return error.what();
  }
}

void require_answer(Rank& rank, const Sequence& sequence, const std::string& expected) {
  std::string got = answer(rank, sequence);
  require(got == expected, "'" + got + "' instead of '" + expected + "'");
}

void compare_sequences(Backend backend) {
  expect_all_fine(run_ranks(backend, 3, [](Rank& rank) {
    const bool last = rank.rank() == 2;
    const Sequence usual{{{0, "mean of a (f32 [4])"}, {0, "mean of b (f32 [4])"}, {1, "mean of c (f32 [2])"}}};
    for (int step = 0; step < 3; ++step) require_answer(rank, usual, "");
    require_answer(rank, {}, "");
    Sequence other = usual;
    if (last) other.items[1].what = "mean of d (f32 [4])";
    require_answer(
        rank, other,
        "this step's collectives differ: rank 0 takes part in the mean of b (f32 [4]), rank 2 does not; rank "
        "2 takes part in the mean of d (f32 [4]), rank 0 does not: all ranks must go back through the same models");
    Sequence fewer = usual;
    if (last) fewer.items.clear();
    require_answer(rank, fewer,
                   "this step's collectives differ: rank 0 takes part in the mean of a (f32 [4]), mean of b (f32 [4]), "
                   "mean of c (f32 [2]), rank 2 does not: all ranks must go back through the same models");
    Sequence parted = usual;
    if (last) parted.items[1].call = 1;
    require_answer(rank, parted,
                   "this step's collectives differ: the ranks reduce the same values in another order or merged "
                   "otherwise: where rank 0 has the mean of b (f32 [4]) in collective 0, rank 2 has the mean of b (f32 "
                   "[4]) in collective 1; give all ranks the same model code and the same fuse options");
    require_answer(rank, usual, "");  // the group lives
    rank.group->barrier();
  }));
}

void compare_layouts(Backend backend) {
  expect_all_fine(run_ranks(backend, 3, [](Rank& rank) {
    Sequence sequence{.items = {{0, "mean of a (f32 [4, 4])"}}, .layouts = 7};
    require(comm::agree(*rank.group, sequence), "the layouts are the same");
    if (rank.rank() == 1) sequence.layouts = 8;
    require(!comm::agree(*rank.group, sequence), "rank 1 has another layout");
    rank.group->barrier();
  }));
}

TEST_P(LocalGroupAgreement, TellsWhetherOperandsLieAlike) { compare_layouts(GetParam()); }
TEST_P(GroupAgreement, TellsWhetherOperandsLieAlike) { compare_layouts(GetParam()); }

TEST_P(LocalGroupAgreement, NamesWhatDiffersOnWhichRank) { compare_sequences(GetParam()); }
TEST_P(GroupAgreement, NamesWhatDiffersOnWhichRank) { compare_sequences(GetParam()); }

std::string backend_name(const ::testing::TestParamInfo<Backend>& info) { return name_of(info.param); }

INSTANTIATE_TEST_SUITE_P(Agreement, LocalGroupAgreement, ::testing::Values(Backend::local, Backend::staged),
                         backend_name);
INSTANTIATE_TEST_SUITE_P(Agreement, GroupAgreement, ::testing::Values(Backend::shm, Backend::gloo, Backend::mpi),
                         backend_name);

}  // namespace
}  // namespace bonfire::testing::agreement_test
