// The twin of mpi_group.cpp where MPI is not there to build with.
#include "bonfire/base/error.h"
#include "bonfire/comm/group_backend.h"
#include "bonfire/comm/mpi/mpi_group.h"

namespace bonfire::comm {

std::shared_ptr<Group> mpi_group(const MpiOptions&) {
  throw_error<ConfigError>(
      "[mpi] this Bonfire was built without MPI; install libopenmpi-dev and openmpi-bin and build it again");
}

bool has_mpi() { return false; }
std::string text_over_mpi(const std::string&, std::chrono::milliseconds) { return {}; }

namespace {
const bool mpi_registered = register_group_backend("mpi", [](const GroupRequest& request) {
  return mpi_group({.timeout = request.membership.timeout, .store = request.membership.store});
});
}  // namespace

}  // namespace bonfire::comm
