#include "bonfire/base/checksum.h"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#elif defined(__aarch64__)
#include <arm_acle.h>
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace bonfire::base {

namespace {

constexpr uint32_t kPolynomial = 0x82F63B78;  // reflected

using Tables = std::array<std::array<uint32_t, 256>, 8>;

// tables[k][b]: what byte b does to the checksum when k bytes follow it.
constexpr Tables make_tables() {
  Tables tables{};
  for (uint32_t i = 0; i < 256; ++i) {
    tables[0][i] = i;
    for (int bit = 0; bit < 8; ++bit) tables[0][i] = tables[0][i] >> 1 ^ ((tables[0][i] & 1U) != 0 ? kPolynomial : 0U);
  }
  for (size_t k = 1; k < tables.size(); ++k)
    for (size_t i = 0; i < 256; ++i) tables[k][i] = tables[k - 1][i] >> 8 ^ tables[0][tables[k - 1][i] & 0xFF];
  return tables;
}
constexpr Tables kTables = make_tables();

uint64_t load_eight(const std::byte* from) {
  uint64_t word;
  std::memcpy(&word, from, sizeof word);  // both architectures are little-endian
  return word;
}

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) uint32_t by_instruction(std::span<const std::byte> bytes, uint32_t sum) {
  uint64_t wide = sum;
  for (; bytes.size() >= 8; bytes = bytes.subspan(8)) wide = _mm_crc32_u64(wide, load_eight(bytes.data()));
  sum = static_cast<uint32_t>(wide);
  for (std::byte byte : bytes) sum = _mm_crc32_u8(sum, static_cast<uint8_t>(byte));
  return sum;
}
bool has_instruction() { return __builtin_cpu_supports("sse4.2") != 0; }
#elif defined(__aarch64__)
__attribute__((target("+crc"))) uint32_t by_instruction(std::span<const std::byte> bytes, uint32_t sum) {
  for (; bytes.size() >= 8; bytes = bytes.subspan(8)) sum = __crc32cd(sum, load_eight(bytes.data()));
  for (std::byte byte : bytes) sum = __crc32cb(sum, static_cast<uint8_t>(byte));
  return sum;
}
bool has_instruction() { return (getauxval(AT_HWCAP) & HWCAP_CRC32) != 0; }
#else
uint32_t by_instruction(std::span<const std::byte> bytes, uint32_t sum) { return ~crc32c_by_tables(bytes, ~sum); }
bool has_instruction() { return false; }
#endif

}  // namespace

uint32_t crc32c_by_tables(std::span<const std::byte> bytes, uint32_t before) {
  uint32_t sum = ~before;
  for (; bytes.size() >= 8; bytes = bytes.subspan(8)) {
    uint64_t word = load_eight(bytes.data()) ^ sum;
    sum = 0;
    for (size_t k = 0; k < 8; ++k) sum ^= kTables[7 - k][word >> (8 * k) & 0xFF];
  }
  for (std::byte byte : bytes) sum = kTables[0][(sum ^ static_cast<uint8_t>(byte)) & 0xFF] ^ sum >> 8;
  return ~sum;
}

uint32_t crc32c(std::span<const std::byte> bytes, uint32_t before) {
  static const bool kFast = has_instruction();
  return kFast ? ~by_instruction(bytes, ~before) : crc32c_by_tables(bytes, before);
}

}  // namespace bonfire::base
