#pragma once
// Ranks as they are in life: threads for comm/local, forked processes for the others.

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "bonfire/comm/group.h"
#include "bonfire/comm/store.h"

namespace bonfire::testing {

enum class Backend { local, shm, gloo };
std::string name_of(Backend backend);

// What one rank works with. A rank that throws has failed.
struct Rank {
  std::shared_ptr<comm::Group> group;
  std::shared_ptr<comm::Store> store;  // of the test alone

  int rank() const { return group->rank(); }
  int size() const { return group->size(); }
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
