#pragma once
// Plans by their key: the structure of the trace, what must come out of it, and the pass options. Counts what happens
// and can say in words why a plan was compiled.

#include <memory>
#include <string>
#include <vector>

#include "bonfire/base/hash.h"
#include "bonfire/graph/trace.h"
#include "bonfire/passes/pass.h"
#include "bonfire/runtime/cache_statistics.h"
#include "bonfire/runtime/layout.h"
#include "bonfire/runtime/plan.h"

namespace bonfire::runtime {

// The plan for the trace with these live values: found or compiled. Thread-safe.
std::shared_ptr<Plan> find_or_compile(Trace& trace, std::span<const Value> live, const passes::Options& options);

// Whether every variable among the leaves lies in memory as the plan expects, or is still free to.
bool layouts_fit(const Plan& plan, std::span<const Value> leaves);

// The part of a step's key that neither the trace nor its inputs hold: the pass options, and kernels that are forced.
// The cache of plans and compile() both ask here.
void mix_surroundings(base::Hash128& key, const passes::Options& options, const Mesh& mesh);

// Plans, and what compile() has traced, that have not been used by so many submissions are dropped.
inline constexpr uint64_t kDropAfter = 2000;

std::vector<std::shared_ptr<Plan>> cached_plans();  // the one that was submitted last first
void clear_plan_cache();
// Every so many submissions (num_iteration_per_drop_scope; 100 unless told) plans that have not run for kDropAfter are
// dropped, and devices give back scratch memory that only these needed. ConfigError below 1.
void set_release_frequency(int64_t submissions);
int64_t release_frequency();
void note_submission(Plan& plan);  // of every submission, by the one who makes it, when it is under way
// Drops plans that were not used by the last `submissions` submissions; returns how many.
size_t drop_unused_plans(uint64_t submissions);

}  // namespace bonfire::runtime
