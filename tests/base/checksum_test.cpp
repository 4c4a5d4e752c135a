#include "bonfire/base/checksum.h"

#include <gtest/gtest.h>

#include <string_view>
#include <vector>

#include "bonfire/base/md5.h"
#include "bonfire/base/random.h"

namespace bonfire::base::checksum_test {
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

TEST(Md5, GivesThePublishedValues) {  // RFC 1321, A.5
  EXPECT_EQ(md5(bytes_of("")), "d41d8cd98f00b204e9800998ecf8427e");
  EXPECT_EQ(md5(bytes_of("abc")), "900150983cd24fb0d6963f7d28e17f72");
  EXPECT_EQ(md5(bytes_of("12345678901234567890123456789012345678901234567890123456789012345678901234567890")),
            "57edf4a22be3c955ac49da2e2107b67a");
  EXPECT_EQ(md5(std::vector<std::byte>(55)), "c9ea3314b91c9fd4e38f9432064fd1f2");  // md5sum of as many zeros
  EXPECT_EQ(md5(std::vector<std::byte>(56)), "e3c4dd21a9171fd39d208efa09bf7883");
  EXPECT_EQ(md5(std::vector<std::byte>(64)), "3b5d3c7d207e37dceeedd301e35e2e58");
}

}  // namespace
}  // namespace bonfire::base::checksum_test
