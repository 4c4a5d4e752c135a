#pragma once
// Who this process is in its job, as whoever started it says in the environment (docs/launch.md): bonfire launch,
// torchrun, mpirun or srun. A process that was started plainly is rank 0 of 1.

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "bonfire/comm/tls.h"

namespace bonfire::comm {

enum class Starter { nobody, bonfire, torchrun, mpirun, srun };

struct Environment {
  Starter starter = Starter::nobody;
  int rank = 0, world = 1;              // in the job
  int local_rank = 0, local_world = 1;  // on this host
  bool knows_local_world = true;        // else meet() counts the ranks that have come from here
  std::string master_address = "127.0.0.1";
  int store_port = 0;  // 0: any
  int agent_port = 0;  // of torchrun's own store at the master's address; 0: there is none
  int64_t generation = 0;
  std::string token = {};
  int host = -1;  // the rank of its node where bonfire launch runs there; else -1
  // A host from which nothing comes for so long is lost.
  std::chrono::milliseconds node_timeout{6'000};

  // Only bonfire launch holds the store itself; elsewhere rank 0 does.
  bool holds_store() const { return starter != Starter::bonfire && rank == 0; }
  int threads() const;  // this rank's share of the host's cores, at least 1
};

// ConfigError names the variable that cannot be, or the one that is missing. `arguments`: of the program, for
// --local_rank=N.
Environment read_environment(const std::vector<std::string>& arguments = {});
Environment read_environment(const std::vector<std::string>& arguments, const ReadVariable& variable);

// BONFIRE_TOKEN, or what is in the file that BONFIRE_TOKEN_FILE names; "" when neither is set.
std::string read_token(const ReadVariable& variable);

// The first host of a list as Slurm writes it: "node[07-09,12],login" is node07.
std::string first_host(const std::string& slurm_list);

}  // namespace bonfire::comm
