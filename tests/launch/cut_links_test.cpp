// Links between hosts that are out for a while, or for good: --node_timeout of node 0 decides, for launchers and ranks.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <thread>

#include "bonfire/comm/gloo/gloo_group.h"
#include "tests/launch/relayed_job.h"
#include "tests/support/expect_error.h"
#include "tests/support/scratch_folder.h"

namespace bonfire::launch::cut_links_test {
namespace {

using namespace std::chrono_literals;
using testing::expect_mentions;
using testing::first_report;
using testing::launcher_of;
using testing::RelayedHosts;
using testing::RelayedJob;
using testing::ScratchFolder;
using testing::weights_of;

TEST(CutLinks, ALinkThatIsOutForLessThanTheTimeoutChangesNothing) {
  RelayedHosts hosts;
  if (!comm::has_gloo() || !hosts.ready()) GTEST_SKIP() << "needs Gloo, root, `ip netns` and /dev/net/tun";
  ScratchFolder folder;
  RelayedJob whole(hosts, {.file = folder / "whole"});
  EXPECT_EQ(whole.zero->wait(), 0) << whole.zero->output();
  EXPECT_EQ(whole.one->wait(), 0) << whole.one->output();
  const std::string weights = weights_of(whole.zero->output());
  EXPECT_NE(weights, "");

  // Longer than any other time-out: of ranks without a heartbeat (8 s), and node 1's own.
  RelayedJob job(hosts,
                 {.file = folder / "cut", .of_zero = {"--node_timeout", "30"}, .of_one = {"--node_timeout", "2"}});
  EXPECT_NE(job.zero->read_line("training"), "") << job.zero->output();
  hosts.link().cut();
  std::this_thread::sleep_for(12s);
  hosts.link().mend();
  EXPECT_EQ(job.zero->wait(), 0) << job.zero->output();
  EXPECT_EQ(job.one->wait(), 0) << job.one->output();
  EXPECT_EQ(weights_of(job.zero->output()), weights);
  expect_mentions(job.zero->output(), {"node 1 (", ") has been silent for 3.", "it counts as lost after 30 s",
                                       ") is heard again; it was silent for 1"});
  expect_mentions(job.one->output(), {"node 0 (10.81.0.1) answers again; it was silent for 1"});
}

TEST(CutLinks, ALinkThatIsOutForLongerEndsTheJobOnBothAndTheySayHowLongItWas) {
  RelayedHosts hosts;
  if (!comm::has_gloo() || !hosts.ready()) GTEST_SKIP() << "needs Gloo, root, `ip netns` and /dev/net/tun";
  ScratchFolder folder;
  RelayedJob job(hosts, {.file = folder / "cut", .of_zero = {"--node_timeout", "11"}});
  EXPECT_NE(job.zero->read_line("training"), "") << job.zero->output();
  hosts.link().cut();
  EXPECT_NE(job.zero->wait(), 0);
  EXPECT_NE(job.one->wait(), 0);
  expect_mentions(first_report(job.zero->output()), {"node 1 (", ") is lost: its launcher has said nothing for 11."});
  expect_mentions(first_report(job.one->output()), {"node 0 is out of reach: ", "nothing came from it for 1"});
  for (const std::string& output : {job.zero->output(), job.one->output()})
    EXPECT_EQ(output.find("silent for 4"), std::string::npos) << output;
}

// While the link is out, and just after it, node 0 hears nothing of the other launcher's end: its own ranks, which lose
// their peers first, are not to blame.
TEST(CutLinks, ALauncherThatIsKilledJustAfterTheLinkWasOutIsNamed) {
  RelayedHosts hosts;
  if (!comm::has_gloo() || !hosts.ready()) GTEST_SKIP() << "needs Gloo, root, `ip netns` and /dev/net/tun";
  ScratchFolder folder;
  for (auto out : {1200ms, 1700ms}) {
    RelayedJob job(hosts, {.file = folder / std::to_string(out.count())});
    EXPECT_NE(job.zero->read_line("training"), "") << job.zero->output();
    hosts.link().cut();
    std::this_thread::sleep_for(out);
    hosts.link().mend();
    ::kill(launcher_of(*job.one)[2], SIGKILL);  // the process that has started the ranks
    EXPECT_NE(job.zero->wait(), 0);
    SCOPED_TRACE(job.zero->output());
    expect_mentions(first_report(job.zero->output()), {"node 1 (", " is lost: its launcher has "});
  }
}

}  // namespace
}  // namespace bonfire::launch::cut_links_test
