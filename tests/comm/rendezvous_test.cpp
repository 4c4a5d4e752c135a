#include "bonfire/comm/rendezvous.h"

#include <gtest/gtest.h>

#include <list>

#include "bonfire/comm/network.h"
#include "bonfire/comm/store_client.h"
#include "bonfire/comm/store_server.h"
#include "tests/support/child_process.h"
#include "tests/support/expect_error.h"

namespace bonfire::comm::rendezvous_test {

namespace {

using namespace std::chrono_literals;
using testing::ChildProcess;
using testing::expect_mentions;
using testing::program_beside;

int free_port() { return serve_store({})->port(); }

ChildProcess::Variables torchrun(int rank, int world, int port) {
  return {{"RANK", std::to_string(rank)},
          {"WORLD_SIZE", std::to_string(world)},
          {"LOCAL_RANK", ""},
          {"MASTER_ADDR", "localhost"},
          {"MASTER_PORT", std::to_string(port)},
          {"BONFIRE_TOKEN", "secret"},
          {"LOCAL_WORLD_SIZE", std::to_string(world)}};
}

ChildProcess::Variables five_variables(int rank, int world, int port, const char* master = "127.0.0.1") {
  return {{"RANK", std::to_string(rank)}, {"WORLD_SIZE", std::to_string(world)}, {"LOCAL_RANK", std::to_string(rank)},
          {"MASTER_ADDR", master},        {"MASTER_PORT", std::to_string(port)}, {"LOCAL_WORLD_SIZE", ""},
          {"BONFIRE_TOKEN", ""}};
}

ChildProcess::Variables with(ChildProcess::Variables variables, const ChildProcess::Variables& more) {
  variables.insert(variables.end(), more.begin(), more.end());
  return variables;
}

ChildProcess::Variables ours(int rank, int world, int port, int generation) {
  return with(torchrun(rank, world, port),
              {{"BONFIRE_GENERATION", std::to_string(generation)}, {"MASTER_ADDR", "127.0.0.1"}});
}

const std::vector<Interface> kInterfaces{
    {"lo", "127.0.0.1", true}, {"eth10", "10.0.0.10"}, {"eth1", "10.0.0.1"}, {"docker0", "172.17.0.1"}};

}  // namespace

TEST(Rendezvous, RanksWithoutOurLauncherMeetAtRankZero) {
  int port = free_port();
  std::list<ChildProcess> ranks;
  for (int rank : {2, 1, 0})
    ranks.emplace_back(std::vector{program_beside("rank_program"), std::string("meet"), std::string("30")},
                       torchrun(rank, 3, port));
  for (ChildProcess& rank : ranks) {
    EXPECT_EQ(rank.wait(), 0) << rank.output();
    expect_mentions(rank.output(), {"met 3 on 1 machines at "});
  }
}

// As people set them by hand.
TEST(Rendezvous, FiveVariablesAreEnoughOnOneHost) {
  for (const char* master : {"127.0.0.1", "localhost", "::1"}) {
    const int port = free_port();
    std::list<ChildProcess> ranks;
    for (int rank : {3, 0, 2, 1})
      ranks.emplace_back(std::vector{program_beside("rank_program"), std::string("meet"), std::string("30")},
                         five_variables(rank, 4, port, master));
    for (ChildProcess& rank : ranks) {
      EXPECT_EQ(rank.wait(), 0) << rank.output();
      expect_mentions(rank.output(), {"met 4 on 1 machines at "});
    }
  }
}

TEST(Rendezvous, WhoWaitsForTheStoreSaysWhoOpensIt) {
  const int port = free_port();
  const std::vector<std::string> program{program_beside("rank_program"), "meet", "60"};
  ChildProcess one(program, five_variables(1, 3, port));
  expect_mentions(one.read_line("waited"), {"bonfire: rank 1 has waited 5 s for rank 0 to open the store at 127.0.0.1:",
                                            "(127.0.0.1: Connection refused)"});
  ChildProcess zero(program, five_variables(0, 3, port));
  expect_mentions(zero.read_line("waited"), {"bonfire: rank 0 has waited 5 s for rank 2 of 3 (here: 0 on ", ", 1 on "});
  ChildProcess two(program, five_variables(2, 3, port));
  for (ChildProcess* rank : {&zero, &one, &two}) EXPECT_EQ(rank->wait(), 0) << rank->output();
}

TEST(Rendezvous, NamesTheRanksThatNeverCame) {
  auto server = serve_store({.token = "secret"});
  ChildProcess rank({program_beside("rank_program"), "meet", "0.2"}, ours(1, 4, server->port(), 0));
  EXPECT_EQ(rank.wait(), 1);
  expect_mentions(rank.output(), {"of 4 ranks these never came within 0.2 s: 0, 2, 3 (here: 1 on "});
}

TEST(Rendezvous, RefusesARankWithAnotherVersion) {
  auto server = serve_store({.token = "secret"});
  auto other = connect_store({.port = server->port(), .token = "secret", .generation = 0, .caller = "rank 0"});
  other->set("rendezvous/rank/0", R"({"host":"old","address":"","machine":"","process":1,"version":"0.0.9"})");
  ChildProcess rank({program_beside("rank_program"), "meet", "10"}, ours(1, 2, server->port(), 0));
  EXPECT_EQ(rank.wait(), 1);
  expect_mentions(rank.output(), {"rank 0 on old runs Bonfire 0.0.9", "install one version"});
}

TEST(Rendezvous, ARankOfAnEarlierGenerationIsRefused) {
  auto server = serve_store({.token = "secret"});
  server->begin_generation(2);
  ChildProcess rank({program_beside("rank_program"), "meet", "10"}, ours(0, 1, server->port(), 1));
  EXPECT_EQ(rank.wait(), 1);
  expect_mentions(rank.output(), {"rank 0 belongs to generation 1 of this job, which is at 2"});
}

TEST(Rendezvous, AnUnusableInterfaceIsNamedWithThoseThereAre) {
  auto server = serve_store({.token = "secret"});
  ChildProcess rank({program_beside("rank_program"), "meet", "10"},
                    with(ours(0, 1, server->port(), 0), {{"BONFIRE_SOCKET_IFNAME", "ib0"}}));
  EXPECT_EQ(rank.wait(), 1);
  expect_mentions(rank.output(), {"no interface of this host fits 'ib0'", "lo 127.0.0.1"});
  ChildProcess good({program_beside("rank_program"), "meet", "10"},
                    with(ours(0, 1, server->port(), 0), {{"BONFIRE_SOCKET_IFNAME", "lo"}}));
  EXPECT_EQ(good.wait(), 0) << good.output();
}

TEST(Rendezvous, AMasterThatOtherHostsCannotReachIsRefused) {
  Environment e{.starter = Starter::torchrun, .world = 2, .local_world = 1};
  EXPECT_ERROR(meet(e), ConfigError, "MASTER_ADDR '127.0.0.1' is 127.0.0.1 on this host, which other hosts cannot");
}

TEST(Rendezvous, APlainProcessNeedsNoStore) {
  Rendezvous job = meet({});
  EXPECT_EQ(job.store, nullptr);
  ASSERT_EQ(job.peers.size(), 1u);
  EXPECT_EQ(job.peers[0].machine, machine_id());
}

TEST(Rendezvous, InterfacesAreChosenAsNcclDoes) {
  EXPECT_EQ(choose_address("eth1", kInterfaces), "10.0.0.1");  // not eth10
  EXPECT_EQ(choose_address("eth", kInterfaces), "10.0.0.10");
  EXPECT_EQ(choose_address("ib,docker", kInterfaces), "172.17.0.1");
  EXPECT_EQ(choose_address("^docker,eth10", kInterfaces), "10.0.0.1");
  EXPECT_ERROR(choose_address("=eth", kInterfaces), ConfigError, "no interface of this host fits '=eth'");
  EXPECT_ERROR(choose_address("^eth,docker", kInterfaces), ConfigError, "docker0 172.17.0.1");
}

}  // namespace bonfire::comm::rendezvous_test
