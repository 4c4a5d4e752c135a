// `balance: auto` with processes of which one is slow.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <sstream>

#include "tests/launch/launched.h"
#include "tests/launch/quota.h"
#include "tests/launch/trained.h"
#include "tests/train/digits.h"

namespace bonfire::launch::balance_test {
namespace {

using testing::ChildProcess;
using testing::clean;
using testing::joined;
using testing::Log;
using testing::log_of;
using testing::process_of_rank;
using testing::Quota;
using testing::ScratchFolder;
using testing::Words;

constexpr int64_t kEqual = 8;           // samples of each of two ranks
constexpr int64_t kStepsPerEpoch = 30;  // of 16 samples, the last of 11

Words of_digits(const ScratchFolder& folder, int64_t batch_size, const Words& more) {
  return joined(
      {"place=cpu", "model=lenet", "lr=0.0002", "limit=475", "drop_last=false", "log_freq=1",
       train::data_of_digits(folder), "output=" + (folder / "runs").string(), fmt::format("batch_size={}", batch_size)},
      more);
}

Words on_two_ranks(const ScratchFolder& folder, const Words& more) {
  return joined({BONFIRE_PROGRAM, "launch", "--nproc_per_node", "2", "bonfire", "train", "balance=auto"},
                of_digits(folder, kEqual, more));
}

// "… the ranks train on 13, 3 of 16 images …"; empty: another line.
std::vector<int64_t> shares_in(const std::string& line) {
  const std::string before = "the ranks train on ";
  const size_t at = line.find(before);
  if (at == std::string::npos) return {};
  std::istringstream text(line.substr(at + before.size()));
  int64_t first = 0, second = 0;
  char comma = 0;
  text >> first >> comma >> second;
  return {first, second};
}

// Trains until the slow rank has less than its part of each batch, and some steps on; then it is interrupted. How many
// steps that were.
int64_t train_with_a_slow_rank(const ScratchFolder& folder) {
  ChildProcess two(on_two_ranks(folder, {"epochs=100"}), clean({{"BONFIRE_TEST", folder.path().string()}}));
  EXPECT_NE(two.read_line("epochs of"), "") << two.output();
  std::vector<int64_t> shares;
  {
    const int slow = process_of_rank(1, folder.path().string());
    EXPECT_GT(slow, 0);
    if (slow < 0) return 0;
    // Less than a busy machine leaves the other one, which it may hold up for a while all the same.
    Quota quota(slow, std::chrono::milliseconds(20));
    do {
      shares = shares_in(two.read_line("balance: from step"));
    } while (!shares.empty() && shares[0] <= shares[1]);
  }
  EXPECT_EQ(shares.size(), 2U) << two.output();
  if (shares.size() != 2) return 0;
  EXPECT_GT(shares[0], kEqual);
  EXPECT_LT(shares[1], kEqual);
  EXPECT_GE(shares[1], 1);
  EXPECT_EQ(shares[0] + shares[1], 2 * kEqual);
  for (int i = 0; i < 5; ++i) EXPECT_NE(two.read_line("step "), "") << two.output();
  two.signal(SIGINT);
  EXPECT_EQ(two.wait(), 130) << two.output();
  return static_cast<int64_t>(log_of(folder / "runs/1").losses.size());
}

// Where the newest checkpoint says that the run is: an epoch, and samples of all ranks in it.
std::pair<int64_t, int64_t> position_after(const ScratchFolder& folder, int64_t steps) {
  std::ifstream stream(folder / fmt::format("runs/1/checkpoints/step-{:08}/state.json", steps));
  const nlohmann::json loader = nlohmann::json::parse(stream).at("loader");
  return {loader.at("epoch"), loader.at("samples")};
}

// Each step's loss is of its own samples: one that was repeated or left out would show.
TEST(LaunchBalance, ASlowRankGetsLessAndTheCourseIsThatOfOneRankThroughAResume) {
  ScratchFolder folder;
  const int64_t steps = train_with_a_slow_rank(folder);
  ASSERT_GT(steps, 0);
  EXPECT_EQ(position_after(folder, steps), std::pair(steps / kStepsPerEpoch, steps % kStepsPerEpoch * 2 * kEqual));

  const std::string until = fmt::format("steps={}", steps + kStepsPerEpoch);
  ChildProcess resumed(on_two_ranks(folder, {until, "resume=auto"}), clean());
  ASSERT_EQ(resumed.wait(), 0) << resumed.output();
  ChildProcess alone(joined({BONFIRE_PROGRAM, "train"}, of_digits(folder, 2 * kEqual, {until})), clean());
  ASSERT_EQ(alone.wait(), 0) << alone.output();
  const Log found = log_of(folder / "runs/1"), expected = log_of(folder / "runs/2");
  ASSERT_EQ(found.losses.size(), expected.losses.size());
  for (const auto& [step, loss] : expected.losses) EXPECT_NEAR(found.losses.at(step), loss, 1e-5 * loss) << step;
  ASSERT_EQ(found.evaluations.size(), expected.evaluations.size());
  for (size_t i = 0; i < found.evaluations.size(); ++i) {
    const double loss = expected.evaluations[i].at("loss");
    EXPECT_NEAR(found.evaluations[i].at("loss").get<double>(), loss, 1e-5 * loss);
  }
}

}  // namespace
}  // namespace bonfire::launch::balance_test
