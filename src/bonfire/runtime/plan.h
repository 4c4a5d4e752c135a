#pragma once
// Plan: a graph made ready to run: kernels in order, and for every operand where its memory comes from.

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "bonfire/graph/graph.h"
#include "bonfire/kernel/queue.h"
#include "bonfire/runtime/crossing_memory.h"

namespace bonfire::runtime {

enum class Source : uint8_t {
  arena,     // a temporary: `offset` into the queue's arena
  feed,      // the buffer of leaf `index`
  variable,  // the memory of the variable of leaf `index`
  scalar,    // `offset` into the block of host numbers
  output,    // the buffer of output `index`, made for each submission
  crossing,  // a value that another device reads: `offset` into buffer `index`, another one for each submission
  constant   // constant `index` of the plan
};

struct Location {
  Source source = Source::arena;
  int index = 0;
  size_t offset = 0;  // bytes

  friend bool operator==(const Location&, const Location&) = default;
};

// A host number that a submission writes into the block.
struct ScalarSlot {
  int leaf = 0;
  size_t offset = 0;
};

struct PlanProgram {
  std::shared_ptr<Program> program;
  std::vector<Location> locations;  // of each address of the program
  std::vector<int> after;           // programs of other devices whose crossings it reads
  std::vector<ScalarSlot> scalars;
  size_t scalar_bytes = 0;
  size_t arena_bytes = 0;
};

// What was chosen for a node, for `print_plan` and profiles.
struct PlanNote {
  std::string node, path, candidate;
  bool again = false;  // it is the second run of one that was not kept
  std::vector<Layout> output_layouts;
  TensorSpec result = {};      // the first output
  double error = 1;            // the candidate's, as a multiple of the plain kernel's
  double operations = 0;       // floating-point, of products and convolutions; 0 for other ops
  double bytes = 0;            // of all operands
  int program = -1, step = 0;  // where it runs; program -1: nowhere, it is a view
};

// What lies in the arena, and from when to when: steps of the plan, both included. Outputs that are written over an
// input share its piece.
struct Temporary {
  const GraphNode* node = nullptr;  // of the plan's graph: who writes it first
  bool is_workspace = false;        // of that node
  size_t bytes = 0;
  int first = 0, last = 0;
};

// What keeping to a memory budget has changed on a device, as planning foretells it.
struct BudgetOutcome {
  Device device;
  size_t budget = 0, before = 0, after = 0;  // bytes of the step in all
  double seconds = 0, seconds_again = 0;     // of a step as it was, and of what runs again
  int nodes_again = 0;
};

std::string amount(size_t bytes);                     // "9.81 GB"
std::string to_string(const BudgetOutcome& outcome);  // "memory 9.81 GB → 5.93 GB, step +14 % (estimated)"

struct Plan {
  std::vector<PlanProgram> programs;
  std::vector<Layout> leaf_layouts;    // how the memory of variables must lie, and how that of others was given
  std::vector<bool> leaf_layout_used;  // whether this plan cares
  std::vector<TensorSpec> outputs;
  std::vector<Layout> output_layouts;  // row-major unless others were asked for
  std::vector<TensorSpec> crossings;   // one for each device that others read from
  std::shared_ptr<CrossingMemory> crossing_memory;
  std::vector<Buffer> constants;
  std::vector<PlanNote> notes;
  std::map<Device, std::vector<Temporary>> temporaries;
  std::vector<BudgetOutcome> budget;  // [devices that have one]
  bool waits_for_ranks = false;       // has collectives
  std::unique_ptr<Graph> graph;       // after all passes
  uint64_t last_used = 0;             // number of the submission
};

size_t peak_bytes(const Plan& plan, Device device);  // of temporaries, those that other devices read too
std::vector<Device> devices_of(const Plan& plan);
std::string print_plan(const Plan& plan);

}  // namespace bonfire::runtime
