// Data parallel on two hosts, each with two ranks: what leaves a host.
#include <gtest/gtest.h>

#include <memory>

#include "tests/launch/two_hosts.h"
#include "tests/support/expect_error.h"

namespace bonfire::launch {
namespace {

using testing::ChildProcess;
using testing::Launched;
using testing::TwoHosts;
using testing::Words;

struct Outcome {
  int64_t bytes;        // that left the first host
  std::string weights;  // as rank 0 tells
};

Outcome train(const TwoHosts& hosts, const char* how, int steps) {
  auto node = [&](const char* number, const char* host) {
    return std::make_unique<Launched>(
        Words{"--nnodes", "2", "--node_rank", number, "--master_addr", "10.81.0.1", "--nproc_per_node", "2"},
        Words{how, std::to_string(steps)}, ChildProcess::Variables{{"BONFIRE_TOKEN", "secret"}}, hosts.inside(host));
  };
  const int64_t before = hosts.bytes_sent();
  auto one = node("1", "b"), zero = node("0", "a");
  std::string weights = zero->read_line("[rank 0] sum of weights");
  EXPECT_EQ(zero->wait(), 0) << zero->output();
  EXPECT_EQ(one->wait(), 0) << one->output();
  return {hosts.bytes_sent() - before, weights};
}

TEST(LaunchHierarchy, OnlyTheLeastPossibleLeavesAHost) {
  TwoHosts hosts;
  if (!hosts.ready()) GTEST_SKIP() << "network namespaces need root and `ip netns`";
  constexpr int kFew = 2, kMany = 22;  // what else is sent, at the start and by the launchers, is in both
  constexpr double kGradients = 4 * (1024 * 512 + 512);
  const Outcome few = train(hosts, "hierarchical", kFew), many = train(hosts, "hierarchical", kMany);
  const double each_step = static_cast<double>(many.bytes - few.bytes) / (kMany - kFew);
  RecordProperty("bytes_over_least", std::to_string(each_step / kGradients));
  EXPECT_LT(each_step, 1.03 * kGradients);  // 2 (H - 1) / H of them, with H = 2
  EXPECT_GT(each_step, 0.99 * kGradients);
  EXPECT_EQ(many.weights, train(hosts, "train", kMany).weights);
  EXPECT_EQ(many.weights, train(hosts, "hierarchical2", kMany).weights);
}

}  // namespace
}  // namespace bonfire::launch
