#pragma once
// Where the time of a step goes: each node of a plan, what was chosen for it, how long it takes and how fast that is.
//
//   start_profile(*plan);
//   ...  // a few submissions
//   std::cout << print_profile(*plan);
//
// On a CPU it is real time, or with one thread its processor time. On a GPU steps then run one by one instead of as one
// captured graph: what each takes alone.

#include <optional>
#include <string>
#include <vector>

#include "bonfire/runtime/plan.h"

namespace bonfire::runtime {

// Floating-point operations of a product or convolution, two for each multiplication with its addition; 0 otherwise.
double operations_of(const GraphNode& node);

PlanNote note_of(const GraphNode& node, const Candidate& candidate);

void start_profile(const Plan& plan);  // forgets what was noted before; waits for what is in flight
void stop_profile(const Plan& plan);

struct NodeTime {
  const PlanNote* note;
  double seconds;  // median over the submissions
};

// Nodes in the order in which they run; empty before the first submission.
std::vector<NodeTime> profile_of(const Plan& plan);

struct NodeSpan {
  const PlanNote* note;
  Device device;
  double begin, seconds;          // begin: on the steady clock
  std::optional<Line> line = {};  // of a node that waits for other ranks, which runs beside the others
};

// Every node of every submission, in the order in which they ran.
std::vector<NodeSpan> spans_of(const Plan& plan);

// Real seconds of each submission, from the beginning of its first node in a queue to the end of the last one.
std::vector<double> submission_seconds(const Plan& plan);

// A line per node (time, share, GFLOP/s, GB/s, candidate, layout), then the sums by op, largest first.
std::string print_profile(const Plan& plan);

}  // namespace bonfire::runtime
