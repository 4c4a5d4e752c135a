#pragma once
// Counters that blocks of one kernel share: the last block to finish adds up what the others left. They are zero
// between runs, since that last block sets them back.

#include <memory>

#include "bonfire/backend/cuda/memory.h"

namespace bonfire::cuda {

class Counters {
 public:
  Counters(int device, size_t count) : device_(device), bytes_(count * sizeof(unsigned)) {
    data_ = memory_of_cuda(device).allocate(bytes_);
    memory_of_cuda(device).fill_zero(data_, bytes_);
  }
  ~Counters() { memory_of_cuda(device_).deallocate(data_, bytes_); }
  Counters(const Counters&) = delete;
  Counters& operator=(const Counters&) = delete;

  unsigned* get() const { return static_cast<unsigned*>(data_); }

 private:
  int device_;
  size_t bytes_;
  void* data_;
};

}  // namespace bonfire::cuda
