#pragma once
// Memory of CUDA devices: blocks that are kept for the next user instead of being given back to the driver, and the
// arena, which grows without moving.

#include <map>
#include <mutex>
#include <vector>

#include "bonfire/backend/cuda/runtime.h"
#include "bonfire/tensor/device.h"

namespace bonfire::cuda {

// Freed blocks are reused at once, so whoever frees one must know that no submission uses it any more (submissions keep
// their storages alive until they are done). Copies have a stream of their own: they overlap with submissions, and
// their order with submissions that use the same memory is for the caller to keep, by waiting for completions.
class CachingMemory final : public DeviceMemory {
 public:
  explicit CachingMemory(int index);

  void* allocate(size_t bytes) override;
  void deallocate(void* data, size_t bytes) noexcept override;
  void copy_from_host(void* target, const void* source, size_t bytes) override;
  void copy_to_host(void* target, const void* source, size_t bytes) override;
  void fill_zero(void* target, size_t bytes) override;
  void* allocate_staged(void* host, size_t bytes) override;
  void deallocate_staged(void* data, size_t bytes) noexcept override;

  // Where collectives find these bytes of a block from allocate_staged(); null: they are of no such block.
  std::byte* staged_at(const void* data, size_t bytes);

 private:
  struct Staged {
    std::byte* host;
    size_t bytes;
  };

  void copy(void* target, const void* source, size_t bytes, cudaMemcpyKind kind);
  void release_cached();  // gives every free block back to the driver

  int index_;
  Stream stream_;
  std::mutex mutex_;
  std::map<size_t, std::vector<void*>> free_;  // by rounded size, bytes
  size_t in_use_ = 0;                          // bytes
  std::map<const std::byte*, Staged> staged_;  // by address on the device
};

CachingMemory& memory_of_cuda(int index);

// A range of addresses as large as the device's memory, of which only the beginning has memory behind it.
class Arena {
 public:
  explicit Arena(int index) : index_(index) {}
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  void* require(size_t bytes);  // the beginning; DeviceError when the device is full

 private:
  void reserve();

  int index_;
  unsigned long long base_ = 0;                         // a CUdeviceptr
  size_t reserved_ = 0, mapped_ = 0, granularity_ = 0;  // bytes
};

}  // namespace bonfire::cuda
