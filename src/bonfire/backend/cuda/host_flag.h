#pragma once
// HostFlag: a word in host memory that a stream waits for. Waiting is a kernel of one thread, which can be captured and
// leaves the device to kernels that need not wait.

#include "bonfire/backend/cuda/runtime.h"

namespace bonfire::cuda {

class HostFlag {
 public:
  HostFlag();
  ~HostFlag();
  HostFlag(const HostFlag&) = delete;
  HostFlag& operator=(const HostFlag&) = delete;

  void enqueue_wait(cudaStream_t stream);  // until set(), once for each time
  void set();                              // from any thread: what it has written before is seen after the wait

 private:
  unsigned* word_ = nullptr;
};

}  // namespace bonfire::cuda
