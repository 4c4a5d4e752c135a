#pragma once
// A running 128-bit hash: two plan keys that collide would run the wrong step, so 64 bits are not enough.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string_view>

namespace bonfire::base {

struct Hash128 {
  uint64_t low = 0x9e3779b97f4a7c15ULL;
  uint64_t high = 0xc2b2ae3d27d4eb4fULL;

  void mix(uint64_t word) {
    low = fold(low ^ word, 0xa0761d6478bd642fULL);
    high = fold(high + word, 0xe7037ed1a0b428dbULL) ^ low;
  }
  void mix(std::string_view text) {
    mix(text.size());
    for (unsigned char c : text) mix(c);
  }
  friend bool operator==(const Hash128&, const Hash128&) = default;

 private:
  static uint64_t fold(uint64_t a, uint64_t b) {
    unsigned __int128 product = static_cast<unsigned __int128>(a ^ 0x8ebc6af09c88c6e3ULL) * b;
    return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
  }
};

}  // namespace bonfire::base

template <>
struct std::hash<bonfire::base::Hash128> {
  size_t operator()(const bonfire::base::Hash128& hash) const noexcept { return hash.low ^ (hash.high << 1); }
};
