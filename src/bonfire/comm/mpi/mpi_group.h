#pragma once
// Group of all processes that mpirun, or srun --mpi=pmix, has started, over MPI's messages.
//
//   auto group = comm::mpi_group();
//
// MPI is started by the first call and ended when the program ends in good order. Besides, ranks on several hosts that
// have no token share one through it (text_over_mpi), whatever their backend.
// Waits poll, because MPI has none with a timeout, also those for ranks to make and to split a group. A process that
// ends early is MPI's business: mpirun ends the whole job. Needs Debian's libopenmpi-dev where Bonfire is built.

#include <chrono>
#include <memory>
#include <string>

#include "bonfire/comm/group.h"

namespace bonfire::comm {

struct MpiOptions {
  std::chrono::milliseconds timeout{300'000};
  std::shared_ptr<Store> store = nullptr;  // of the job, where there is one: it hears the ranks' heartbeats
};

// A collective call. ConfigError where the process was not started by MPI's launcher, or Bonfire built without MPI.
std::shared_ptr<Group> mpi_group(const MpiOptions& options = {});
bool has_mpi();

// A collective call of all processes that mpirun has started: the first one's own. "" where Bonfire was built
// without MPI.
std::string text_over_mpi(const std::string& own, std::chrono::milliseconds timeout);

}  // namespace bonfire::comm
