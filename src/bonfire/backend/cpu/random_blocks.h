#pragma once
// Runs of the uniform sequences of base/random.h, several blocks at a time so that they vectorise. Private to
// backend/cpu.

#include <algorithm>
#include <cstdint>

#include "bonfire/base/random.h"
#include "bonfire/base/thread_pool.h"

namespace bonfire::cpu {

inline constexpr int64_t kRandomChunk = 256;  // numbers; a multiple of those that one Philox block has

// out[i] = uniform_at(seed, stream, first + i) for kRandomChunk numbers; `first` is a multiple of 4.
inline void uniform_chunk(uint64_t seed, uint64_t stream, uint64_t first, float* __restrict out) {
  for (int64_t block = 0; block < kRandomChunk / 4; ++block) {
    RandomBlock words = philox(seed, stream, first / 4 + static_cast<uint64_t>(block));
    for (int w = 0; w < 4; ++w) out[block * 4 + w] = uniform_from_bits(words.word[w]);
  }
}

// out[i] = uniform_at(seed, stream, first + i) for any run of numbers.
inline void uniform_run(uint64_t seed, uint64_t stream, uint64_t first, int64_t count, float* out) {
  RandomBlock words = philox(seed, stream, first / 4);
  for (int64_t i = 0; i < count; ++i) {
    const uint64_t index = first + static_cast<uint64_t>(i);
    if (i > 0 && index % 4 == 0) words = philox(seed, stream, index / 4);
    out[i] = uniform_from_bits(words.word[index % 4]);
  }
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
      uniform_chunk(seed, stream, static_cast<uint64_t>(begin), numbers);
      body(begin, std::min(begin + kRandomChunk, count), numbers);
    }
  });
}

}  // namespace bonfire::cpu
