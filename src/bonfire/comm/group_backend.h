#pragma once
// Ways to make a job's group, by name: each registers itself in its own folder (comm/shm, comm/gloo, comm/mpi).
//
//   const bool registered = register_group_backend("shm", [](const GroupRequest& request) { ... });
//   std::shared_ptr<Group> group = make_group("auto", {membership, "10.0.0.7", false});

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "bonfire/comm/group.h"

namespace bonfire::comm {

struct GroupRequest {
  Membership membership;
  std::string address;  // of this rank, as others reach it
  bool one_host;        // whether all ranks are on one
};

using MakeGroup = std::function<std::shared_ptr<Group>(const GroupRequest&)>;

bool register_group_backend(std::string name, MakeGroup make);
std::vector<std::string> group_backends();  // their names, sorted

// A collective call. "auto": shared memory on one host, Gloo across hosts. ConfigError for a name that nobody has
// registered, and whatever that backend refuses.
std::shared_ptr<Group> make_group(const std::string& backend, const GroupRequest& request);

}  // namespace bonfire::comm
