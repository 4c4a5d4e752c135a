#include "bonfire/launch/nodes.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <memory>

#include "bonfire/comm/store_client.h"
#include "tests/launch/hosts.h"
#include "tests/launch/launched.h"
#include "tests/support/expect_error.h"
#include "tests/support/scratch_folder.h"

namespace bonfire::launch::nodes_test {

namespace {

using testing::ChildProcess;
using testing::expect_mentions;
using testing::free_port;
using testing::is_there;
using testing::Launched;
using testing::LaunchedNode;
using testing::program_beside;
using testing::ScratchFolder;
using testing::TwoHosts;
using testing::Words;

}  // namespace

TEST(LaunchNodes, MayDifferInTheNumberOfRanks) {
  int port = free_port();
  LaunchedNode one(1, port, {"--nproc_per_node", "2"}, {"meet", "30", "env", "LOCAL_RANK"});
  LaunchedNode zero(0, port, {"--nproc_per_node", "1"}, {"meet", "30", "env", "LOCAL_RANK"});
  EXPECT_EQ(zero.wait(), 0) << zero.output();
  EXPECT_EQ(one.wait(), 0) << one.output();
  expect_mentions(zero.output(), {"[rank 0] met 3 on 1 machines", "[rank 0] LOCAL_RANK=0"});
  expect_mentions(one.output(), {"[rank 1] met 3 on 1 machines", "[rank 1] LOCAL_RANK=0", "[rank 2] LOCAL_RANK=1"});
}

TEST(LaunchNodes, WhoWaitsSaysForWhom) {
  const std::string port = std::to_string(free_port());
  auto node = [&](const char* number) {
    return std::make_unique<Launched>(Words{"--nnodes", "3", "--node_rank", number, "--master_port", port},
                                      Words{"meet", "30"}, ChildProcess::Variables{{"BONFIRE_TOKEN", "secret"}});
  };
  auto one = node("1");
  expect_mentions(one->read_line("waited"),
                  {"launcher of node 1 has waited 5 s for node 0's launcher to open the store at 127.0.0.1:" + port});
  auto zero = node("0");
  expect_mentions(zero->read_line("waited"), {"launcher of node 0 has waited 5 s for the launchers of nodes 2 (of 3)"});
  expect_mentions(one->read_line("waited"), {"for node 0 (127.0.0.1), which waits for all nodes to come"});
  auto two = node("2");
  for (const auto& each : {&zero, &one, &two}) EXPECT_EQ((*each)->wait(), 0) << (*each)->output();
}

TEST(LaunchNodes, AFailureOnOneEndsAllAndIsNamedOnAll) {
  int port = free_port();
  Words rank{"meet", "30", "if", "1", "print", "the reason", "exit", "4", "if", "0", "sleep", "60"};
  LaunchedNode zero(0, port, {}, rank), one(1, port, {}, rank);
  EXPECT_EQ(zero.wait(), 1);
  EXPECT_EQ(one.wait(), 4);
  for (const ChildProcess* node : {&zero, static_cast<LaunchedNode*>(&one)})
    expect_mentions(node->output(), {"bonfire launch: rank 1 (process", "ended with exit status 4", "    the reason"});
}

TEST(LaunchNodes, StartAgainTogether) {
  ScratchFolder folder;
  int port = free_port();
  Words rank{"meet", "30", "env", "BONFIRE_GENERATION", "if", "1", "once", folder / "seen", "kill", "9"};
  LaunchedNode zero(0, port, {"--max_restarts", "2"}, rank), one(1, port, {}, rank);  // node 0 decides
  EXPECT_EQ(zero.wait(), 0) << zero.output();
  EXPECT_EQ(one.wait(), 0) << one.output();
  expect_mentions(zero.output(), {"restart 1 of 2", "[rank 0] BONFIRE_GENERATION=1"});
  expect_mentions(one.output(), {"restart 1 of 2", "[rank 1] BONFIRE_GENERATION=1"});
}

TEST(LaunchNodes, CtrlCOnOneStopsAll) {
  int port = free_port();
  Words rank{"polite", "0", "meet", "30", "sleep", "60"};
  LaunchedNode zero(0, port, {}, rank), one(1, port, {}, rank);
  zero.read_line("met 2");
  one.read_line("met 2");
  one.signal(SIGINT);
  EXPECT_EQ(one.wait(), 130);
  EXPECT_EQ(zero.wait(), 130) << one.output();
  expect_mentions(zero.output(), {"node 1 (", ") was asked to stop"});
}

TEST(LaunchNodes, AreNamedWhenTheyNeverCame) {
  LaunchedNode zero(0, free_port(), {"--rendezvous_timeout", "1"}, {"meet", "30"});
  EXPECT_EQ(zero.wait(), 1);
  expect_mentions(zero.output(), {"of 2 nodes these never came within 1 s: 1;"});
}

TEST(LaunchNodes, SayWhomTheyCannotReach) {
  LaunchedNode one(1, free_port(), {"--rendezvous_timeout", "1"}, {"meet", "30"});
  EXPECT_EQ(one.wait(), 1);
  expect_mentions(one.output(), {"127.0.0.1:", "cannot be reached within 1 s", "Connection refused"});
}

TEST(LaunchNodes, MustHaveTheSameProgram) {
  ScratchFolder folder;
  std::filesystem::copy_file(program_beside("rank_program"), folder / "rank_program");
  std::ofstream(folder / "rank_program", std::ios::app) << "another build";
  int port = free_port();
  LaunchedNode zero(0, port, {}, {"print", "started"});
  ChildProcess one({BONFIRE_PROGRAM, "launch", "--nnodes", "2", "--node_rank", "1", "--master_port",
                    std::to_string(port), folder / "rank_program", "print", "started"},
                   testing::clean({{"BONFIRE_TOKEN", "secret"}}));
  EXPECT_EQ(zero.wait(), 1);
  EXPECT_EQ(one.wait(), 1);
  for (const std::string& output : {zero.output(), one.output()}) {
    expect_mentions(output, {"the program on node 1 (", "is another one than on node 0"});
    EXPECT_EQ(output.find("started"), std::string::npos);
  }
}

TEST(LaunchNodes, ALostNodeIsNamedAndEndsTheJob) {
  int port = free_port();
  Words rank{"meet", "30", "spawn", "sleep", "60"};
  LaunchedNode zero(0, port, {"--max_restarts", "1", "--node_timeout", "60"}, rank), one(1, port, {}, rank);
  std::vector<int> processes = zero.processes(1);
  one.processes(1);
  one.signal(SIGKILL);
  EXPECT_EQ(zero.wait(), 1);
  expect_mentions(zero.output(), {"node 1 (", ") is lost: its launcher has ended without a word"});
  for (int process : processes) EXPECT_FALSE(is_there(process));
}

TEST(LaunchNodes, ANodeRankIsTheFirstOnesAndTheJobGoesOn) {
  int port = free_port();
  const Words rank{"meet", "30", "print", "begun", "sleep", "2", "print", "whole"};
  LaunchedNode zero(0, port, {}, rank), one(1, port, {}, rank);
  EXPECT_NE(one.read_line("begun"), "") << one.output();
  LaunchedNode second(1, port, {}, rank);
  EXPECT_EQ(second.wait(), 1) << second.output();
  expect_mentions(second.output(), {"--node_rank 1 is taken: it is ", " (127.0.0.1, process "});
  for (LaunchedNode* node : {&zero, &one}) {
    EXPECT_EQ(node->wait(), 0) << node->output();
    expect_mentions(node->output(), {"whole"});
  }
}

TEST(LaunchNodes, OfTwoThatComeTogetherWithOneRankOneIsRefused) {
  const Words rank{"meet", "30", "sleep", "0.5", "print", "whole"};
  for (int trial = 0; trial < 3; ++trial) {
    int port = free_port();
    LaunchedNode one(1, port, {}, rank), same(1, port, {}, rank), zero(0, port, {}, rank);
    EXPECT_EQ(zero.wait(), 0) << zero.output();
    EXPECT_EQ(one.wait() + same.wait(), 1) << one.output() << same.output();
    for (const LaunchedNode* node : {&one, &same})
      expect_mentions(node->output(), {const_cast<LaunchedNode*>(node)->wait() == 0 ? "whole" : "is taken"});
  }
}

TEST(LaunchNodes, WhoseOwnRankFailedNeverSaysThatAllIsWell) {
  int port = free_port();
  const Words rank{"meet", "30", "print", "begun", "if", "1", "sleep", "1", "exit", "3", "if", "0", "sleep", "60"};
  LaunchedNode zero(0, port, {}, rank), one(1, port, {}, rank);
  EXPECT_NE(one.read_line("begun"), "") << one.output();
  // Somebody of the job says otherwise.
  comm::connect_store({.port = port, .token = "secret"})->claim("0/verdict", R"({"how": "done"})");
  EXPECT_NE(one.wait(), 0) << one.output();
  EXPECT_NE(zero.wait(), 0) << zero.output();
  expect_mentions(one.output(), {"the job was declared done, though not every rank here has ended well"});
}

// A launcher that is stopped closes nothing: node 0 waits for its time-out, and says how long that was.
TEST(LaunchNodes, OneThatIsStoppedIsLostAfterTheTimeoutOfNodeZero) {
  int port = free_port();
  const Words rank{"meet", "30", "print", "begun", "sleep", "60"};
  LaunchedNode zero(0, port, {"--node_timeout", "5"}, rank), one(1, port, {"--node_timeout", "60"}, rank);
  EXPECT_NE(one.read_line("begun"), "") << one.output();
  ::kill(testing::launcher_of(one)[2], SIGSTOP);
  EXPECT_EQ(zero.wait(), 1) << zero.output();
  expect_mentions(zero.output(), {"has been silent for 3.", "it counts as lost after 5 s",
                                  ") is lost: its launcher has said nothing for 5."});
  one.signal(SIGKILL);
}

TEST(LaunchNodes, NoticeThatNodeZeroIsGone) {
  int port = free_port();
  Words rank{"meet", "30", "spawn", "sleep", "60"};
  LaunchedNode zero(0, port, {}, rank), one(1, port, {}, rank);
  zero.processes(1);
  std::vector<int> processes = one.processes(1);
  zero.signal(SIGKILL);
  EXPECT_EQ(one.wait(), 1);
  expect_mentions(one.output(), {"node 0 is out of reach: [store] the store at 127.0.0.1:", "is gone"});
  for (int process : processes) EXPECT_FALSE(is_there(process));
}

TEST(LaunchNodes, MeetAcrossNetworkNamespacesByTheInterfaceThatReachesNodeZero) {
  TwoHosts hosts;
  if (!hosts.ready()) GTEST_SKIP() << "network namespaces need root and `ip netns`";
  auto node = [&](const char* number, const char* host, const std::string& interface = {}) {
    return std::make_unique<Launched>(
        Words{"--nnodes", "2", "--node_rank", number, "--master_addr", "10.81.0.1", "--nproc_per_node", "2"},
        Words{"meet", "30"}, ChildProcess::Variables{{"BONFIRE_TOKEN", "secret"}, {"BONFIRE_SOCKET_IFNAME", interface}},
        hosts.inside(host));
  };
  auto one = node("1", "b"), zero = node("0", "a");
  EXPECT_EQ(zero->wait(), 0) << zero->output();
  EXPECT_EQ(one->wait(), 0) << one->output();
  expect_mentions(zero->output(), {"[rank 1] met 4 on 2 machines at 10.81.0.1 10.81.0.2"});
  expect_mentions(one->output(), {"[rank 3] met 4 on 2 machines at 10.81.0.1 10.81.0.2"});

  one = node("1", "b", hosts.dead_end()), zero = node("0", "a");
  EXPECT_EQ(one->wait(), 1);
  EXPECT_EQ(zero->wait(), 1);
  expect_mentions(one->output(), {"10.81.0.1:29500 cannot be reached from 10.83.0.2", "y 10.81.0.2", "z 10.83.0.2"});
}

TEST(LaunchNodes, MpirunStartsRanksWithoutThem) {
  if (std::system("command -v mpirun >/dev/null 2>&1") != 0) GTEST_SKIP() << "mpirun is not installed";
  ChildProcess job({"mpirun", "--oversubscribe", "-n", "3", program_beside("rank_program"), "meet", "30"},
                   testing::clean({{"OMPI_ALLOW_RUN_AS_ROOT", "1"}, {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"}}));
  EXPECT_EQ(job.wait(), 0) << job.output();
  expect_mentions(job.output(), {"met 3 on 1 machines at 127.0.0.1"});
}

}  // namespace bonfire::launch::nodes_test
