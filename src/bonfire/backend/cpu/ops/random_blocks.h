#pragma once
// Runs of the uniform sequences of base/random.h, several blocks at a time so that they vectorise. Private to
// backend/cpu.

#include <algorithm>
#include <cstdint>

#include "bonfire/backend/cpu/simd/every_instruction_set.h"
#include "bonfire/base/random.h"
#include "bonfire/base/thread_pool.h"
#include "bonfire/ops/random_places.h"

#if defined(__AVX512F__)
#include <immintrin.h>
#endif

namespace bonfire::cpu {
inline namespace BONFIRE_COMPILED_SET {

inline constexpr int64_t kRandomChunk = 256;  // numbers; a multiple of those that one Philox block has

#if defined(__AVX512F__)
// 16 Philox blocks at a time, a word of each in a vector: the compiler alone multiplies 64 bits by 64 here.
struct SixteenBlocks {
  typedef uint32_t Words __attribute__((vector_size(64)));
  typedef int32_t Integers __attribute__((vector_size(64)));
  typedef uint64_t Pairs __attribute__((vector_size(64)));
  typedef float Floats __attribute__((vector_size(64)));

  struct Product {
    Words low, high;
  };
  [[gnu::always_inline]] static Product multiply(Words a, uint32_t factor) {
    const Words factors = Words{} + factor;
    const Words odd_lanes = {0, ~0U, 0, ~0U, 0, ~0U, 0, ~0U, 0, ~0U, 0, ~0U, 0, ~0U, 0, ~0U};
    const auto even = (Pairs)_mm512_maskz_mul_epu32(0xFF, (__m512i)a, (__m512i)factors);
    const auto odd = (Pairs)_mm512_maskz_mul_epu32(0xFF, (__m512i)((Pairs)a >> 32), (__m512i)factors);
    return {odd_lanes ? (Words)(odd << 32) : (Words)even, odd_lanes ? (Words)odd : (Words)(even >> 32)};
  }

  // All counters have the high word of the first. Lanes hold the blocks in the order that the shuffles below want.
  static void uniform(uint64_t seed, uint64_t stream, uint64_t first_block, float* out) {
    const Words order = {0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15};
    Words c0 = order + static_cast<uint32_t>(first_block), c1 = Words{} + static_cast<uint32_t>(first_block >> 32);
    Words c2 = Words{} + static_cast<uint32_t>(stream), c3 = Words{} + static_cast<uint32_t>(stream >> 32);
    auto key0 = static_cast<uint32_t>(seed), key1 = static_cast<uint32_t>(seed >> 32);
    for (int round = 0; round < 10; ++round, key0 += 0x9E3779B9U, key1 += 0xBB67AE85U) {
      const Product product0 = multiply(c0, 0xD2511F53U), product1 = multiply(c2, 0xCD9E8D57U);
      c0 = product1.high ^ c1 ^ key0;
      c2 = product0.high ^ c3 ^ key1;
      c1 = product1.low;
      c3 = product0.low;
    }
    auto number = [](Words bits) { return __builtin_convertvector((Integers)(bits >> 8), Floats) * 0x1.0p-24F; };
    const Floats w0 = number(c0), w1 = number(c1), w2 = number(c2), w3 = number(c3);
    auto low = [](Floats a, Floats b) {
      return __builtin_shufflevector(a, b, 0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29);
    };
    auto high = [](Floats a, Floats b) {
      return __builtin_shufflevector(a, b, 2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31);
    };
    auto low_pairs = [](Floats a, Floats b) {
      return __builtin_shufflevector(a, b, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29);
    };
    auto high_pairs = [](Floats a, Floats b) {
      return __builtin_shufflevector(a, b, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31);
    };
    const Floats rows[] = {low_pairs(low(w0, w1), low(w2, w3)), high_pairs(low(w0, w1), low(w2, w3)),
                           low_pairs(high(w0, w1), high(w2, w3)), high_pairs(high(w0, w1), high(w2, w3))};
    __builtin_memcpy(out, rows, sizeof rows);
  }
};

inline bool sixteen_blocks(uint64_t seed, uint64_t stream, uint64_t first_block, float* out) {
  if (static_cast<uint32_t>(first_block) > ~0U - 15) return false;
  SixteenBlocks::uniform(seed, stream, first_block, out);
  return true;
}
#else
inline bool sixteen_blocks(uint64_t, uint64_t, uint64_t, float*) { return false; }
#endif

// The numbers of whole Philox blocks: out[i] = uniform_at(seed, stream, 4 first_block + i), i < 4 blocks.
inline void uniform_blocks(uint64_t seed, uint64_t stream, uint64_t first_block, int64_t blocks,
                           float* __restrict out) {
  for (; blocks >= 16 && sixteen_blocks(seed, stream, first_block, out); blocks -= 16, first_block += 16) out += 64;
  for (int64_t block = 0; block < blocks; ++block) {
    RandomBlock words = philox(seed, stream, first_block + static_cast<uint64_t>(block));
    for (int w = 0; w < 4; ++w) out[block * 4 + w] = uniform_from_bits(words.word[w]);
  }
}

// Numbers `first` to first + count − 1 of the sequence, in memory of count + 6; returns where the first of them is.
inline const float* uniform_run(uint64_t seed, uint64_t stream, uint64_t first, int64_t count, float* memory) {
  const auto skipped = static_cast<int64_t>(first % 4);
  uniform_blocks(seed, stream, first / 4, (skipped + count + 3) / 4, memory);
  return memory + skipped;
}

// The same of every step-th number from `first` on.
inline const float* uniform_run(uint64_t seed, uint64_t stream, uint64_t first, uint64_t step, int64_t count,
                                float* memory) {
  if (step == 1) return uniform_run(seed, stream, first, count, memory);
  for (int64_t i = 0; i < count; ++i) memory[i] = uniform_at(seed, stream, first + static_cast<uint64_t>(i) * step);
  return memory;
}

// Calls body(begin, end, numbers) on ranges of at most kRandomChunk that cover all elements: numbers[i] belongs to
// element begin + i. On all threads. Rank and world: see RandomPlaces.
template <class Body>
void for_each_uniform(uint64_t seed, uint64_t stream, const RandomPlaces& places, uint64_t rank, uint64_t world,
                      ThreadPool& threads, const Body& body) {
  if (places.count == 0) return;
  const bool one_run = places.contiguous && world == 1;
  const int64_t size = one_run ? places.count : places.extent[places.dimensions - 1];  // of a run
  const uint64_t step = one_run ? 1 : places.last_step(world);
  const int64_t chunks = (size + kRandomChunk - 1) / kRandomChunk;
  threads.parallel_for(places.count / size * chunks, 16, [&](int64_t first, int64_t last) {
    for (int64_t chunk = first; chunk < last; ++chunk) {
      float memory[kRandomChunk + 6];
      const int64_t run = chunk / chunks * size, begin = chunk % chunks * kRandomChunk;
      const int64_t length = std::min(kRandomChunk, size - begin);
      const uint64_t place = places.at(run, rank, world) + static_cast<uint64_t>(begin) * step;
      const float* numbers = memory;
      if (step == 1 && place % 4 == 0 && length == kRandomChunk)  // of a length that the compiler knows
        uniform_blocks(seed, stream, place / 4, kRandomChunk / 4, memory);
      else
        numbers = uniform_run(seed, stream, place, step, length, memory);
      body(run + begin, run + begin + length, numbers);
    }
  });
}

}  // namespace BONFIRE_COMPILED_SET
}  // namespace bonfire::cpu
