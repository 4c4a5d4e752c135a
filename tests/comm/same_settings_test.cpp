// Ranks with different settings say so, whatever they are connected by.
#include "bonfire/comm/same_settings.h"

#include <gtest/gtest.h>

#include "bonfire/base/error.h"
#include "tests/comm/ranks.h"

namespace bonfire::testing::same_settings_test {
namespace {

using comm::Settings;

class LocalGroupSettings : public ::testing::TestWithParam<Backend> {};
class GroupSettings : public ::testing::TestWithParam<Backend> {
  void SetUp() override {
    if (!is_here(GetParam())) GTEST_SKIP() << "no " << name_of(GetParam()) << " here";
  }
};

void require_answer(Rank& rank, const std::string& what, const Settings& settings, const std::string& expected) {
  std::string got;
  try {
    comm::require_same(*rank.group, what, settings);
  } catch (const ConfigError& error) {
    got = error.what();
  }
  require(got == expected, "'" + got + "' instead of '" + expected + "'");
}

// Lists of other lengths, too: what goes round is of the same size all the same.
void compare(Backend backend) {
  expect_all_fine(run_ranks(backend, 3, [](Rank& rank) {
    const bool is_last = rank.rank() == 2;
    require_answer(rank, "train", {{"lr", "0.1"}, {"seed", "1"}}, "");
    require_answer(rank, "train",
                   {{"lr", is_last ? "0.2" : "0.1"}, {"seed", "1"}, {"model", rank.rank() == 0 ? "a" : "b"}},
                   "[train] the ranks differ: lr is 0.1 on ranks 0 and 1 and 0.2 on rank 2, model is a on rank 0 and b "
                   "on ranks 1 and 2; give all ranks the same");
    require_answer(rank, "train", is_last ? Settings{} : Settings{{"a long key", std::string(1000, 'x')}},
                   "[train] the ranks differ: a long key is " + std::string(1000, 'x') +
                       " on ranks 0 and 1 and not there on rank 2; give all ranks the same");
    require_answer(
        rank, is_last ? "model" : "optimizer", {{"lr", "0.1"}},
        std::string(is_last ? "[model]" : "[optimizer]") +
            " the ranks are at different places: the call is optimizer on ranks 0 and 1 and model on rank 2; "
            "all ranks must make the same calls");
    require_answer(rank, "train", {{"lr", "0.1"}}, "");  // the group lives
    rank.group->barrier();
  }));
}

TEST_P(LocalGroupSettings, NameKeysValuesAndRanks) { compare(GetParam()); }
TEST_P(GroupSettings, NameKeysValuesAndRanks) { compare(GetParam()); }

std::string backend_name(const ::testing::TestParamInfo<Backend>& info) { return name_of(info.param); }
INSTANTIATE_TEST_SUITE_P(Of, LocalGroupSettings, ::testing::Values(Backend::local, Backend::staged), backend_name);
INSTANTIATE_TEST_SUITE_P(Of, GroupSettings, ::testing::Values(Backend::shm, Backend::gloo, Backend::mpi), backend_name);

TEST(SettingsOfRanks, AreNamedUpToAStatedNumber) {
  std::vector<Settings> of_ranks(2);
  for (int i = 0; i < 11; ++i) {
    of_ranks[0].emplace_back("key" + std::to_string(i), "a");
    of_ranks[1].emplace_back("key" + std::to_string(i), i == 0 ? "a" : "b");
  }
  const std::string text = comm::difference_in_words(of_ranks);
  EXPECT_EQ(text.find("key1 is a on rank 0 and b on rank 1, key2"), 0U) << text;
  EXPECT_NE(text.find("key8 is a on rank 0 and b on rank 1, and 2 more differ"), std::string::npos) << text;
  EXPECT_EQ(comm::difference_in_words(std::vector<Settings>(3, of_ranks[0])), "");
  EXPECT_EQ(comm::decode_settings(comm::encode(of_ranks[0])), of_ranks[0]);
}

}  // namespace
}  // namespace bonfire::testing::same_settings_test
