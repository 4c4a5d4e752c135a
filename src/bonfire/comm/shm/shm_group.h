#pragma once
// Group of the processes of one host, over memory that they share.
//
//   auto group = comm::shm_group({.rank = 0, .size = 2, .store = store, .name = "host 0"});
//   comm::GroupBuffer gradients = group->buffer(bytes);      // reduced in place, nothing is copied
//
// The memory has no file name: it is handed from process to process (comm/shm/mesh.h), so neither the size of /dev/shm
// nor what a killed job left there matters. It is gone with the last process.

#include <memory>

#include "bonfire/comm/group.h"

namespace bonfire::comm {

// A collective call. All ranks must run on one host, in one network namespace, as one user.
std::shared_ptr<Group> shm_group(const Membership& membership);

}  // namespace bonfire::comm
