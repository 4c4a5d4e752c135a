#pragma once
// The queue of one CUDA device: a stream, an arena, and the captured graphs of the programs it has seen twice.

#include <atomic>
#include <deque>
#include <mutex>
#include <optional>
#include <unordered_map>

#include "bonfire/backend/cuda/replay.h"
#include "bonfire/kernel/queue.h"

namespace bonfire::cuda {

// What a submission with collectives needs beside the event after it: seconds are counted between `begin` and that.
struct CollectiveCount {
  std::shared_ptr<CollectiveSubmission> submission;
  Event begin;
  std::atomic<double>&computing, &communicating;  // of the queue: they are added to
};

// An event after a submission. Holds what the submission uses until it is known to be done.
class EventCompletion final : public Completion {
 public:
  EventCompletion(int index, Event event, Submission submission, std::optional<CollectiveCount> collectives);

  void wait() override;          // throws what failed
  void wait_quietly() noexcept;  // until it is done or has failed
  bool done() override;
  void fail(std::exception_ptr failure);
  bool begins_step() const { return begins_step_; }
  cudaEvent_t event() const { return event_.get(); }

 private:
  void finish(cudaError_t status);
  void count_collectives(cudaError_t status);

  Event event_;
  bool begins_step_;
  std::optional<CollectiveCount> collectives_;
  std::mutex mutex_;
  bool finished_ = false;
  std::exception_ptr failure_;
  Submission submission_;
};

class CudaQueue final : public Queue {
 public:
  explicit CudaQueue(int index);

  std::shared_ptr<Completion> submit(Submission submission) override;
  void synchronize() override;
  void* arena(size_t bytes) override;
  size_t spread_bytes() const override { return size_t{32} << 20; }  // more would leave the cache
  double seconds_computing() override;                               // of submissions with collectives only
  uint64_t memory_bytes() const override { return traits_of(index_).memory_bytes; }
  std::string model() const override { return traits_of(index_).model; }
  double seconds_communicating() override;
  void run_now(const std::function<void(const Run&)>& body) override;

 private:
  struct Known {
    std::weak_ptr<const Program> program;
    void* scalars = nullptr;  // the block of host numbers on the device, for submissions step by step
    size_t scalar_bytes = 0;
    StagedSteps staged;
    std::unique_ptr<Replay> replay;
  };

  void make_room(const Submission& submission);  // until fewer than two steps are in flight, where it begins one
  void wait_for_others(const Submission& submission);
  void enqueue(const Submission& submission);
  void run_directly(Known& known, const Submission& submission);
  void run_timed(const Program& program, const std::vector<void*>& addresses, const StagedSteps& staged);
  void give_up(const Submission& submission, const std::shared_ptr<CollectiveSubmission>& collectives,
               const std::string& why);
  void forget(Known& known);

  int index_;
  Stream stream_;
  std::mutex mutex_;
  Arena arena_;
  std::deque<std::shared_ptr<EventCompletion>> in_flight_;
  std::unordered_map<const Program*, Known> known_;
  CollectiveLines collectives_;
  std::atomic<double> computing_{0}, communicating_{0};  // seconds
};

CudaQueue& queue_of_cuda(int index);

}  // namespace bonfire::cuda
