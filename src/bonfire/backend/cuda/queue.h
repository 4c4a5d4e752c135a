#pragma once
// The queue of one CUDA device: a stream, an arena, and the captured graphs of the programs it has seen twice.

#include <deque>
#include <mutex>
#include <unordered_map>

#include "bonfire/backend/cuda/replay.h"
#include "bonfire/kernel/queue.h"

namespace bonfire::cuda {

// An event behind a launch. Holds what the launch uses until it is known to be done.
class EventCompletion final : public Completion {
 public:
  EventCompletion(int index, Event event, Launch launch);

  void wait() override;          // throws what failed
  void wait_quietly() noexcept;  // until it is done or has failed
  bool done() override;
  void fail(std::exception_ptr failure);
  cudaEvent_t event() const { return event_.get(); }

 private:
  void finish(cudaError_t status);

  Event event_;
  std::mutex mutex_;
  bool finished_ = false;
  std::exception_ptr failure_;
  Launch launch_;
};

class CudaQueue final : public Queue {
 public:
  explicit CudaQueue(int index);

  std::shared_ptr<Completion> launch(Launch launch) override;
  void synchronize() override;
  void* arena(size_t bytes) override;
  size_t spread_bytes() const override { return size_t{32} << 20; }  // more would leave the cache
  void run_now(const std::function<void(const Run&)>& body) override;

 private:
  struct Known {
    std::weak_ptr<const Program> program;
    void* scalars = nullptr;  // the block of host numbers on the device, for launches step by step
    size_t scalar_bytes = 0;
    std::unique_ptr<Replay> replay;
  };

  void make_room();  // until fewer than two launches are in flight
  void wait_for_others(const Launch& launch);
  void enqueue(const Launch& launch);
  void run_directly(Known& known, const Launch& launch);
  void run_timed(const Program& program, const std::vector<void*>& addresses);
  void forget(Known& known);

  int index_;
  Stream stream_;
  std::mutex mutex_;
  Arena arena_;
  std::deque<std::shared_ptr<EventCompletion>> in_flight_;
  std::unordered_map<const Program*, Known> known_;
};

CudaQueue& queue_of_cuda(int index);

}  // namespace bonfire::cuda
