#pragma once
// Groups of the threads of one process.
//
//   auto groups = comm::local_groups(2);          // then thread r works with groups[r]
//
// Threads see all memory, so every collective is done in place, whatever memory the values lie in.

#include <chrono>
#include <memory>
#include <vector>

#include "bonfire/comm/group.h"

namespace bonfire::comm {

struct LocalOptions {
  std::chrono::milliseconds timeout{300'000};
  bool staged = false;  // values go through chunks, as between processes: slower, for tests of that way
};

// One group for each rank, made by one thread for all of them.
std::vector<std::shared_ptr<Group>> local_groups(int size, LocalOptions options = {});

}  // namespace bonfire::comm
