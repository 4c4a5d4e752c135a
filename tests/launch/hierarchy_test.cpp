// Data parallel on two and three hosts, each with two ranks, over links of 1 Gbit/s: what leaves a host.
#include <gtest/gtest.h>

#include <memory>

#include "tests/launch/hosts.h"
#include "tests/support/expect_error.h"

namespace bonfire::launch::hierarchy_test {
namespace {

using testing::ChildProcess;
using testing::Hosts;
using testing::Launched;
using testing::ThreeHosts;
using testing::TwoHosts;
using testing::Words;

constexpr int kFew = 4, kMany = 24;  // steps; what else is sent, at the start and by the launchers, is in both
constexpr double kGradients = 4 * (1024 * 512 + 512);

struct Outcome {
  std::vector<double> bytes;  // that left each host
  std::string weights;        // as rank 0 tells
};

std::vector<double> bytes_sent(const Hosts& hosts) {
  std::vector<double> bytes;
  for (char host : hosts.names()) bytes.push_back(static_cast<double>(hosts.bytes_sent(host)));
  return bytes;
}

std::vector<double> difference(std::vector<double> more, const std::vector<double>& less) {
  for (size_t i = 0; i < more.size(); ++i) more[i] -= less[i];
  return more;
}

Outcome train(const Hosts& hosts, const char* how, int steps) {
  const std::string& names = hosts.names();
  const std::vector<double> before = bytes_sent(hosts);
  std::vector<std::unique_ptr<Launched>> nodes;
  for (size_t node = 0; node < names.size(); ++node)
    nodes.push_back(
        std::make_unique<Launched>(Words{"--nnodes", std::to_string(names.size()), "--node_rank", std::to_string(node),
                                         "--master_addr", "10.81.0.1", "--nproc_per_node", "2"},
                                   Words{how, std::to_string(steps)},
                                   ChildProcess::Variables{{"BONFIRE_TOKEN", "secret"}}, hosts.inside({names[node]})));
  std::string weights = nodes[0]->read_line("[rank 0] sum of weights");
  for (const auto& node : nodes) EXPECT_EQ(node->wait(), 0) << node->output();
  return {difference(bytes_sent(hosts), before), weights};
}

std::vector<double> bytes_of_steps(const Hosts& hosts, const char* how) {
  return difference(train(hosts, how, kMany).bytes, train(hosts, how, kFew).bytes);
}

TEST(LaunchHierarchy, OnlyTheLeastPossibleLeavesAHost) {
  TwoHosts hosts;
  if (!hosts.ready() || !hosts.slow_down()) GTEST_SKIP() << "network namespaces need root, `ip netns` and `tc`";
  const Outcome few = train(hosts, "hierarchical", kFew), many = train(hosts, "hierarchical", kMany);
  for (double bytes : difference(many.bytes, few.bytes)) {
    const double over_least = bytes / (kMany - kFew) / kGradients;  // 2 (H - 1) / H of them, with H = 2
    EXPECT_LT(over_least, 1.03);
    EXPECT_GT(over_least, 0.99);
  }
  EXPECT_EQ(many.weights, train(hosts, "train", kMany).weights);
  EXPECT_EQ(many.weights, train(hosts, "hierarchical2", kMany).weights);
}

TEST(LaunchHierarchy, LocalSgdSendsAsManyTimesLessFromEachOfThreeHosts) {
  ThreeHosts hosts;
  if (!hosts.ready() || !hosts.slow_down()) GTEST_SKIP() << "network namespaces need root, `ip`, `tc` and bridges";
  const std::vector<double> each_step = bytes_of_steps(hosts, "hierarchical"), rarely = bytes_of_steps(hosts, "local");
  for (size_t host = 0; host < each_step.size(); ++host) {
    const double over_least = each_step[host] / (kMany - kFew) / (4.0 / 3 * kGradients);
    const double of_synchronous = rarely[host] / each_step[host];
    RecordProperty("over_least_" + std::to_string(host), std::to_string(over_least));
    RecordProperty("of_synchronous_" + std::to_string(host), std::to_string(of_synchronous));
    EXPECT_LT(over_least, 1.03) << host;
    EXPECT_GT(over_least, 0.99) << host;
    EXPECT_LT(of_synchronous, 0.27) << host;  // with local_sgd_steps = 4
    EXPECT_GT(of_synchronous, 0.24) << host;
  }
}

}  // namespace
}  // namespace bonfire::launch::hierarchy_test
