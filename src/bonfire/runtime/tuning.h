#pragma once
// How long candidates take. Each is timed once on random data; the times are remembered on disk by op, attributes,
// shapes, types, threads and processor, so that later runs choose the same without measuring. The record belongs to one
// build of the library: another one's kernels are measured anew.
//
// BONFIRE_TUNE: `full` (default) times what is not remembered; `cached` uses what is remembered and otherwise the
// candidate with the fewest reorders; `off` never looks at times. The record lies in BONFIRE_CACHE (a folder), else in
// XDG_CACHE_HOME/bonfire or ~/.cache/bonfire.

#include <span>
#include <string>
#include <vector>

#include "bonfire/comm/group.h"
#include "bonfire/kernel/kernel.h"

namespace bonfire::runtime {

// Nanoseconds of each candidate; empty when they are not known and must not be measured. Candidates of one name are
// one kernel.
std::vector<double> candidate_times(const GraphNode& node, const std::vector<Candidate>& candidates);

// The position of the candidate to use: the one with the least time, its own and what must be reordered around it.
size_t pick_candidate(const GraphNode& node, const std::vector<Candidate>& candidates,
                      std::span<const double> reorder_nanoseconds);

// Of moving a value from one layout to another: measured, or guessed from its bytes when it must not be.
double reorder_nanoseconds(const TensorSpec& spec, const Layout& from, const Layout& to);

// The op that moves, for graphs: attributes from_order, from_block, to_order, to_block.
const Op& reorder_op();
Attributes reorder_attributes(const Layout& from, const Layout& to);

// Seconds that this process has spent on measuring so far.
double tuning_seconds();

// Writes what was newly measured to disk; a record that cannot be written is a warning, not an error.
void save_tuning();

// Forgets what is in memory: the next use reads the file, which another process may have written.
void reload_tuning();

// The whole record as JSON text, to be stored with a checkpoint or sent to other ranks, and back.
std::string tuning_record();
void set_tuning_record(const std::string& json);  // DataError when it is not one

// A collective call of processes: from now on rank 0's record is that of all ranks whose processor and library are its
// own, so that they choose the same kernels. What it lacks each of them measures for itself.
void share_tuning(comm::Group& group);

}  // namespace bonfire::runtime
