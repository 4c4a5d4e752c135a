#include <atomic>

#include "bonfire/backend/cuda/host_flag.h"

namespace bonfire::cuda {

namespace {

__global__ void wait_for(volatile unsigned* word) {
  constexpr unsigned kNanoseconds = 1000;
  while (*word == 0) __nanosleep(kNanoseconds);
  *word = 0;
  __threadfence_system();
}

}  // namespace

HostFlag::HostFlag() {
  check(cudaHostAlloc(reinterpret_cast<void**>(&word_), sizeof *word_, cudaHostAllocPortable | cudaHostAllocMapped),
        "cudaHostAlloc");
  *word_ = 0;
}

HostFlag::~HostFlag() { cudaFreeHost(word_); }

void HostFlag::enqueue_wait(cudaStream_t stream) {
  wait_for<<<1, 1, 0, stream>>>(word_);
  check(cudaGetLastError(), "wait_for");
}

void HostFlag::set() { std::atomic_ref<unsigned>(*word_).store(1, std::memory_order_release); }

}  // namespace bonfire::cuda
