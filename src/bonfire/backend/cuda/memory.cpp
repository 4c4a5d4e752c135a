#include "bonfire/backend/cuda/memory.h"

#include <bit>
#include <memory>

#include "bonfire/base/error.h"

namespace bonfire::cuda {

namespace {

// Eight sizes for each doubling: at most an eighth is wasted, and blocks of nearly the same size serve each other.
size_t rounded(size_t bytes) {
  constexpr size_t kSmallest = 512;
  if (bytes <= kSmallest) return kSmallest;
  size_t step = std::max(kSmallest, std::bit_floor(bytes - 1) / 8);
  return (bytes + step - 1) / step * step;
}

constexpr double kMiB = 1024.0 * 1024.0;

}  // namespace

CachingMemory::CachingMemory(int index) : index_(index) {
  DeviceScope device(index);
  stream_ = make_stream();
}

void* CachingMemory::allocate(size_t bytes) {
  size_t size = rounded(bytes);
  std::lock_guard lock(mutex_);
  if (auto found = free_.find(size); found != free_.end() && !found->second.empty()) {
    void* data = found->second.back();
    found->second.pop_back();
    in_use_ += size;
    return data;
  }
  DeviceScope device(index_);
  void* data = nullptr;
  cudaError_t status = cudaMalloc(&data, size);
  if (status == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    release_cached();
    status = cudaMalloc(&data, size);
  }
  if (status == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    size_t free = 0, total = 0;
    check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
    throw_error<DeviceError>(
        "[cuda:{}] out of memory: {:.1f} MiB were asked for, {:.1f} of {:.1f} MiB are free and tensors hold {:.1f} "
        "MiB; use "
        "a smaller batch or bf16",
        index_, static_cast<double>(size) / kMiB, static_cast<double>(free) / kMiB, static_cast<double>(total) / kMiB,
        static_cast<double>(in_use_) / kMiB);
  }
  check(status, "cudaMalloc");
  in_use_ += size;
  return data;
}

void CachingMemory::deallocate(void* data, size_t bytes) noexcept {
  size_t size = rounded(bytes);
  std::lock_guard lock(mutex_);
  in_use_ -= size;
  free_[size].push_back(data);
}

void CachingMemory::release_cached() {
  for (auto& [size, blocks] : free_)
    for (void* block : blocks) cudaFree(block);
  free_.clear();
}

void CachingMemory::copy(void* target, const void* source, size_t bytes, cudaMemcpyKind kind) {
  if (bytes == 0) return;
  DeviceScope device(index_);
  check(cudaMemcpyAsync(target, source, bytes, kind, stream_.get()), "cudaMemcpyAsync");
  check(cudaStreamSynchronize(stream_.get()), "cudaStreamSynchronize");
}

void CachingMemory::copy_from_host(void* target, const void* source, size_t bytes) {
  copy(target, source, bytes, cudaMemcpyHostToDevice);
}

void CachingMemory::copy_to_host(void* target, const void* source, size_t bytes) {
  copy(target, source, bytes, cudaMemcpyDeviceToHost);
}

void CachingMemory::fill_zero(void* target, size_t bytes) {
  if (bytes == 0) return;
  DeviceScope device(index_);
  check(cudaMemsetAsync(target, 0, bytes, stream_.get()), "cudaMemsetAsync");
  check(cudaStreamSynchronize(stream_.get()), "cudaStreamSynchronize");
}

// The host's memory is pinned, so that copies run beside kernels.
void* CachingMemory::allocate_staged(void* host, size_t bytes) {
  DeviceScope device(index_);
  void* data = allocate(bytes);
  const cudaError_t status = cudaHostRegister(host, bytes, cudaHostRegisterPortable);
  if (status != cudaSuccess) deallocate(data, bytes);
  check(status, "cudaHostRegister");
  std::lock_guard lock(mutex_);
  staged_[static_cast<std::byte*>(data)] = {static_cast<std::byte*>(host), bytes};
  return data;
}

void CachingMemory::deallocate_staged(void* data, size_t bytes) noexcept {
  {
    std::lock_guard lock(mutex_);
    auto found = staged_.find(static_cast<std::byte*>(data));
    cudaHostUnregister(found->second.host);
    staged_.erase(found);
  }
  deallocate(data, bytes);
}

std::byte* CachingMemory::staged_at(const void* data, size_t bytes) {
  auto* begin = static_cast<const std::byte*>(data);
  std::lock_guard lock(mutex_);
  auto after = staged_.upper_bound(begin);
  if (after == staged_.begin()) return nullptr;
  const auto& [block, staged] = *std::prev(after);
  const auto offset = static_cast<size_t>(begin - block);
  return offset + bytes <= staged.bytes ? staged.host + offset : nullptr;
}

CachingMemory& memory_of_cuda(int index) {
  // Never destroyed: tensors with static lifetime may outlive any order of destruction.
  static auto* all = [] {
    auto* memories = new std::vector<std::unique_ptr<CachingMemory>>();
    for (int i = 0; i < device_count(); ++i) memories->push_back(std::make_unique<CachingMemory>(i));
    return memories;
  }();
  return *all->at(static_cast<size_t>(index));
}

}  // namespace bonfire::cuda
