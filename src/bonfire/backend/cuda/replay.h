#pragma once
// Replay: a program captured as a CUDA graph, submitted as one piece of work.
//
// A captured graph holds addresses, but feeds and outputs lie elsewhere on each submission and numbers differ. So the
// graph reads and writes slots, memory of its own, and begins with one kernel that copies feeds and numbers in and ends
// with one that copies outputs out; a submission only sets the arguments of these two.
//
// A program is a list of steps in an order that is right but rarely the only right one. The graph gets an edge only
// where two steps touch the same bytes and one of them writes, so small kernels that do not need each other (the
// gradients of a weight and of an input) run at the same time.

#include <vector>

#include "bonfire/backend/cuda/collectives.h"
#include "bonfire/backend/cuda/copy_list.h"
#include "bonfire/backend/cuda/memory.h"
#include "bonfire/kernel/accesses.h"

namespace bonfire::cuda {

using GraphHandle = Handle<cudaGraph_t, cudaGraphDestroy>;
using GraphExecution = Handle<cudaGraphExec_t, cudaGraphExecDestroy>;

enum class StepPart { all, begin, end };  // a collective has two, which need not follow each other

// Runs step `index` of the program with these addresses. DeviceError names its label when it fails.
void run_step(const Program& program, size_t index, const std::vector<void*>& addresses, const StagedSteps& staged,
              cudaStream_t stream, StepPart part = StepPart::all);

class Replay {
 public:
  // Captures on `stream`; nothing runs yet. `staged` lives longer.
  Replay(const Submission& submission, const StagedSteps& staged, int device, cudaStream_t stream);
  ~Replay();
  Replay(const Replay&) = delete;
  Replay& operator=(const Replay&) = delete;

  bool fits(const Submission& submission) const;  // whether what was captured as fixed is still there
  void submit(const Submission& submission, cudaStream_t stream);

 private:
  // A run of copies that is one node of the graph. Each item is of address `positions[i]`.
  struct CopyNode {
    CopyList list;
    std::vector<int> positions;
    cudaGraphNode_t node = nullptr;
    size_t inline_offset = 0;  // into the submission's block of numbers
  };

  void assign_slots(const Submission& submission);
  void make_copy_nodes(const Submission& submission);
  void fill(CopyNode& node, const Submission& submission, AddressKind kind) const;
  void capture(const Submission& submission, cudaStream_t stream);

  int device_;
  const StagedSteps& staged_;
  void* slots_ = nullptr;
  size_t slot_bytes_ = 0;
  std::byte* scalars_ = nullptr;  // the block of numbers, in the slots
  std::vector<void*> addresses_;  // what the graph uses: fixed ones, and slots
  std::vector<void*> fixed_;      // the submission's addresses where they must stay, else null
  std::vector<int> host_feeds_;   // addresses of feeds that lie in host memory: copied ahead of the graph
  std::vector<CopyNode> copies_in_, copies_out_;
  GraphHandle graph_;  // its nodes name what submission() changes in the execution
  GraphExecution execution_;
};

// For each step, the earlier ones it must wait for; those implied by others are left out.
std::vector<std::vector<int>> dependencies(const std::vector<Accesses>& steps);

}  // namespace bonfire::cuda
