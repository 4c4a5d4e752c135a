#include "bonfire/base/md5.h"

#include <fmt/core.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

namespace bonfire::base {

namespace {

using Words = std::array<uint32_t, 4>;
constexpr size_t kBlock = 64;  // bytes

// RFC 1321: the whole part of 2^32 · |sin(i + 1)|.
const std::array<uint32_t, 64>& sines() {
  static const std::array<uint32_t, 64> kSines = [] {
    std::array<uint32_t, 64> values{};
    for (size_t i = 0; i < values.size(); ++i)
      values[i] = static_cast<uint32_t>(std::ldexp(std::fabs(std::sin(static_cast<double>(i + 1))), 32));
    return values;
  }();
  return kSines;
}

void take_block(Words& state, const std::byte* block) {
  constexpr int kTurns[4][4] = {{7, 12, 17, 22}, {5, 9, 14, 20}, {4, 11, 16, 23}, {6, 10, 15, 21}};
  uint32_t message[16];
  std::memcpy(message, block, kBlock);  // both architectures are little-endian
  auto [a, b, c, d] = state;
  for (uint32_t i = 0; i < 64; ++i) {
    uint32_t mixed = 0, word = 0;
    switch (i / 16) {
      case 0: mixed = (b & c) | (~b & d), word = i; break;
      case 1: mixed = (d & b) | (~d & c), word = 5 * i + 1; break;
      case 2: mixed = b ^ c ^ d, word = 3 * i + 5; break;
      default: mixed = c ^ (b | ~d), word = 7 * i;
    }
    uint32_t sum = a + mixed + sines()[i] + message[word % 16];
    a = d;
    d = c;
    c = b;
    b += std::rotl(sum, kTurns[i / 16][i % 4]);
  }
  state = {state[0] + a, state[1] + b, state[2] + c, state[3] + d};
}

}  // namespace

std::string md5(std::span<const std::byte> bytes) {
  Words state{0x67452301, 0xEFCDAB89, 0x98BADCFE, 0x10325476};
  uint64_t bits = 8 * static_cast<uint64_t>(bytes.size());
  for (; bytes.size() >= kBlock; bytes = bytes.subspan(kBlock)) take_block(state, bytes.data());
  std::array<std::byte, 2 * kBlock> end{};  // what is left, a 1 bit, zeros, the length
  if (!bytes.empty()) std::memcpy(end.data(), bytes.data(), bytes.size());
  end[bytes.size()] = std::byte{0x80};
  size_t used = bytes.size() + 1 + sizeof bits <= kBlock ? kBlock : 2 * kBlock;
  std::memcpy(end.data() + used - sizeof bits, &bits, sizeof bits);
  for (size_t at = 0; at < used; at += kBlock) take_block(state, end.data() + at);
  std::string text;
  for (uint32_t word : state)
    for (int byte = 0; byte < 4; ++byte) text += fmt::format("{:02x}", word >> (8 * byte) & 0xFF);
  return text;
}

}  // namespace bonfire::base
