#pragma once
// Which of several candidates computes a node. Each is timed once on random data; the times are remembered on disk by
// op, attributes, shapes, types, threads and device, so that later runs choose the same without measuring.
//
// BONFIRE_TUNE: `full` (default) times what is not remembered; `cached` uses what is remembered and otherwise the
// candidate with the fewest reorders; `off` never looks at times. The record lies in BONFIRE_CACHE (a folder), else in
// XDG_CACHE_HOME/bonfire or ~/.cache/bonfire.

#include <span>
#include <string>
#include <vector>

#include "bonfire/kernel/kernel.h"

namespace bonfire::runtime {

// The position of the candidate to use. `reorder_bytes` says how much each one would have reordered first.
size_t pick_candidate(const GraphNode& node, const std::vector<Candidate>& candidates,
                      std::span<const int64_t> reorder_bytes);

// Writes what was newly measured to disk; a record that cannot be written is a warning, not an error.
void save_tuning();

// The whole record as JSON text, to be stored with a checkpoint or sent to other ranks, and back.
std::string tuning_record();
void set_tuning_record(const std::string& json);  // DataError when it is not one

}  // namespace bonfire::runtime
