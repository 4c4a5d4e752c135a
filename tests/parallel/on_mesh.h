#pragma once
// Threads as the ranks of a mesh, each with a device of its own.

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "bonfire/base/error.h"
#include "bonfire/comm/local/local_group.h"
#include "bonfire/parallel/fleet.h"

namespace bonfire::testing {

// Calls the body on all of them; what each has thrown.
inline std::vector<std::string> errors_on_mesh(int ranks, const MeshSizes& sizes,
                                               const std::function<void(Device)>& body) {
  auto groups = comm::local_groups(ranks, {.timeout = std::chrono::seconds(60)});
  std::vector<std::string> errors(static_cast<size_t>(ranks));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank)
    threads.emplace_back([&, rank] {
      try {
        fleet::join(groups[static_cast<size_t>(rank)], sizes);
        body({DeviceType::cpu, static_cast<int16_t>(rank)});
        fleet::leave();
      } catch (const std::exception& error) {
        errors[static_cast<size_t>(rank)] = error.what();
      }
    });
  for (std::thread& thread : threads) thread.join();
  return errors;
}

inline void on_mesh(int ranks, const MeshSizes& sizes, const std::function<void(Device)>& body) {
  const std::vector<std::string> errors = errors_on_mesh(ranks, sizes, body);
  for (size_t rank = 0; rank < errors.size(); ++rank) EXPECT_EQ(errors[rank], "") << "rank " << rank;
}

}  // namespace bonfire::testing
