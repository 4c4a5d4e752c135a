#include <algorithm>

#include "bonfire/backend/cuda/copy_list.h"
#include "bonfire/backend/cuda/runtime.h"

namespace bonfire::cuda {

namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads) copy_items(const __grid_constant__ CopyList list) {
  uint64_t thread = blockIdx.x * uint64_t{kThreads} + threadIdx.x, threads = gridDim.x * uint64_t{kThreads};
  for (uint64_t i = thread; i < static_cast<uint64_t>(list.inline_bytes); i += threads)
    static_cast<unsigned char*>(list.inline_target)[i] = list.inline_data[i];
  for (int n = 0; n < list.item_count; ++n) {
    CopyItem item = list.items[n];
    auto address = reinterpret_cast<uint64_t>(item.source) | reinterpret_cast<uint64_t>(item.target);
    uint64_t wide = address % sizeof(uint4) == 0 ? item.bytes / sizeof(uint4) : 0;
    for (uint64_t i = thread; i < wide; i += threads)
      static_cast<uint4*>(item.target)[i] = static_cast<const uint4*>(item.source)[i];
    for (uint64_t i = wide * sizeof(uint4) + thread; i < item.bytes; i += threads)
      static_cast<unsigned char*>(item.target)[i] = static_cast<const unsigned char*>(item.source)[i];
  }
}

}  // namespace

cudaKernelNodeParams copy_kernel(const CopyList& list, void** arguments) {
  uint64_t bytes = static_cast<uint64_t>(list.inline_bytes);
  for (int i = 0; i < list.item_count; ++i) bytes = std::max(bytes, list.items[i].bytes);
  uint64_t blocks = (bytes / sizeof(uint4) + kThreads - 1) / kThreads;
  arguments[0] = const_cast<CopyList*>(&list);
  cudaKernelNodeParams node{};
  node.func = reinterpret_cast<void*>(copy_items);
  node.gridDim = dim3(static_cast<unsigned>(std::clamp<uint64_t>(blocks, 1, 512)));
  node.blockDim = dim3(kThreads);
  node.kernelParams = arguments;
  return node;
}

void start_copies(const CopyList& list, cudaStream_t stream) {
  void* arguments[1];
  cudaKernelNodeParams node = copy_kernel(list, arguments);
  check(cudaLaunchKernel(node.func, node.gridDim, node.blockDim, node.kernelParams, 0, stream), "cudaLaunchKernel");
}

}  // namespace bonfire::cuda
