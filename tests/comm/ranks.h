#pragma once
// Ranks as they are in life: threads for comm/local, processes for the others. Such a process is this program again,
// run for the same test (gRPC does not live through a fork): there run_ranks is the body of one rank and does not
// return.

#include <array>
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "bonfire/comm/group.h"

namespace bonfire::testing {

enum class Backend { local, staged, shm, gloo, mpi };  // staged: local, through chunks
std::string name_of(Backend backend);
bool are_threads(Backend backend);
bool is_here(Backend backend);  // built in, and what starts its ranks is installed

// Numbers that all ranks of a test see, whatever becomes of their group.
using Counters = std::array<std::atomic<int>, 2>;

// What one rank works with. A rank that throws has failed.
struct Rank {
  std::shared_ptr<comm::Group> group;
  Counters& counters;
  std::shared_ptr<comm::Store> store = nullptr;  // of shm and gloo

  int rank() const { return group->rank(); }
  int size() const { return group->size(); }
  void wait_for(size_t counter, int value) const;
};

// Runs the body once for each rank and returns how each ended: "" when it returned, else what it threw or which signal
// killed it.
std::vector<std::string> run_ranks(Backend backend, int size, const std::function<void(Rank&)>& body,
                                   std::chrono::milliseconds timeout = std::chrono::seconds(60));

// Fails the calling rank.
void require(bool condition, const std::string& what);

// All ranks returned.
void expect_all_fine(const std::vector<std::string>& endings);

}  // namespace bonfire::testing
