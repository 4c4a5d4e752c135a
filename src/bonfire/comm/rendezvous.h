#pragma once
// How the ranks of a job meet: each connects to the store, says who and where it is, and learns of all others.
//
//   Rendezvous job = comm::meet(comm::read_environment());
//   job.peers[1].address      "10.0.0.8"
//   job.store->set(...)
//
// Where no launcher of ours holds the store, rank 0 does for as long as its Rendezvous lives.

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "bonfire/comm/environment.h"
#include "bonfire/comm/same_settings.h"
#include "bonfire/comm/store.h"

namespace bonfire::comm {

struct Peer {
  int rank = 0;
  std::string host;     // its name, for messages
  std::string address;  // literal by which the other ranks reach it
  // Equal for ranks that share memory and loopback: the kernel's boot and the network namespace. Names say nothing:
  // containers on one machine have many, and cloned machines the same.
  std::string machine;
  int64_t process = 0;
};

struct Rendezvous {
  Environment environment;
  std::vector<Peer> peers;       // [world], this rank among them
  std::shared_ptr<Store> store;  // nullptr for a process that nobody started as a rank
};

struct MeetOptions {
  std::chrono::milliseconds timeout{300'000};  // for all ranks to come
  Settings settings = {};                      // that must be the same on all of them
};

// A collective call of all ranks. TimeoutError names the ranks that never came; CommError a rank with another version
// of Bonfire, or why the store cannot be reached; ConfigError an interface that cannot be used, or settings that differ
// (comm/same_settings.h).
Rendezvous meet(const Environment& environment, const MeetOptions& options = {});

std::string library_version();  // "0.1.0"
std::string host_name();
std::string process_name(int rank);  // of this process, for messages: "rank 1 (node0, process 4711)"
std::string machine_id();            // Peer::machine of this process

}  // namespace bonfire::comm
