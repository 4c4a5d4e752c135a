#pragma once
// A TCP connection with each peer of a group, made before Gloo has any: it takes whoever calls first for a peer.
//
// Each rank has a gate (comm/gate.h) while the group is made. The pass to it is a secret that stands in the store,
// which tells it to those who know the job's token. Each rank calls those below it and is called by those above.

#include <string>
#include <vector>

#include "bonfire/comm/file_descriptor.h"
#include "bonfire/comm/group.h"

namespace bonfire::comm {

// A collective call; `address`: the literal of this host's to listen on. [size], by rank; none to itself. TimeoutError
// names the rank that did not come, CommError one that cannot be reached.
std::vector<FileDescriptor> connect_peers(const Membership& membership, const std::string& address);

}  // namespace bonfire::comm
