#include "bonfire/base/machine.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>

#include "bonfire/base/thread_pool.h"

namespace bonfire::base {

int64_t most_tasks() {
  constexpr int64_t kEachCore = 16, kAnywhere = 64;
  return std::max(kAnywhere, kEachCore * available_cores());
}

uint64_t memory_bytes() {
  static const uint64_t known = [] {
    auto bytes = static_cast<uint64_t>(::sysconf(_SC_PHYS_PAGES)) * static_cast<uint64_t>(::sysconf(_SC_PAGE_SIZE));
    for (const char* file : {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"})
      if (uint64_t limit = 0; std::ifstream(file) >> limit && limit > 0) bytes = std::min(bytes, limit);
    return bytes;
  }();
  return known;
}

}  // namespace bonfire::base
