#include <algorithm>
#include <limits>
#include <memory>

#include "bonfire/base/error.h"
#include "bonfire/launch/launcher.h"
#include "bonfire/tensor/device.h"
#include "tools/command.h"

namespace bonfire::tools {

namespace {

struct LaunchWanted {
  int64_t ranks = 0, nodes = 1, node = 0, port = 0, restarts = 0, timeout = 300, silence = 8, rank_silence = 8;
  std::string address = "127.0.0.1", logs;
  std::vector<std::string> command;
};

int visible_gpus() {
  std::vector<Device> all = devices();
  return static_cast<int>(
      std::count_if(all.begin(), all.end(), [](Device device) { return device.type == DeviceType::cuda; }));
}

int whole(const char* name, int64_t value) {
  if (value < 0 || value > std::numeric_limits<int>::max())
    throw_error<ConfigError>("[launch] {} cannot be {}", name, value);
  return static_cast<int>(value);
}

int run_launch(const LaunchWanted& wanted) {
  if (wanted.command.empty())
    throw_error<ConfigError>("[launch] which program? bonfire launch --nproc_per_node 2 PROGRAM ARGUMENTS ...");
  return launch::launch(
      {.program = wanted.command[0],
       .arguments = {wanted.command.begin() + 1, wanted.command.end()},
       .ranks = wanted.ranks != 0 ? whole("--nproc_per_node", wanted.ranks) : std::max(1, visible_gpus()),
       .nodes = whole("--nnodes", wanted.nodes),
       .node = whole("--node_rank", wanted.node),
       .master_address = wanted.address,
       .master_port = whole("--master_port", wanted.port),
       .max_restarts = wanted.restarts,
       .log_folder = wanted.logs,
       .rendezvous_timeout = std::chrono::seconds(wanted.timeout),
       .node_timeout = std::chrono::seconds(wanted.silence),
       .rank_timeout = std::chrono::seconds(whole("--rank_timeout", wanted.rank_silence))});
}

}  // namespace

void add_launch(Command program) {
  Command command =
      program.add("launch", "Starts a program as several ranks, here or on many hosts",
                  "bonfire launch --nproc_per_node 4 ./program --epochs 3           4 ranks on this host\n"
                  "bonfire launch --nproc_per_node 4 --log_dir logs ./program       what each prints is kept in logs/\n"
                  "bonfire launch --max_restarts 3 --nproc_per_node 4 ./program     start all again when one fails\n"
                  "bonfire launch --nnodes 2 --node_rank 0 --master_addr node0 ./program     on node0; with "
                  "--node_rank 1 on the other");
  auto wanted = std::make_shared<LaunchWanted>();
  command.option("--nproc_per_node,--nproc-per-node", wanted->ranks, "ranks on this host; else one a GPU, or 1");
  command.option("--nnodes", wanted->nodes, "hosts of the job; else 1");
  command.option("--node_rank,--node-rank", wanted->node, "which of the hosts this is, from 0");
  command.option("--master_addr,--master-addr", wanted->address, "address of node 0, which listens there");
  command.option("--master_port,--master-port", wanted->port, "its port; else a free one, on several hosts 29500");
  command.option("--max_restarts,--max-restarts", wanted->restarts, "how often all ranks start again after a failure");
  command.option("--log_dir,--log-dir", wanted->logs, "keep what each rank prints in this folder");
  command.option("--rendezvous_timeout,--rendezvous-timeout", wanted->timeout, "seconds to wait for the other hosts");
  command.option("--node_timeout,--node-timeout", wanted->silence, "seconds after which a silent host counts as lost");
  command.option("--rank_timeout,--rank-timeout", wanted->rank_silence,
                 "seconds after which a rank without a heartbeat counts as frozen; 0: never");
  command.takes_the_rest(wanted->command);
  command.runs([wanted] { return run_launch(*wanted); });
}

}  // namespace bonfire::tools
