#pragma once
// How long candidates take. Each is timed once on random data, by one rank for all (runtime/timing_peers.h); the times
// are remembered on disk by op, attributes, shapes, types, threads and processor, so that later runs choose the same
// without measuring. The record belongs to one build of the library: another one's kernels are measured anew.
//
// BONFIRE_TUNE: `full` (default) times what is not remembered; `cached` uses what is remembered and otherwise the
// candidate with the fewest reorders; `off` never looks at times. The record lies in BONFIRE_CACHE (a folder), else in
// XDG_CACHE_HOME/bonfire or ~/.cache/bonfire.

#include <chrono>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "bonfire/comm/group.h"
#include "bonfire/comm/store.h"
#include "bonfire/kernel/kernel.h"

namespace bonfire::runtime {

class TimingPeers;

// Nanoseconds of each candidate; empty when they are not known and must not be measured. Candidates of one name are
// one kernel: those whose times differ by layout say it in their names ("winograd:nhwc").
std::vector<double> candidate_times(const GraphNode& node, const std::vector<Candidate>& candidates);

// Measures those of a list of nodes that are not known and that nobody else is measuring: what a plan asks for all at
// once is shared out among the ranks that make it.
struct TimedNode {
  const GraphNode* node;
  std::vector<Candidate> candidates;
};
void share_out_timing(std::span<const TimedNode> nodes);
bool timing_is_shared();  // with ranks that are other processes

// The position of the candidate to use: the one with the least time, its own and what must be reordered around it.
size_t pick_candidate(const GraphNode& node, const std::vector<Candidate>& candidates,
                      std::span<const double> reorder_nanoseconds);

// Of moving a value from one layout to another: measured, or guessed from its bytes when it must not be.
double reorder_nanoseconds(const TensorSpec& spec, const Layout& from, const Layout& to);

struct Reorder {
  TensorSpec spec;
  Layout from, to;
};
void share_out_reorders(std::span<const Reorder> reorders);  // as share_out_timing, between processes

// The op that moves, for graphs: attributes from_order, from_block, to_order, to_block.
const Op& reorder_op();
Attributes reorder_attributes(const Layout& from, const Layout& to);

// Seconds that this process has spent on measuring so far.
double tuning_seconds();

// Writes what was newly measured to disk; a record that cannot be written is a warning, not an error.
void save_tuning();

// Forgets what is in memory: the next use reads the file, which another process may have written.
void reload_tuning();

// The whole record as JSON text, to be stored with a checkpoint, and back. One of another build is not taken: the
// record stays as it is, and the answer is false.
std::string tuning_record();
bool set_tuning_record(const std::string& json);  // DataError when it is not one

// A collective call: the ranks' records become one, which all of them have from now on. What ranks have in common is
// the first one's. Each build has its own.
void share_tuning(comm::Group& group);

// A collective call of processes: as share_tuning; and as long as the result lives, what the record lacks is timed by
// one rank for all.
std::shared_ptr<TimingPeers> share_timing(comm::Group& group, std::shared_ptr<comm::Store> store,
                                          std::chrono::milliseconds timeout);

}  // namespace bonfire::runtime
