#pragma once
// bit_hash: a number for each of several tensors, of every bit of its values and of where it stands. Two tensors of the
// same shape and type that differ in one word of 32 bits have different hashes; if they differ in more, they still do
// but for one case in 2^64. It is the same on every device and for any number of threads, and has no gradient.
//
//   Tensor hashes = bit_hash({weight, momentum});   // i64 [2]

#include <cstdint>
#include <span>

#include "bonfire/graph/tensor.h"

namespace bonfire {

Tensor bit_hash(std::span<const Tensor> tensors);  // ShapeError without any, and for tensors of several devices

// What kernels compute. A tensor is a row of words of 32 bits, the last one filled up with zeros; each word is mixed
// with its place, and the two halves of the hash are sums of what comes out: sums of integers have no order.
#if defined(__CUDACC__)
#define BONFIRE_ON_ANY_DEVICE __host__ __device__
#else
#define BONFIRE_ON_ANY_DEVICE
#endif
struct BitHash {
  uint32_t low = 0, high = 0;

  // Both steps of the mixing can be undone, so another word at this place always adds another number.
  BONFIRE_ON_ANY_DEVICE void add(uint32_t word, uint32_t place) {
    uint32_t x = (word ^ (place * 0x9E3779B1U)) * 0x85EBCA6BU;
    x = (x ^ (x >> 15)) * 0xC2B2AE35U;
    x ^= x >> 13;
    low += x;
    x *= 0x27D4EB2FU;
    high += x ^ (x >> 16);
  }
};

}  // namespace bonfire
