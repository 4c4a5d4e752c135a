#pragma once
// Collectives of a GPU, staged through the host: their operands are copied into its memory, a thread of the queue runs
// the kernel there, which reduces them with those of the other ranks, and the results are copied back. All of this is
// work of the stream: it is captured with the steps around it, and steps that do not need the results run beside it.
//
// The stream calls a host function, which only tells the thread, and then waits for a HostFlag. A host function that
// waited for the peers itself might wait for ever: CUDA may call those of all devices one after another.

#include <condition_variable>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "bonfire/backend/cuda/host_flag.h"
#include "bonfire/kernel/queue.h"

namespace bonfire::cuda {

class CollectiveThread;

// What is known of the collectives of one launch; complete when the launch is done.
struct CollectiveLaunch {
  size_t left = 0;  // not made yet
  FailureCalls after_failure;
  std::exception_ptr failure;  // the first
  double waited = 0;           // seconds in which the device had to wait
};

// One collective of a program.
class StagedCollective {
 public:
  // `blocks`: the steps behind it can hardly begin before it is done.
  StagedCollective(const Program& program, size_t step, bool blocks, CollectiveThread& thread);
  ~StagedCollective();  // when the stream has nothing more of it
  StagedCollective(const StagedCollective&) = delete;
  StagedCollective& operator=(const StagedCollective&) = delete;

  // Hands the operands to the thread, in the order in which all ranks make their collectives. Another place than before
  // for one of them: only when the stream has nothing more of it.
  void enqueue_begin(std::span<void* const> inputs, std::span<void* const> outputs, cudaStream_t stream);
  void enqueue_end(std::span<void* const> outputs, cudaStream_t stream);  // waits, and fetches the results
  bool fits() const;  // whether its operands are still staged where they were when it was enqueued

 private:
  friend class CollectiveThread;
  struct Copy {
    std::byte *device, *host;
    size_t bytes;
    bool shared;  // of a block that is staged as a whole
  };

  std::vector<std::byte*> places_for(std::span<void* const> outputs);
  std::vector<Copy> copies(std::span<void* const> addresses) const;  // neighbours in one
  void run() const;                                                  // the kernel, on the host

  const ProgramStep& step_;
  Device device_;
  std::vector<size_t> bytes_;  // [operand]
  bool blocks_;
  CollectiveThread& thread_;
  HostFlag done_;
  std::byte* own_ = nullptr;  // pinned; for operands of no staged block
  size_t own_bytes_ = 0;
  std::vector<void*> outputs_;   // [operand] on the device
  std::vector<void*> operands_;  // [operand] on the host
};

// [step]; null where a step runs on the device. Empty: all do.
using StagedSteps = std::vector<std::unique_ptr<StagedCollective>>;
StagedSteps stage_collectives(const Launch& launch, CollectiveThread& thread);

// Makes the collectives of one queue, in the order in which its stream comes to them.
class CollectiveThread {
 public:
  ~CollectiveThread();

  // To be called before a launch with this many collectives is enqueued.
  std::shared_ptr<CollectiveLaunch> expect(const Launch& launch, size_t collectives);
  void forget(const std::shared_ptr<CollectiveLaunch>& launch);  // the stream has nothing more of it
  void begin(StagedCollective& collective);

 private:
  struct Begun {
    StagedCollective* collective;
    double since;  // seconds
  };
  void serve();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Begun> begun_;
  std::deque<std::shared_ptr<CollectiveLaunch>> launches_;  // not finished, oldest first
  bool stop_ = false;
  std::thread thread_;  // since the first launch
};

}  // namespace bonfire::cuda
