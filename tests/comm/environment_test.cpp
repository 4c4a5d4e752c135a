#include "bonfire/comm/environment.h"

#include <gtest/gtest.h>

#include <map>

#include "bonfire/base/thread_pool.h"
#include "tests/support/expect_error.h"
#include "tests/support/scratch_folder.h"

namespace bonfire::comm::environment_test {

namespace {

using Variables = std::map<std::string, std::string>;

Environment read(const Variables& variables, const std::vector<std::string>& arguments = {}) {
  return read_environment(arguments, [&](const char* name) {
    auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

Variables with(Variables variables, const Variables& more) {
  for (const auto& [name, value] : more) variables[name] = value;
  return variables;
}

const Variables kTorchrun{{"RANK", "5"},
                          {"WORLD_SIZE", "8"},
                          {"LOCAL_RANK", "1"},
                          {"LOCAL_WORLD_SIZE", "4"},
                          {"MASTER_ADDR", "node0"},
                          {"MASTER_PORT", "29400"}};
const Variables kMpirun{{"OMPI_COMM_WORLD_RANK", "1"},
                        {"OMPI_COMM_WORLD_SIZE", "2"},
                        {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                        {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                        {"OMPI_MCA_ess_base_jobid", "3217227777"},
                        {"OMPI_MCA_orte_precondition_transports", "1234-abcd"}};
const Variables kSrun{{"SLURM_PROCID", "4"},
                      {"SLURM_STEP_NUM_TASKS", "5"},
                      {"SLURM_LOCALID", "0"},
                      {"SLURM_NODEID", "2"},
                      {"SLURM_STEP_TASKS_PER_NODE", "2(x2),1"},
                      {"SLURM_STEP_NODELIST", "gpu[08-10]"},
                      {"SLURM_JOB_ID", "4242"},
                      {"SLURM_STEP_ID", "0"}};

}  // namespace

TEST(Environment, APlainProcessIsAlone) {
  Environment e = read({});
  EXPECT_EQ(e.starter, Starter::nobody);
  EXPECT_EQ(e.rank, 0);
  EXPECT_EQ(e.world, 1);
  EXPECT_EQ(e.threads(), available_cores());
  EXPECT_TRUE(e.holds_store());
}

TEST(Environment, TorchrunsVariablesAreUnderstood) {
  Environment e = read(kTorchrun);
  EXPECT_EQ(e.starter, Starter::torchrun);
  EXPECT_EQ(e.rank, 5);
  EXPECT_EQ(e.world, 8);
  EXPECT_EQ(e.local_rank, 1);
  EXPECT_EQ(e.local_world, 4);
  EXPECT_EQ(e.master_address, "node0");
  EXPECT_EQ(e.store_port, 29400);
  EXPECT_FALSE(e.holds_store());
  EXPECT_TRUE(read(with(kTorchrun, {{"RANK", "0"}})).holds_store());
}

TEST(Environment, AStoreStaysOutOfTheWayOfTorchrunsAgent) {
  EXPECT_EQ(read(with(kTorchrun, {{"TORCHELASTIC_USE_AGENT_STORE", "True"}})).store_port, 29401);
  EXPECT_EQ(read(with(kTorchrun, {{"TORCHELASTIC_USE_AGENT_STORE", "False"}})).store_port, 29400);
  EXPECT_EQ(read(with(kTorchrun, {{"BONFIRE_STORE_PORT", "4711"}})).store_port, 4711);
}

TEST(Environment, OurLauncherHoldsTheStore) {
  Environment e = read(with(kTorchrun, {{"RANK", "0"}, {"BONFIRE_GENERATION", "3"}, {"BONFIRE_TOKEN", "secret"}}));
  EXPECT_EQ(e.starter, Starter::bonfire);
  EXPECT_EQ(e.generation, 3);
  EXPECT_EQ(e.token, "secret");
  EXPECT_FALSE(e.holds_store());
}

TEST(Environment, AnArgumentMayGiveTheLocalRank) {
  Variables without = kTorchrun;
  without.erase("LOCAL_RANK");
  EXPECT_EQ(read(without, {"program", "--local_rank=3"}).local_rank, 3);
  EXPECT_EQ(read(without, {"program", "--local-rank=2"}).local_rank, 2);
  EXPECT_ERROR(read(kTorchrun, {"--local_rank=3"}), ConfigError, "--local_rank=3, the variable LOCAL_RANK 1");
  EXPECT_ERROR(read(without, {"--local_rank=x"}), ConfigError, "'--local_rank=x'");
}

TEST(Environment, MpirunsVariablesAreUnderstood) {
  Environment e = read(kMpirun);
  EXPECT_EQ(e.starter, Starter::mpirun);
  EXPECT_EQ(e.rank, 1);
  EXPECT_EQ(e.world, 2);
  EXPECT_EQ(e.master_address, "127.0.0.1");
  EXPECT_EQ(e.store_port, 29500 + 777);
  EXPECT_EQ(e.token, "1234-abcd");
  EXPECT_EQ(read(with(kMpirun, {{"MASTER_PORT", "1234"}})).store_port, 1234);
}

TEST(Environment, MpirunOnSeveralHostsMustSayWhereRankZeroIs) {
  Variables two_hosts = with(kMpirun, {{"OMPI_COMM_WORLD_SIZE", "4"}});
  EXPECT_ERROR(read(two_hosts), ConfigError, "mpirun -x MASTER_ADDR=HOST");
  EXPECT_EQ(read(with(two_hosts, {{"MASTER_ADDR", "10.0.0.1"}})).master_address, "10.0.0.1");
}

TEST(Environment, SrunsVariablesAreUnderstood) {
  Environment e = read(kSrun);
  EXPECT_EQ(e.starter, Starter::srun);
  EXPECT_EQ(e.rank, 4);
  EXPECT_EQ(e.world, 5);
  EXPECT_EQ(e.local_rank, 0);
  EXPECT_EQ(e.local_world, 1);
  EXPECT_EQ(e.master_address, "gpu08");
  EXPECT_EQ(e.store_port, 29500 + 420);  // of job 4242, step 0
  EXPECT_EQ(read(with(kSrun, {{"SLURM_NODEID", "1"}, {"SLURM_PROCID", "2"}})).local_world, 2);
  EXPECT_ERROR(read(with(kSrun, {{"SLURM_NODEID", "3"}})), ConfigError, "says nothing of node 3");
}

TEST(Environment, AScriptThatSlurmRunsWithoutSrunIsAlone) {
  EXPECT_EQ(read({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "8"}}).world, 1);
}

TEST(Environment, FirstHostsOfSlurmsLists) {
  EXPECT_EQ(first_host("node1"), "node1");
  EXPECT_EQ(first_host("node1,node2"), "node1");
  EXPECT_EQ(first_host("node[07-09,12],login"), "node07");
  EXPECT_EQ(first_host("node[3,5]"), "node3");
  EXPECT_EQ(first_host("login,node[3,5]"), "login");
  EXPECT_EQ(first_host("rack[1-2]-ib,node3"), "rack1-ib");
  EXPECT_ERROR(first_host("node[1-"), ConfigError, "node[1-");
  EXPECT_ERROR(first_host(""), ConfigError, "MASTER_ADDR");
}

TEST(Environment, WrongNumbersAreNamed) {
  EXPECT_ERROR(read(with(kTorchrun, {{"RANK", "8"}})), ConfigError, "RANK is '8', expected a whole number from 0 to 7");
  EXPECT_ERROR(read(with(kTorchrun, {{"RANK", "one"}})), ConfigError, "RANK is 'one'");
  EXPECT_ERROR(read(with(kTorchrun, {{"LOCAL_RANK", "4"}})), ConfigError, "LOCAL_RANK is '4'");
  EXPECT_ERROR(read(with(kTorchrun, {{"MASTER_PORT", "70000"}})), ConfigError, "MASTER_PORT is '70000'");
  EXPECT_ERROR(read({{"RANK", "0"}}), ConfigError, "WORLD_SIZE is not set");
}

TEST(Environment, ATokenMayBeInAFile) {
  testing::ScratchFolder folder;
  std::string file = folder.put("token", "s e c r e t\n");
  EXPECT_EQ(read({{"BONFIRE_TOKEN_FILE", file}}).token, "s e c r e t");
  EXPECT_ERROR(read({{"BONFIRE_TOKEN_FILE", folder.put("empty", "\n")}}), ConfigError, "has no token in it");
  EXPECT_ERROR(read({{"BONFIRE_TOKEN_FILE", folder / "none"}}), DataError, "none");
}

TEST(Environment, RanksOfAHostShareItsCores) {
  EXPECT_EQ(read(with(kTorchrun, {{"LOCAL_WORLD_SIZE", "2"}})).threads(), std::max(1, available_cores() / 2));
  EXPECT_EQ(read(with(kTorchrun, {{"WORLD_SIZE", "9999"}, {"LOCAL_WORLD_SIZE", "9999"}})).threads(), 1);
}

}  // namespace bonfire::comm::environment_test
