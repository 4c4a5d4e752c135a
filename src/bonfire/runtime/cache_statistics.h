#pragma once
// How often steps were compiled, and why the newest one was:
//
//   runtime::CacheStatistics plans = runtime::cache_statistics();
//   std::printf("%d plans, the last since %s\n", int(plans.compiled), plans.last_reason.c_str());
//
// BONFIRE_LOG=debug says so as it happens.

#include <cstdint>
#include <string>

namespace bonfire::runtime {

struct CacheStatistics {
  uint64_t compiled = 0;
  uint64_t hits = 0;
  uint64_t releases = 0;         // times that unused plans and scratch memory were released
  uint64_t dropped = 0;          // plans, by these
  double seconds_compiling = 0;  // passes, planning and timing of kernels, by all threads
  std::string last_reason;       // why the newest plan was compiled, in words
};

CacheStatistics cache_statistics();

}  // namespace bonfire::runtime
