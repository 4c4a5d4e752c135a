#pragma once
// Where a pipeline is cut when nobody says where: so that its slowest stage takes as little time as can be.
//
//   const StepCosts costs = costs_of(traced, options);  // measured, where that may be done
//   const BalancedCut cut = balance_stages(traced, costs, {.stages = 2, .micro_batches = 8});
//
// Of cuts whose slowest stage takes at most 2 % longer than that the one is taken whose fullest stage needs least
// memory. By measured times no stage begins with a module that has no kernel of its own in the forward pass: it is
// computed in the kernel of one before it (an activation after its layer), which such a cut would take apart.

#include <optional>
#include <string>
#include <vector>

#include "bonfire/graph/graph.h"
#include "bonfire/graph/step_options.h"
#include "bonfire/parallel/pipeline/schedule.h"

namespace bonfire::pipeline {

// What the nodes of a micro-batch cost, forward and backward pass.
struct StepCosts {
  struct Node {
    int number = -1;  // of the node of the forward pass that it is or whose gradient it computes
    std::string path;
    double cost = 0;
    bool forward = true;  // it is of the forward pass
  };
  bool measured = false;  // costs are seconds, of the kernels that planning chooses here; else operations
  std::vector<Node> nodes;
};

// Measured by runtime/node_times.h; where that must not be: the operations of products and convolutions, and 8 for each
// byte that is read or written. The graph is one as it was traced, which stays as it is.
StepCosts costs_of(const Graph& traced, const StepOptions& options);

struct BalanceOptions {
  int stages = 1;                                     // of all ranks
  int chunks = 1;                                     // stages of each rank
  ScheduleKind schedule = ScheduleKind::one_f_one_b;  // which says how many micro-batches a stage keeps
  int micro_batches = 1;
  std::optional<std::vector<std::string>> firsts = {};  // these, which may be (ForwardStages): only what they cost
};

struct StageLoad {
  double cost = 0;   // of a micro-batch: seconds, or operations
  double bytes = 0;  // parameters with their gradients, and what is kept of micro-batches for the backward pass
};

struct BalancedCut {
  std::vector<std::string> firsts;  // [stages - 1]: the first module of each further stage
  bool measured = false;            // by times; else by operations and bytes
  std::vector<StageLoad> loads;     // [stages]
};

// ConfigError where the step has too few modules, or none of such a name.
BalancedCut balance_stages(const Graph& traced, const StepCosts& costs, const BalanceOptions& options);

// "by measured times of its kernels: 3.1 and 3.3 ms a micro-batch"
std::string to_string(const BalancedCut& cut);

// For other ranks, which all cut as the first one does.
std::string encode(const BalancedCut& cut);
BalancedCut decode_cut(const std::string& text);

}  // namespace bonfire::pipeline
