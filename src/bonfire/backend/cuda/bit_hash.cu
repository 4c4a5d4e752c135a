#include "bonfire/backend/cuda/candidate.h"
#include "bonfire/ops/bit_hash.h"

namespace bonfire::cuda {

namespace {

constexpr int kThreads = 256, kMostBlocks = 512;

// The word at `place` of a tensor of so many bytes, which begins at a multiple of its elements' size only.
__device__ inline uint32_t word_at(const unsigned char* bytes, uint64_t count, uint64_t place) {
  if (4 * place + 4 <= count && reinterpret_cast<uintptr_t>(bytes) % 4 == 0)
    return reinterpret_cast<const uint32_t*>(bytes)[place];
  uint32_t word = 0;
  for (uint64_t i = 0; i < 4 && 4 * place + i < count; ++i)
    word |= static_cast<uint32_t>(bytes[4 * place + i]) << (8 * i);
  return word;
}

// hash: {low, high}, zeros before. Integers add up to the same in any order.
__global__ void __launch_bounds__(kThreads) bit_hash(const unsigned char* bytes, uint64_t count, unsigned int* hash) {
  BitHash own;
  const uint64_t words = (count + 3) / 4, step = static_cast<uint64_t>(gridDim.x) * kThreads;
  for (uint64_t i = static_cast<uint64_t>(blockIdx.x) * kThreads + threadIdx.x; i < words; i += step)
    own.add(word_at(bytes, count, i), static_cast<uint32_t>(i));
  for (int distance = 16; distance > 0; distance /= 2) {
    own.low += __shfl_xor_sync(0xffffffffU, own.low, distance);
    own.high += __shfl_xor_sync(0xffffffffU, own.high, distance);
  }
  if (threadIdx.x % 32 != 0) return;
  atomicAdd(hash, own.low);
  atomicAdd(hash + 1, own.high);
}

std::vector<Candidate> candidates(const KernelRequest& request) {
  std::vector<size_t> bytes;
  for (const auto& input : request.node.inputs) bytes.push_back(input.spec().bytes());
  return one_candidate(request, [bytes](const Run& run) {
    check(cudaMemsetAsync(run.outputs[0], 0, bytes.size() * sizeof(int64_t), stream_of(run)), "cudaMemsetAsync");
    for (size_t i = 0; i < bytes.size(); ++i) {
      if (bytes[i] == 0) continue;
      const size_t needed = ((bytes[i] + 3) / 4 + kThreads - 1) / kThreads;
      const auto blocks = static_cast<unsigned int>(needed < kMostBlocks ? needed : kMostBlocks);
      bit_hash<<<blocks, kThreads, 0, stream_of(run)>>>(run.input<unsigned char>(i), bytes[i],
                                                        run.output<unsigned int>() + 2 * i);
    }
    check(cudaGetLastError(), "bit_hash");
  });
}

const bool registered = register_kernel("bit_hash", DeviceType::cuda, candidates);

}  // namespace

}  // namespace bonfire::cuda
