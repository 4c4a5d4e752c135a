#pragma once
// Counter-based random numbers (Philox 4x32-10): number i of stream (seed, stream) is a pure function, so results do
// not depend on threads, passes or ranks. Compiles for the host and, included from CUDA, for the device.

#include <cmath>
#include <cstdint>

#if defined(__CUDACC__)
#define BONFIRE_HOST_DEVICE __host__ __device__
#else
#define BONFIRE_HOST_DEVICE
#endif

namespace bonfire {

struct RandomBlock {
  uint32_t word[4];
};

// Block `counter` of the stream `stream` under `seed`: four independent 32-bit words.
BONFIRE_HOST_DEVICE inline RandomBlock philox(uint64_t seed, uint64_t stream, uint64_t counter) {
  uint32_t key0 = static_cast<uint32_t>(seed), key1 = static_cast<uint32_t>(seed >> 32);
  uint32_t c0 = static_cast<uint32_t>(counter), c1 = static_cast<uint32_t>(counter >> 32);
  uint32_t c2 = static_cast<uint32_t>(stream), c3 = static_cast<uint32_t>(stream >> 32);
  for (int round = 0; round < 10; ++round) {
    uint64_t product0 = static_cast<uint64_t>(0xD2511F53U) * c0;
    uint64_t product1 = static_cast<uint64_t>(0xCD9E8D57U) * c2;
    uint32_t next0 = static_cast<uint32_t>(product1 >> 32) ^ c1 ^ key0;
    uint32_t next2 = static_cast<uint32_t>(product0 >> 32) ^ c3 ^ key1;
    c1 = static_cast<uint32_t>(product1);
    c3 = static_cast<uint32_t>(product0);
    c0 = next0;
    c2 = next2;
    key0 += 0x9E3779B9U;
    key1 += 0xBB67AE85U;
  }
  return {{c0, c1, c2, c3}};
}

// The stream of random op `number` (counted within a step; fewer than 2^20) in step `step`.
BONFIRE_HOST_DEVICE inline uint64_t random_stream(uint64_t step, uint64_t number) { return (step << 20) + number; }

// Uniform in [0, 1) with 24 bits, exact in float.
BONFIRE_HOST_DEVICE inline float uniform_from_bits(uint32_t bits) { return static_cast<float>(bits >> 8) * 0x1.0p-24F; }

// Element `index` of the uniform sequence of (seed, stream): word index % 4 of block index / 4.
BONFIRE_HOST_DEVICE inline float uniform_at(uint64_t seed, uint64_t stream, uint64_t index) {
  return uniform_from_bits(philox(seed, stream, index / 4).word[index % 4]);
}

// Element `index` of the standard normal sequence (Box-Muller on the first two words of block `index`).
BONFIRE_HOST_DEVICE inline float normal_at(uint64_t seed, uint64_t stream, uint64_t index) {
  RandomBlock block = philox(seed, stream, index);
  double u = (static_cast<double>(block.word[0]) + 1.0) * 0x1.0p-32;  // (0, 1]
  double v = static_cast<double>(block.word[1]) * 0x1.0p-32;
  return static_cast<float>(std::sqrt(-2.0 * std::log(u)) * std::cos(2.0 * M_PI * v));
}

}  // namespace bonfire
