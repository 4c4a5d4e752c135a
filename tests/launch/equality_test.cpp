// However a batch is shared out, and by whatever numbers travel, training is that of one rank.
//
//   BONFIRE_EQUALITY=all test_launch --gtest_filter=Equality.*
//
// takes batches of 256 on 2, 4 and 16 ranks and 50 steps, every way with merged all-reduces and without, and prints how
// far they are apart; that is minutes.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>

#include "bonfire/comm/gloo/gloo_group.h"
#include "bonfire/comm/mpi/mpi_group.h"
#include "tests/launch/hosts.h"
#include "tests/launch/launched.h"
#include "tests/support/cuda_device.h"
#include "tests/support/scratch_folder.h"

namespace bonfire::launch::equality_test {
namespace {

using testing::ChildProcess;
using testing::clean;
using testing::joined;
using testing::program_beside;
using testing::ScratchFolder;
using testing::TwoHosts;
using testing::Words;
using Variables = ChildProcess::Variables;

bool whole() { return std::getenv("BONFIRE_EQUALITY") != nullptr; }

struct Trial {
  std::string backend;  // threads, shm, gloo, mpi
  int hosts = 1, ranks = 4;
  bool fused = true, hierarchical = false;
  std::string devices = "cpu";  // gpu: of all ranks; mixed: of every other one

