#pragma once
// Runs of the uniform sequences of base/random.h, several blocks at a time so that they vectorise. Private to
// backend/cpu.

#include <algorithm>
#include <cstdint>

#include "bonfire/backend/cpu/every_instruction_set.h"
#include "bonfire/base/random.h"
#include "bonfire/base/thread_pool.h"

namespace bonfire::cpu {
inline namespace BONFIRE_COMPILED_SET {

inline constexpr int64_t kRandomChunk = 256;  // numbers; a multiple of those that one Philox block has

// The numbers of whole Philox blocks: out[i] = uniform_at(seed, stream, 4 first_block + i), i < 4 blocks.
inline void uniform_blocks(uint64_t seed, uint64_t stream, uint64_t first_block, int64_t blocks,
                           float* __restrict out) {
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

// Calls body(begin, end, numbers) on ranges of at most kRandomChunk that cover [0, count): numbers[i] belongs to
// element begin + i. On all threads.
template <class Body>
void for_each_uniform(uint64_t seed, uint64_t stream, int64_t count, ThreadPool& threads, const Body& body) {
  int64_t chunks = (count + kRandomChunk - 1) / kRandomChunk;
  threads.parallel_for(chunks, 16, [&](int64_t first, int64_t last) {
    for (int64_t chunk = first; chunk < last; ++chunk) {
      float numbers[kRandomChunk];
      int64_t begin = chunk * kRandomChunk;
      uniform_blocks(seed, stream, static_cast<uint64_t>(begin) / 4, kRandomChunk / 4, numbers);
      body(begin, std::min(begin + kRandomChunk, count), numbers);
    }
  });
}

}  // namespace BONFIRE_COMPILED_SET
}  // namespace bonfire::cpu
