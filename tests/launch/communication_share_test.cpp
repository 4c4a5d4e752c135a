// How much of their time two processes wait for each other, when one of them is slow.

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/launch/launched.h"
#include "tests/launch/quota.h"
#include "tests/launch/trained.h"
#include "tests/support/expect_error.h"

namespace bonfire::launch::communication_share_test {
namespace {

using testing::ChildProcess;
using testing::clean;
using testing::expect_mentions;
using testing::joined;
using testing::process_of_rank;
using testing::Quota;
using testing::ScratchFolder;
using testing::settings;

std::string text_of(const std::filesystem::path& file) {
  std::ifstream stream(file);
  return {std::istreambuf_iterator<char>(stream), {}};
}

// [rank]: the mean over all reports but the first, which is of compiling.
std::vector<double> waits_in(const std::filesystem::path& log) {
  std::ifstream stream(log);
  std::vector<double> sums(2);
  int64_t reports = 0;
  for (std::string line; std::getline(stream, line);) {
    nlohmann::json event = nlohmann::json::parse(line);
    if (event.at("event") != "step" || event.at("step") == 1) continue;
    for (size_t rank = 0; rank < 2; ++rank) sums[rank] += event.at("communication_waits").at(rank).get<double>();
    ++reports;
  }
  for (double& sum : sums) sum /= static_cast<double>(reports);
  return sums;
}

TEST(LaunchCommunicationShare, OfTheFastRankIsLargeAndOfTheSlowOneSmall) {
  ScratchFolder folder;
  const std::string mark = folder.path().string();
  ChildProcess two(joined({BONFIRE_PROGRAM, "train", "--nproc", "2"},
                          settings(folder, 16, {"steps=60", "log_freq=10", "strategy.cpu_threads=1"})),
                   clean({{"BONFIRE_TEST", mark}}));
  EXPECT_NE(two.read_line("steps of"), "") << two.output();
  const int slow = process_of_rank(1, mark);
  ASSERT_GT(slow, 0);
  {
    Quota quota(slow, std::chrono::milliseconds(20));  // far slower than a busy machine makes the other
    ASSERT_EQ(two.wait(), 0) << two.output();
  }
  const std::vector<double> waits = waits_in(folder / "runs/1/metrics.jsonl");
  EXPECT_GT(waits[0], 0.15);  // more on a machine at rest, where nothing else slows the fast one down
  EXPECT_LT(waits[1], waits[0]);
  // 10 values are reduced, with the count of uses of each.
  expect_mentions(two.output(), {"note: a step moves 246.9 kB in ", "all-reduces, merged from 11", " % comm "});
  expect_mentions(
      text_of(folder / "runs/1/report.html"),
      {"Waiting for communication", "Rank 1 waits least: the others wait for it.", ">communication</text>"});
}

}  // namespace
}  // namespace bonfire::launch::communication_share_test
