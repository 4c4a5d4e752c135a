#pragma once
// Which nodes of the forward pass are computed again in the backward pass, so that the temporaries of a step fit into a
// budget. Private to runtime; memory_budget.h makes the model of a plan and applies the choice.
//
// A node that is chosen runs a second time just before the first of the later readers of what it writes; all of these
// read the second result. What it reads itself is kept until then, unless whoever writes that is chosen too.

#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

namespace bonfire::runtime {

struct ModelNode {
  std::vector<int> reads, writes;                  // values, each once
  std::vector<std::pair<int, int>> in_place = {};  // (written, read): may share bytes where the read one dies here
  size_t workspace = 0;                            // bytes
  double seconds = 0;                              // that it takes
  bool is_late = false;                            // of the backward pass or the update
  bool may_repeat = false;
};

// The nodes in their order, and the bytes of each value: 0 where it does not lie among the temporaries.
struct StepModel {
  std::vector<ModelNode> nodes;
  std::vector<size_t> bytes;
  int in_flight = 1;  // neighbouring runs that never share bytes
};

using Repeated = std::vector<bool>;  // [nodes]

// What runs, in order: of a node the number, its second run as -1 - number.
std::vector<int> order_of_runs(const StepModel& model, const Repeated& repeated);

// The most bytes of temporaries that a run needs. Memory planning takes a few percent more.
size_t peak_of(const StepModel& model, const Repeated& repeated);

double seconds_of_repeats(const StepModel& model, const Repeated& repeated);

// Nodes whose second runs take little time and after which no run needs more than `most` bytes; nothing where it finds
// none. Greedy: next the node that takes most of what is above the budget for its time, alone or with those before it
// whose results would else have to be kept for it; where that leads nowhere, from the other end: all run again but for
// those that help most when they are kept. At the end what turns out not to be needed is taken back.
std::optional<Repeated> choose_repeated(const StepModel& model, size_t most);

// The fewest bytes for which it finds a choice, within a twentieth.
size_t fewest_bytes(const StepModel& model);

}  // namespace bonfire::runtime
