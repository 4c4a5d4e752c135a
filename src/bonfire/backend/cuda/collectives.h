#pragma once
// Steps of a GPU that wait for other ranks on the host (Candidate::line), staged: their operands are copied into its
// memory, a thread of their line runs the kernel there, and the results are copied back. All of this is work of the
// stream: it is captured with the steps around it, and steps that do not need the results run beside it.
//
// The stream calls a host function, which only hands the step to its line, and then waits for a HostFlag. A host
// function that waited for the peers itself might wait for ever: CUDA may call those of all devices one after another.

#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "bonfire/backend/cuda/host_flag.h"
#include "bonfire/kernel/background.h"

namespace bonfire::cuda {

class CollectiveLines;

// What is known of the steps in lines of one submission; complete when the submission is done.
struct CollectiveSubmission {
  size_t left = 0;  // not begun yet
  FailureCalls after_failure;
  std::shared_ptr<StepGroups> groups;
  std::mutex mutex;            // of what follows: lines run side by side
  std::exception_ptr failure;  // the first
  double waited = 0;           // seconds in which the device had to wait
};

// One step of a program.
class StagedCollective {
 public:
  // `blocks`: the steps after it can hardly begin before it is done.
  StagedCollective(const Program& program, size_t step, bool blocks, CollectiveLines& lines);
  ~StagedCollective();  // when the stream has nothing more of it
  StagedCollective(const StagedCollective&) = delete;
  StagedCollective& operator=(const StagedCollective&) = delete;

  // Hands the operands to the line, in the order in which all ranks make their collectives. Another place than before
  // for one of them: only when the stream has nothing more of it.
  void enqueue_begin(std::span<void* const> inputs, std::span<void* const> outputs, cudaStream_t stream);
  void enqueue_end(std::span<void* const> outputs, cudaStream_t stream);  // waits, and fetches the results
  bool fits() const;  // whether its operands are still staged where they were when it was enqueued

 private:
  friend class CollectiveLines;
  struct Copy {
    std::byte *device, *host;
    size_t bytes;
    bool shared;  // of a block that is staged as a whole
  };
  // An input or an output.
  struct Operand {
    size_t bytes = 0;
    int stands_at = -1;  // of an input that may be written over: the output whose place on the host it has
    void* device = nullptr;
    void* host = nullptr;
  };

  void place(std::span<void* const> inputs, std::span<void* const> outputs);
  std::vector<Copy> copies(std::span<Operand> operands) const;                                // neighbours in one
  void run(const std::shared_ptr<CollectiveSubmission>& submission, Background& background);  // the kernel, on the host
  std::span<Operand> inputs() { return std::span(operands_).first(step_.inputs.size()); }
  std::span<Operand> outputs() { return std::span(operands_).subspan(step_.inputs.size()); }

  const ProgramStep& step_;
  Device device_;
  bool blocks_;
  CollectiveLines& lines_;
  HostFlag done_;
  std::byte* own_ = nullptr;  // pinned; for operands of no staged block
  size_t own_bytes_ = 0;
  std::vector<Operand> operands_;  // inputs, then outputs
};

// [step]; null where a step runs on the device. Empty: all do.
using StagedSteps = std::vector<std::unique_ptr<StagedCollective>>;
StagedSteps stage_collectives(const Submission& submission, CollectiveLines& lines);

// Runs the staged steps of one queue, each in its line, as its stream comes to them.
class CollectiveLines {
 public:
  // To be called before a submission with so many steps in lines is enqueued.
  std::shared_ptr<CollectiveSubmission> expect(const Submission& submission, size_t steps);
  void forget(const std::shared_ptr<CollectiveSubmission>& submission);  // the stream has nothing more of it
  void begin(StagedCollective& collective);
  void throw_late_failure(const Submission& submission);  // of what its job has posted

 private:
  std::mutex mutex_;
  std::deque<std::shared_ptr<CollectiveSubmission>> submissions_;  // not begun as a whole, oldest first
  Background background_;
};

}  // namespace bonfire::cuda
