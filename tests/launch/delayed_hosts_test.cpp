// Two hosts whose link takes 20 ms each way: whoever fails first is named, not whoever loses it.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <memory>
#include <thread>

#include "bonfire/comm/gloo/gloo_group.h"
#include "tests/launch/relayed_job.h"
#include "tests/launch/trained.h"
#include "tests/support/expect_error.h"
#include "tests/support/scratch_folder.h"

namespace bonfire::launch::delayed_hosts_test {
namespace {

using namespace std::chrono_literals;
using testing::ChildProcess;
using testing::clean;
using testing::expect_mentions;
using testing::first_report;
using testing::joined;
using testing::launcher_of;
using testing::RelayedHosts;
using testing::RelayedJob;
using testing::ScratchFolder;
using testing::Words;

void expect_named(const RelayedHosts& hosts, const ScratchFolder& folder, int rank) {
  const std::string file = folder / std::to_string(rank);
  RelayedJob job(hosts, {.file = file, .fault = {std::to_string(rank), "9", "8", std::to_string(rank * 700)}});
  EXPECT_NE(job.zero->wait(), 0);
  EXPECT_NE(job.one->wait(), 0);
  for (const ChildProcess* node : {job.zero.get(), job.one.get()}) {
    SCOPED_TRACE(node->output());
    expect_mentions(first_report(node->output()), {fmt::format("rank {} (process", rank), "was killed by signal 9"});
  }
}

// At 200 ms news takes longer than a second.
TEST(DelayedHosts, TheRankThatWasKilledIsNamedOnBoth) {
  RelayedHosts hosts;
  if (!comm::has_gloo() || !hosts.ready()) GTEST_SKIP() << "needs Gloo, root, `ip netns` and /dev/net/tun";
  for (auto delay : {20ms, 200ms}) {
    hosts.link().delay(delay);
    ScratchFolder folder;
    for (int rank : {0, 3}) expect_named(hosts, folder, rank);
  }
}

// `bonfire train` on both, two ranks each.
std::unique_ptr<ChildProcess> training(const RelayedHosts& hosts, const char* number, const char* host,
                                       const ScratchFolder& folder) {
  Words words{BONFIRE_PROGRAM, "launch",    "--nnodes",         "2", "--node_rank", number,
              "--master_addr", "10.81.0.1", "--nproc_per_node", "2", "bonfire",     "train"};
  return std::make_unique<ChildProcess>(
      joined(hosts.inside(host), joined(words, testing::settings(folder, 8, {"epochs=1000", "eval_freq=1000"}))),
      clean({{"BONFIRE_TOKEN", "secret"}, {"BONFIRE_TEST", folder.path().string()}}));
}

TEST(DelayedHosts, ATrainingNamesTheRankThatWasKilled) {
  RelayedHosts hosts;
  if (!comm::has_gloo() || !hosts.ready()) GTEST_SKIP() << "needs Gloo, root, `ip netns` and /dev/net/tun";
  hosts.link().delay(20ms);
  for (int trial = 0; trial < 2; ++trial) {
    ScratchFolder folder;
    auto one = training(hosts, "1", "b", folder), zero = training(hosts, "0", "a", folder);
    EXPECT_NE(zero->read_line("step 3/"), "") << zero->output();
    std::this_thread::sleep_for(std::chrono::milliseconds(337 * trial));
    ::kill(testing::process_of_rank(2 * trial, folder.path().string()), SIGKILL);
    EXPECT_NE(zero->wait(), 0);
    EXPECT_NE(one->wait(), 0);
    for (const ChildProcess* node : {zero.get(), one.get()}) {
      SCOPED_TRACE(node->output());
      expect_mentions(first_report(node->output()),
                      {fmt::format("rank {} (process", 2 * trial), "was killed by signal 9"});
    }
  }
}

TEST(DelayedHosts, ALauncherThatWasKilledIsNamed) {
  RelayedHosts hosts;
  if (!comm::has_gloo() || !hosts.ready()) GTEST_SKIP() << "needs Gloo, root, `ip netns` and /dev/net/tun";
  hosts.link().delay(20ms);
  ScratchFolder folder;
  for (int part : {0, 2})  // the process that the user sees, and the one that has started the ranks
    for (int number : {0, 1}) {
      RelayedJob job(hosts, {.file = folder / fmt::format("{} {}", part, number)});
      EXPECT_NE(job.zero->read_line("training"), "") << job.zero->output();
      ChildProcess &killed = number == 0 ? *job.zero : *job.one, &left = number == 0 ? *job.one : *job.zero;
      ::kill(launcher_of(killed)[static_cast<size_t>(part)], SIGKILL);
      EXPECT_EQ(left.wait(), 1);
      SCOPED_TRACE(left.output());
      expect_mentions(first_report(left.output()), {number == 0 ? "node 0 is out of reach" : "node 1 (",
                                                    number == 0 ? "" : "its launcher has ended without a word"});
    }
}

}  // namespace
}  // namespace bonfire::launch::delayed_hosts_test
