#pragma once
// Ranks of one job as threads of this process, each with a device of its own.

#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "bonfire/base/error.h"
#include "bonfire/comm/local/local_group.h"
#include "bonfire/parallel/fleet.h"

namespace bonfire::train {

// Calls body(rank) in each of them. What each has thrown; empty: nothing.
inline std::vector<std::string> as_ranks(int count, const std::function<void(int rank)>& body,
                                         const MeshSizes& sizes = {}) {
  auto groups = comm::local_groups(count, {.timeout = std::chrono::seconds(60)});
  std::vector<std::string> errors(static_cast<size_t>(count));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < count; ++rank)
    threads.emplace_back([&, rank] {
      fleet::join(groups[static_cast<size_t>(rank)], sizes);
      try {
        body(rank);
      } catch (const Error& error) {
        errors[static_cast<size_t>(rank)] = error.what();
      }
      try {
        fleet::leave();
      } catch (const Error&) {  // a rank has failed, and was named before
      }
    });
  for (std::thread& thread : threads) thread.join();
  return errors;
}

}  // namespace bonfire::train
