// `bonfire train` as ranks that somebody else starts: torchrun, mpirun and Slurm, or whoever sets their variables.

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <memory>

#include "bonfire/comm/mpi/mpi_group.h"
#include "bonfire/launch/launcher.h"
#include "tests/launch/slurm.h"
#include "tests/launch/trained.h"
#include "tests/support/expect_error.h"

namespace bonfire::launch::other_launchers_test {
namespace {

using testing::ChildProcess;
using testing::clean;
using testing::expect_mentions;
using testing::free_port;
using testing::joined;
using testing::Log;
using testing::log_of;
using testing::ScratchFolder;
using testing::Slurm;
using testing::Words;
using Variables = ChildProcess::Variables;

Words training(const ScratchFolder& folder, const Words& before = {}, const Words& more = {}) {
  return joined(joined(before, {BONFIRE_PROGRAM, "train"}), testing::settings(folder, 16, more));
}

// Waits for processes that were to train on two ranks what one has trained on.
void expect_trained(std::vector<std::unique_ptr<ChildProcess>> processes, const ScratchFolder& folder,
                    const Log& alone) {
  for (const auto& process : processes) EXPECT_EQ(process->wait(), 0) << process->output();
  expect_mentions(processes[0]->output(), {"2 epochs of 7 steps of 32 images (16 on each of 2 ranks)"});
  testing::expect_same(log_of(folder / "runs/1"), alone);
  EXPECT_FALSE(std::filesystem::exists(folder / "runs/2"));
}

void expect_trained_by(const Words& starter, const Words& more, const Variables& variables, const Log& alone) {
  SCOPED_TRACE(fmt::format("{} ... {}", fmt::join(starter, " "), fmt::join(more, " ")));
  ScratchFolder folder;
  std::vector<std::unique_ptr<ChildProcess>> processes;
  processes.push_back(std::make_unique<ChildProcess>(training(folder, starter, more), variables));
  expect_trained(std::move(processes), folder, alone);
}

void expect_trained_with(const std::function<Variables(int)>& variables_of_rank, const Log& alone) {
  ScratchFolder folder;
  std::vector<std::unique_ptr<ChildProcess>> processes;
  for (int rank : {0, 1})
    processes.push_back(std::make_unique<ChildProcess>(training(folder), clean(variables_of_rank(rank))));
  expect_trained(std::move(processes), folder, alone);
}

// A port of 127.0.0.1 in use, as torchrun's agent has MASTER_PORT; the one after it was free a moment ago.
class Agent {
 public:
  Agent() {
    for (int next = -1; next < 0;) {
      if (socket_ >= 0) ::close(socket_);
      socket_ = listening(0);
      next = listening(port() + 1);
      ::close(next);
    }
  }
  Agent(const Agent&) = delete;
  Agent& operator=(const Agent&) = delete;
  ~Agent() { ::close(socket_); }

  int port() const {
    sockaddr_in address{};
    socklen_t size = sizeof address;
    ::getsockname(socket_, reinterpret_cast<sockaddr*>(&address), &size);
    return ntohs(address.sin_port);
  }

