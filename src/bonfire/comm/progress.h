#pragma once
// How far a rank has come, for messages of its peers. A group and those split from it share one.

#include <atomic>
#include <cstdint>
#include <string>

namespace bonfire::comm {

struct Progress {
  std::atomic<int64_t> step{0};            // 1: the first with collectives since the job was joined
  std::atomic<const char*> call{nullptr};  // the last that was begun: "all_reduce"; null: none

  std::string text() const {  // "step 12, all_reduce"
    const char* last = call.load(std::memory_order_relaxed);
    return "step " + std::to_string(step.load(std::memory_order_relaxed)) + ", " + (last == nullptr ? "no call" : last);
  }
};

}  // namespace bonfire::comm
