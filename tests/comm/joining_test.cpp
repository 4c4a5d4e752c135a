// What a rank is told that cannot join its group.

#include <gtest/gtest.h>

#include "bonfire/comm/gloo/gloo_group.h"
#include "bonfire/comm/local/local_group.h"
#include "bonfire/comm/mpi/mpi_group.h"
#include "bonfire/comm/shm/shm_group.h"
#include "bonfire/comm/store_client.h"
#include "bonfire/comm/store_server.h"
#include "tests/support/expect_error.h"

namespace bonfire::comm::joining_test {
namespace {

using namespace std::chrono_literals;

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
