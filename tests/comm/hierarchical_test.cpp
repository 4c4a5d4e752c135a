#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <thread>

#include "bonfire/comm/hierarchical_group.h"
#include "bonfire/comm/local/local_group.h"
#include "tests/comm/conformance.h"

namespace bonfire::comm::hierarchical_test {
namespace {

using Groups = std::vector<std::shared_ptr<Group>>;

// Runs the body in a thread for each rank, hosts[h] of them on host h; what the threads threw.
std::vector<std::string> run_on_hosts(const std::vector<int>& hosts, const std::function<void(testing::Rank&)>& body) {
  LocalOptions options{.timeout = std::chrono::seconds(30), .staged = true};  // memory of others is not seen, as across
  int ranks = 0;
  for (int count : hosts) ranks += count;
  Groups world = local_groups(ranks, options), host;
  for (int count : hosts)
    for (const std::shared_ptr<Group>& group : local_groups(count, {.timeout = options.timeout})) host.push_back(group);
  std::vector<std::string> endings(static_cast<size_t>(ranks));
  testing::Counters counters{};
  std::vector<std::thread> threads;
  for (size_t r = 0; r < endings.size(); ++r)
    threads.emplace_back([&, r] {
      try {
        testing::Rank rank{hierarchical_group(world[r], host[r]), counters};
        body(rank);
      } catch (const std::exception& error) {
        endings[r] = error.what();
      }
    });
  for (std::thread& thread : threads) thread.join();
  return endings;
}

class LocalGroupHierarchy : public ::testing::TestWithParam<std::vector<int>> {};

TEST_P(LocalGroupHierarchy, KeepsTheContract) {
  testing::expect_all_fine(run_on_hosts(GetParam(), [](testing::Rank& rank) {
    for (testing::Memory memory : {testing::Memory::own, testing::Memory::buffer})
      check_collectives(rank, memory, false);
    check_equal_bits(rank);
    check_split(rank);
    check_refusals(rank);
  }));
}

// Shares that ranks carry across, and a rest that goes through one of them.
TEST_P(LocalGroupHierarchy, ReducesLargeValuesOfEveryLength) {
  testing::expect_all_fine(run_on_hosts(GetParam(), [](testing::Rank& rank) {
    for (size_t count : {20'000, 20'001, 20'002, 20'003}) {
      std::vector<double> sum(count), mean(count);
      for (size_t i = 0; i < count; ++i) sum[i] = mean[i] = static_cast<double>(i) * (rank.rank() + 1);
      std::vector<int64_t> most(count, -1);
      for (size_t i = 0; i < count; ++i)
        if (i % static_cast<size_t>(rank.size()) == static_cast<size_t>(rank.rank())) most[i] = static_cast<int64_t>(i);
      rank.group->all_reduce({sum.data(), count, DType::f64}, Reduce::sum);
      rank.group->all_reduce({mean.data(), count, DType::f64}, Reduce::mean);
      rank.group->all_reduce({most.data(), count, DType::i64}, Reduce::max);
      const double all = rank.size() * (rank.size() + 1) / 2.0;
      for (size_t i = 0; i < count; ++i) {
        const auto number = static_cast<double>(i);
        testing::require(sum[i] == number * all, fmt::format("sum of element {} of {}", i, count));
        testing::require(std::abs(mean[i] - number * all / rank.size()) <= 1e-12 * number, "mean");
        testing::require(most[i] == static_cast<int64_t>(i), "maximum");
      }
    }
  }));
}

INSTANTIATE_TEST_SUITE_P(Conformance, LocalGroupHierarchy,
                         ::testing::Values(std::vector{1}, std::vector{2}, std::vector{1, 1}, std::vector{2, 2},
                                           std::vector{3, 1}, std::vector{2, 2, 2}, std::vector{3, 3}),
                         [](const auto& info) {
                           std::string name = "hosts_of";
                           for (int ranks : info.param) name += "_" + std::to_string(ranks);
                           return name;
                         });

TEST(LocalGroupHierarchyFaults, ARankThatFailsOnOneHostIsNoticedOnAll) {
  std::vector<std::string> endings = run_on_hosts({2, 2}, [](testing::Rank& rank) {
    std::vector<float> values(100'000, 1);
    if (rank.rank() == 3) {
      rank.group->abort("rank 3 has had enough");
      throw std::runtime_error("left");
    }
    rank.group->all_reduce({values.data(), values.size(), DType::f32}, Reduce::sum);
  });
  for (size_t r = 0; r < 3; ++r) EXPECT_NE(endings[r].find("rank 3 has had enough"), std::string::npos) << endings[r];
}

}  // namespace
}  // namespace bonfire::comm::hierarchical_test