  std::string title() const {
    return fmt::format("{} x {} on {} host(s), {}, {}, {}, {}", ranks, batch() / ranks, hosts, backend,
                       hierarchical ? "hierarchical" : "flat", fused ? "fused" : "not fused", devices);
  }
  static int batch() { return whole() ? 256 : 16; }
  Words rank(const std::string& file) const {
    std::string where = backend == "threads" ? fmt::format("threads:{}", ranks) : backend;
    return {program_beside("equality_program"),
            where,
            std::to_string(batch()),
            whole() ? "50" : "10",
            file,
            fused ? "fused" : "unfused",
            hierarchical ? "hierarchical" : "flat",
            devices};
  }
};

// The processes to wait for.
using Processes = std::vector<std::unique_ptr<ChildProcess>>;

Processes launched(const Trial& trial, const TwoHosts& hosts, const Words& rank) {
  const Variables variables = clean({{"BONFIRE_TOKEN", "secret"}});
  const std::string each = std::to_string(trial.ranks / trial.hosts);
  Processes nodes;
  for (int node = 0; node < trial.hosts; ++node) {
    Words words{BONFIRE_PROGRAM, "launch", "--nproc_per_node", each};
    if (trial.hosts > 1)
      words =
          joined(hosts.inside(node == 0 ? "a" : "b"),
                 joined(words, {"--nnodes", "2", "--node_rank", std::to_string(node), "--master_addr", "10.81.0.1"}));
    nodes.push_back(std::make_unique<ChildProcess>(joined(words, rank), variables));
  }
  return nodes;
}

// mpirun reaches the other host by a script in the place of ssh. These hosts have one /dev/shm, in which OpenMPI's
// names of both would be the same: it does without.
Processes under_mpirun(const Trial& trial, const TwoHosts& hosts, const Words& rank, const ScratchFolder& folder) {
  Words words{"mpirun", "--oversubscribe", "-n", std::to_string(trial.ranks)};
  if (trial.hosts > 1) {
    const auto script = folder.put(
        "remote", fmt::format("#!/bin/sh\nshift\nexec {} sh -c \"$*\"\n", fmt::join(hosts.inside("b"), " ")));
    std::filesystem::permissions(script, std::filesystem::perms(0755));
    const int each = trial.ranks / 2;
    words = joined(joined(hosts.inside("a"), words), {"--host",
                                                      fmt::format("10.81.0.1:{0},10.81.0.2:{0}", each),
                                                      "--mca",
                                                      "plm_rsh_agent",
                                                      script.string(),
                                                      "--mca",
                                                      "oob_tcp_if_include",
                                                      "10.81.0.0/24",
                                                      "--mca",
                                                      "btl_tcp_if_include",
                                                      "10.81.0.0/24",
                                                      "--mca",
                                                      "btl",
                                                      "tcp,self",
                                                      "-x",
                                                      "MASTER_ADDR=10.81.0.1",
                                                      "-x",
                                                      "BONFIRE_TUNE",
                                                      "-x",
                                                      "BONFIRE_VERIFY"});
  }
  Processes job;
  job.push_back(std::make_unique<ChildProcess>(joined(words, rank),
                                               clean({{"OMPI_ALLOW_RUN_AS_ROOT", "1"},
                                                      {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"},
                                                      {"ASAN_OPTIONS", "detect_leaks=0"}})));  // MPI keeps what it has
  return job;
}

nlohmann::json trained(const Trial& trial, const TwoHosts& hosts) {
  ScratchFolder folder;
  const Words rank = trial.rank(folder / "course");
  Processes processes;
  if (trial.backend == "threads")
    processes.push_back(std::make_unique<ChildProcess>(rank, clean()));
  else if (trial.backend == "mpi")
    processes = under_mpirun(trial, hosts, rank, folder);
  else
    processes = launched(trial, hosts, rank);
  for (const auto& process : processes) EXPECT_EQ(process->wait(), 0) << process->output();
  return nlohmann::json::parse(folder.get("course"), nullptr, false);
}

double largest_difference(const nlohmann::json& found, const nlohmann::json& expected) {
  auto losses = found.get<std::vector<double>>(), truth = expected.get<std::vector<double>>();
  double most = losses.size() == truth.size() ? 0 : INFINITY;
  for (size_t i = 0; i < std::min(losses.size(), truth.size()); ++i)
    most = std::max(most, std::abs(losses[i] - truth[i]) / std::abs(truth[i]));
  return most;
}

double relative_distance(const nlohmann::json& found, const nlohmann::json& expected) {
  auto gradients = found.get<std::vector<double>>(), truth = expected.get<std::vector<double>>();
  double distance = gradients.size() == truth.size() ? 0 : INFINITY, length = 0;
  for (size_t i = 0; i < std::min(gradients.size(), truth.size()); ++i) {
    distance += (gradients[i] - truth[i]) * (gradients[i] - truth[i]);
    length += truth[i] * truth[i];
  }
  return std::sqrt(distance / length);
}

void expect_equal(const Trial& trial, const nlohmann::json& found, const nlohmann::json& alone) {
  SCOPED_TRACE(trial.title());
  ASSERT_TRUE(found.is_object());
  ASSERT_EQ(found.size(), alone.size());
  std::string figures;
  for (const auto& [net, course] : alone.items()) {
    const bool smooth = net == "smooth" || net == "normed";
    const double losses = largest_difference(found[net]["losses"], course["losses"]);
    const double gradients = relative_distance(found[net]["gradients"], course["gradients"]);
    EXPECT_LT(losses, smooth ? 1e-5 : 1e-4) << net;
    EXPECT_LT(gradients, 1e-5) << net;
    figures += fmt::format("; {} {:.1e}, gradients {:.1e}", net, losses, gradients);
  }
  if (whole()) fmt::print("{}{}\n", trial.title(), figures);
}

std::vector<Trial> trials(bool several_hosts) {
  Words backends{"threads", "shm"};
  if (comm::has_gloo()) backends.emplace_back("gloo");
  if (comm::has_mpi() && std::system("command -v mpirun >/dev/null 2>&1") == 0) backends.emplace_back("mpi");
  std::vector<Trial> all;
  for (int ranks : whole() ? std::vector{2, 4, 16} : std::vector{4})
    for (const std::string& backend : backends)
      for (int hosts : {1, 2})
        for (bool fused : {true, false})
          for (bool hierarchical : {false, true}) {
            const bool local = backend == "threads" || backend == "shm";
            if (hosts == 1 ? hierarchical : local || !several_hosts) continue;
            // In small: each backend on one host, or by hosts on two, one way or the other. Gloo's threads, of which
            // four ranks have too many for a small machine, on two only.
            if (!whole() && hosts == 1 && backend == "gloo" && several_hosts) continue;
            if (!whole() && (fused == (backend == "mpi") || hierarchical != (hosts == 2))) continue;
            all.push_back({backend, hosts, ranks, fused, hierarchical});
          }
  return all;
}

TEST(Equality, TrainingIsThatOfOneRankOnEveryBackend) {
  const TwoHosts hosts;
  const nlohmann::json alone = trained({.backend = "threads", .ranks = 1}, hosts);
  ASSERT_TRUE(alone.is_object());
  EXPECT_EQ(alone.size(), 4U);
  for (const char* net : {"smooth", "normed"}) {  // something is learnt
    const auto losses = alone[net]["losses"].get<std::vector<double>>();
    EXPECT_LT(losses.back(), 0.95 * losses[0]) << net;
  }
  for (const Trial& trial : trials(hosts.ready())) expect_equal(trial, trained(trial, hosts), alone);
}

// Their gradients meet in host memory. Threads of one process have a GPU each, and this machine may have only one.
TEST(Equality, TrainingOnGpusAndCpusIsThatOfOneCpu) {
  if (!cuda_device()) GTEST_SKIP() << "no GPU";
  const TwoHosts hosts;
  const nlohmann::json alone = trained({.backend = "threads", .ranks = 1}, hosts);
  Words backends{"shm"};
  if (comm::has_gloo()) backends.emplace_back("gloo");
  if (comm::has_mpi() && std::system("command -v mpirun >/dev/null 2>&1") == 0) backends.emplace_back("mpi");
  std::vector<Trial> all{{.backend = "threads", .ranks = 2, .devices = "mixed"}};
  for (const std::string& backend : backends)
    for (const char* devices : {"gpu", "mixed"})
      for (bool fused : {true, false})
        if (whole() || fused != (backend == "mpi"))
          all.push_back({.backend = backend, .ranks = 2, .fused = fused, .devices = devices});
  for (const Trial& trial : all) expect_equal(trial, trained(trial, hosts), alone);
}

}  // namespace
}  // namespace bonfire::launch::equality_test