 private:
  // A socket; less than 0 where the port is taken.
  static int listening(int port) {
    const int made = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (::bind(made, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0 && ::listen(made, 16) == 0)
      return made;
    ::close(made);
    return -1;
  }

  int socket_ = -1;
};

bool installed(const char* program) {
  return std::system(fmt::format("command -v {} >/dev/null 2>&1", program).c_str()) == 0;
}

TEST(OtherLaunchers, TorchrunsAndSrunsVariablesAreEnoughToTrain) {
  ScratchFolder folder;
  const Log alone = testing::trained_alone(folder);
  const Agent agent;
  expect_trained_with(
      [&](int rank) {
        return Variables{{"RANK", std::to_string(rank)},
                         {"WORLD_SIZE", "2"},
                         {"LOCAL_RANK", std::to_string(rank)},
                         {"LOCAL_WORLD_SIZE", "2"},
                         {"MASTER_ADDR", "127.0.0.1"},
                         {"MASTER_PORT", std::to_string(agent.port())},
                         {"TORCHELASTIC_USE_AGENT_STORE", "True"},
                         {"TORCHELASTIC_RESTART_COUNT", "0"}};
      },
      alone);
  const std::string port = std::to_string(free_port());
  expect_trained_with(
      [&](int rank) {
        return Variables{{"SLURM_PROCID", std::to_string(rank)},
                         {"SLURM_LOCALID", std::to_string(rank)},
                         {"SLURM_NODEID", "0"},
                         {"SLURM_STEP_NUM_TASKS", "2"},
                         {"SLURM_STEP_TASKS_PER_NODE", "2"},
                         {"SLURM_STEP_NODELIST", "localhost"},
                         {"SLURM_JOB_ID", "7"},
                         {"SLURM_STEP_ID", "0"},
                         {"BONFIRE_STORE_PORT", port}};
      },
      alone);
}

Variables by_hand(int rank, const std::string& port, const std::string& master) {
  return {{"RANK", std::to_string(rank)},
          {"WORLD_SIZE", "2"},
          {"LOCAL_RANK", std::to_string(rank)},
          {"MASTER_ADDR", master},
          {"MASTER_PORT", port}};
}

TEST(OtherLaunchers, FiveVariablesByHandAreEnoughToTrain) {
  ScratchFolder folder;
  const Log alone = testing::trained_alone(folder);
  for (const char* master : {"127.0.0.1", "localhost"}) {
    const std::string port = std::to_string(free_port());
    expect_trained_with([&](int rank) { return by_hand(rank, port, master); }, alone);
  }
}

// What a step fails with is wrapped; that a peer was lost is still seen.
TEST(OtherLaunchers, ARankThatLosesAnotherInAStepEndsAsAVictim) {
  ScratchFolder folder;
  const std::string port = std::to_string(free_port());
  ChildProcess zero(training(folder, {}, {"epochs=2000"}), clean(by_hand(0, port, "localhost")));
  ChildProcess one(training(folder, {}, {"epochs=2000"}), clean(by_hand(1, port, "localhost")));
  EXPECT_NE(zero.read_line("step 3/7"), "") << zero.output();
  one.signal(SIGKILL);
  EXPECT_EQ(zero.wait(), kLostPeer) << zero.output();
  expect_mentions(zero.output(), {"rank 1 ("});
}

const Words kMpirun{"mpirun", "--oversubscribe", "-n", "2"};

Variables for_mpirun() {
  return clean({{"OMPI_ALLOW_RUN_AS_ROOT", "1"},
                {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"},
                {"ASAN_OPTIONS", "detect_leaks=0"}});  // MPI keeps what it has
}

TEST(OtherLaunchers, MpirunAndTorchrunTrain) {
  if (!installed("mpirun")) GTEST_SKIP() << "mpirun is not installed";
  ScratchFolder folder;
  const Log alone = testing::trained_alone(folder);
  const Words backend{comm::has_mpi() ? "backend=mpi" : "backend=auto"};
  expect_trained_by(kMpirun, backend, for_mpirun(), alone);
  if (installed("torchrun"))
    expect_trained_by({"torchrun", "--no-python", "--nproc_per_node", "2", "--master_port",
                       std::to_string(testing::free_port())},  // its usual one may be another test's
                      {}, clean(), alone);
}

// mpirun tells its processes a number that nobody else knows: the job's token.
TEST(OtherLaunchers, MpirunTrainsInStages) {
  if (!installed("mpirun")) GTEST_SKIP() << "mpirun is not installed";
  ScratchFolder folder, other;
  const Words stages{"mesh.pipeline=2", "pipeline.micro_batches=4", "pipeline.cut=[conv2]",
                     comm::has_mpi() ? "backend=mpi" : "backend=auto"};
  ChildProcess job(joined(joined(kMpirun, {BONFIRE_PROGRAM, "train"}), testing::settings(folder, 32, stages)),
                   for_mpirun());
  EXPECT_EQ(job.wait(), 0) << job.output();
  expect_mentions(job.output(), {"2 epochs of 7 steps of 32 images", "mesh: pipeline 2, 2 ranks",
                                 "stage 0 of 2, until conv2", "stage 1 of 2, from conv2 on"});
  EXPECT_EQ(job.output().find("has no token"), std::string::npos) << job.output();
  testing::expect_same(log_of(folder / "runs/1"), testing::trained_alone(other));
}

// VGG-16 has 138 million parameters: a small net stands in, on data that is built in.
TEST(OtherLaunchers, TheVggGuidesFileTrainsOnTwoRanksByMpi) {
  const bool by_mpi = installed("mpirun") && comm::has_mpi();
  const Words guides{"--config", BONFIRE_SOURCE_DIR "/configs/vgg16_dp.yaml"};
  ScratchFolder folder;
  const Words small{
      "MODEL=lenet", "data=generated", "image_size=28", "limit=64",   "batch_size=8",
      "epochs=1",    "num_workers=1",  "place=cpu",     "log_freq=4", "output=" + (folder / "runs").string()};
  Words command{BONFIRE_PROGRAM, "train"};
  if (by_mpi) command = joined(kMpirun, command);
  command = joined(joined(command, guides), small);
  if (!by_mpi) command.push_back("backend=auto");
  ChildProcess process(command, for_mpirun());
  EXPECT_EQ(process.wait(), 0) << process.output();
  expect_mentions(process.output(), {"1 epoch of 4 steps of 16 images (8 on each of 2 ranks)"});
  EXPECT_EQ(log_of(folder / "runs/1").evaluations.size(), 1U);
}

TEST(OtherLaunchers, SlurmTrains) {
  if (!Slurm::is_here()) GTEST_SKIP() << "Debian's slurm-wlm and munge, and root, are needed";
  ScratchFolder folder;
  const Log alone = testing::trained_alone(folder);
  const Slurm slurm;
  ASSERT_TRUE(slurm.wait_until_idle());
  expect_trained_by({"srun", "-n", "2"}, {}, slurm.variables(), alone);
  if (!comm::has_mpi()) return;
  expect_trained_by({"srun", "--mpi=pmix", "-n", "2"}, {"backend=mpi"}, slurm.variables(), alone);
  ChildProcess without(training(folder, {"srun", "-n", "2"}, {"backend=mpi"}), slurm.variables());
  EXPECT_NE(without.wait(), 0);
  expect_mentions(without.output(), {"start it with mpirun (Debian's openmpi-bin) or srun --mpi=pmix"});
}

}  // namespace
}  // namespace bonfire::launch::other_launchers_test
