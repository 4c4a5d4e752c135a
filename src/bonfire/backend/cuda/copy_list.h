#pragma once
// Several small copies, and the numbers of a submission, in one kernel. A captured step begins and ends with such
// kernels: their arguments are the only ones that change from submission to submission.

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace bonfire::cuda {

struct CopyItem {
  const void* source;
  void* target;
  uint64_t bytes;
};

// The kernel's one argument, passed by value (CUDA's limit is 4 KiB).
struct CopyList {
  static constexpr int kItems = 24;
  static constexpr int kInlineBytes = 2048;

  CopyItem items[kItems];
  int32_t item_count = 0;
  int32_t inline_bytes = 0;  // how many of `inline_data` go to inline_target
  void* inline_target = nullptr;
  alignas(16) unsigned char inline_data[kInlineBytes];
};

cudaKernelNodeParams copy_kernel(const CopyList& list, void** arguments);  // arguments: room for one
void start_copies(const CopyList& list, cudaStream_t stream);

}  // namespace bonfire::cuda
