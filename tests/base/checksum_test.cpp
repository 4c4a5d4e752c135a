#include "bonfire/base/checksum.h"

#include <gtest/gtest.h>

#include <string_view>
#include <vector>

#include "bonfire/base/random.h"

namespace bonfire::base {
namespace {

std::span<const std::byte> bytes_of(std::string_view text) { return std::as_bytes(std::span(text)); }

TEST(Crc32c, GivesThePublishedValues) {  // RFC 3720, B.4
  EXPECT_EQ(crc32c(bytes_of("")), 0U);
  EXPECT_EQ(crc32c(bytes_of("123456789")), 0xE3069283U);
  EXPECT_EQ(crc32c(std::vector<std::byte>(32)), 0x8A9136AAU);
  EXPECT_EQ(crc32c(std::vector<std::byte>(32, std::byte{0xFF})), 0x62A8AB43U);
}

TEST(Crc32c, TablesAndInstructionAgreeAtEveryLengthAndStart) {
  std::vector<std::byte> bytes(64);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(philox(1, 0, i).word[0]);
  for (size_t from = 0; from < 9; ++from)
    for (size_t count = 0; from + count <= bytes.size(); ++count) {
      auto part = std::span(bytes).subspan(from, count);
      EXPECT_EQ(crc32c(part), crc32c_by_tables(part));
      EXPECT_EQ(crc32c(part.subspan(count / 3), crc32c(part.first(count / 3))), crc32c(part));
    }
}

}  // namespace
}  // namespace bonfire::base
