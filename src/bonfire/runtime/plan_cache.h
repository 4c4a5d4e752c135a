#pragma once
// Plans by their key: the structure of the trace, what must come out of it, and the pass options. Counts what happens
// and can say in words why a plan was compiled.

#include <memory>
#include <string>
#include <vector>

#include "bonfire/base/hash.h"
#include "bonfire/graph/trace.h"
#include "bonfire/passes/pass.h"
#include "bonfire/runtime/layout.h"
#include "bonfire/runtime/plan.h"

namespace bonfire::runtime {

struct CacheStatistics {
  uint64_t compiled = 0;
  uint64_t hits = 0;
  std::string last_reason;  // why the newest plan was compiled, in words
};

// The plan for the trace with these live values: found or compiled. Thread-safe.
std::shared_ptr<Plan> find_or_compile(const Trace& trace, std::span<const Value> live, const passes::Options& options);

CacheStatistics cache_statistics();
std::vector<std::shared_ptr<Plan>> cached_plans();  // in no order
void clear_plan_cache();
// Drops plans that were not used by the last `launches` launches; returns how many.
size_t drop_unused_plans(uint64_t launches);

}  // namespace bonfire::runtime
