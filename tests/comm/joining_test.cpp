// What a rank is told that cannot join its group.

#include <gtest/gtest.h>

#include <list>

#include "bonfire/comm/gloo/gloo_group.h"
#include "bonfire/comm/local/local_group.h"
#include "bonfire/comm/mpi/mpi_group.h"
#include "bonfire/comm/shm/shm_group.h"
#include "bonfire/comm/store_client.h"
#include "bonfire/comm/store_server.h"
#include "tests/support/child_process.h"
#include "tests/support/expect_error.h"

namespace bonfire::comm::joining_test {
namespace {

using namespace std::chrono_literals;
using bonfire::testing::ChildProcess;
using bonfire::testing::expect_mentions;
using bonfire::testing::program_beside;

class Joining : public ::testing::Test {
 protected:
  Membership membership(int rank, int size) {
    return {.rank = rank, .size = size, .store = store_, .name = "test", .timeout = 50ms};
  }

  std::unique_ptr<StoreServer> server_ = serve_store({.token = "secret"});
  std::shared_ptr<Store> store_ = connect_store({.port = server_->port(), .token = "secret", .generation = 0});
};

TEST_F(Joining, RanksAreBelowTheSize) {
  EXPECT_ERROR(shm_group(membership(2, 2)), ConfigError, "[shm] rank 2 of a group of 2: ranks are 0 to size - 1");
  EXPECT_ERROR(local_groups(0), ConfigError, "[local_groups] rank 0 of a group of 0");
}

TEST_F(Joining, ARankThatNeverComesIsNamed) {
  EXPECT_ERROR(shm_group(membership(0, 3)), TimeoutError, "[shm] rank 0 waited 0.05 s for rank 1, which never came");
}

// As `bonfire launch` starts it.
ChildProcess::Variables variables_of(int rank, int world, int port) {
  return {{"RANK", std::to_string(rank)},       {"WORLD_SIZE", std::to_string(world)},
          {"LOCAL_RANK", std::to_string(rank)}, {"LOCAL_WORLD_SIZE", std::to_string(world)},
          {"MASTER_ADDR", "127.0.0.1"},         {"MASTER_PORT", std::to_string(port)},
          {"BONFIRE_GENERATION", "0"},          {"BONFIRE_TOKEN", "secret"}};
}

TEST_F(Joining, ASignalIsNoTimeout) {
  std::list<ChildProcess> ranks;
  for (int rank : {0, 1, 2})
    ranks.emplace_back(std::vector<std::string>{program_beside("rank_program"), "alarms", "2", "join", "1"},
                       variables_of(rank, 3, server_->port()));
  for (ChildProcess& rank : ranks) {
    EXPECT_EQ(rank.wait(), 0) << rank.output();
    EXPECT_EQ(rank.output(), "joined\n");
  }
}

TEST_F(Joining, WhoWaitsSaysForWhom) {
  std::list<ChildProcess> ranks;
  for (int rank : {0, 1, 2})
    ranks.emplace_back(std::vector<std::string>{program_beside("rank_program"), "join", "6"},
                       variables_of(rank, 3, server_->port()));
  expect_mentions(ranks.front().read_line("waited"),
                  {"bonfire: rank 0 has waited 5 s for ranks 1 and 2 to join the group late"});
  for (ChildProcess& rank : ranks) EXPECT_EQ(rank.wait(), 0) << rank.output();
}

// Before the first step: one that loads data for long, or has died where nobody looks.
TEST_F(Joining, WhoWaitsInACallBeforeTheFirstStepSaysForWhom) {
  for (const char* backend : {"shm", "gloo"}) {
    if (backend == std::string("gloo") && !has_gloo()) continue;
    auto server = serve_store({.token = "secret"});
    std::list<ChildProcess> ranks;
    for (int rank : {0, 1})
      ranks.emplace_back(std::vector<std::string>{program_beside("rank_program"), "fleet", backend, "if", "1", "sleep",
                                                  "6", "if", "all", "leave", "NOW"},
                         variables_of(rank, 2, server->port()));
    expect_mentions(ranks.front().read_line("waited"),
                    {"bonfire: rank 0 (", ") has waited 5 s for rank 1", "(all_gather)"});
    for (ChildProcess& rank : ranks) EXPECT_EQ(rank.wait(), 0) << rank.output();
  }
}

TEST_F(Joining, ASocketThatNobodyListensOnTellsOfHostsAndNamespaces) {
  store_->set("test/0", "bonfire-nobody");
  EXPECT_ERROR(shm_group(membership(1, 2)), CommError, "must run on one host in one network namespace");
}

TEST_F(Joining, GlooNamesWhoNeverCame) {
  if (!has_gloo()) GTEST_SKIP() << "built without Gloo";
  EXPECT_ERROR(gloo_group(membership(0, 2), {.interface = "lo"}), TimeoutError,
               "[gloo] rank 0 waited 0.05 s for rank 1, which never came");
}

TEST_F(Joining, GlooListsTheInterfacesThereAre) {
  if (!has_gloo()) GTEST_SKIP() << "built without Gloo";
  EXPECT_ERROR(gloo_group(membership(0, 1), {}), ConfigError, "lo 127.0.0.1");
  EXPECT_ERROR(gloo_group(membership(0, 1), {.interface = "eth77"}), ConfigError,
               "[gloo] cannot listen on interface eth77; this host has lo 127.0.0.1");
  EXPECT_ERROR(gloo_group(membership(0, 1), {.address = "192.0.2.1"}), ConfigError,
               "[gloo] cannot listen on address 192.0.2.1; this host has");
}

TEST_F(Joining, MpiSaysHowToStartItsRanks) {
  if (!has_mpi()) GTEST_SKIP() << "built without MPI";
  EXPECT_ERROR(mpi_group(), ConfigError, "start it with mpirun (Debian's openmpi-bin) or srun --mpi=pmix");
}

TEST_F(Joining, WithoutGlooThePackageIsNamed) {
  if (has_gloo()) GTEST_SKIP() << "built with Gloo";
  EXPECT_ERROR(gloo_group(membership(0, 1), {}), ConfigError, "install libgloo-dev");
}

}  // namespace
}  // namespace bonfire::comm::joining_test
