#pragma once
// Damaged safetensors files for the fuzz test and the fuzz program. File `number` under `seed` is a pure function of
// the two, so a finding is repeated by its number.

#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "bonfire/base/error.h"
#include "bonfire/base/random.h"
#include "bonfire/nn/safetensors.h"

namespace bonfire::nn::testing {

inline std::string safetensors_bytes(std::string_view header, std::string_view data) {
  uint64_t length = header.size();
  std::string file(sizeof length, '\0');
  std::memcpy(file.data(), &length, sizeof length);
  return file.append(header).append(data);
}

class SafetensorsMutator {
 public:
  SafetensorsMutator(uint64_t seed, uint64_t number) : seed_(seed), number_(number) {}

  // A valid file with one to four changes.
  std::string file() {
    std::string header(kHeaders[below(std::size(kHeaders))]);
    std::string data(kDataBytes, '\1');
    for (size_t changes = 1 + below(4); changes > 0; --changes) change(below(5) == 0 ? data : header);
    std::string file = safetensors_bytes(header, data);
    // Mostly the length is right, so that what is after it gets read.
    if (below(8) == 0) change_bytes(file, 8);
    if (below(16) == 0) file.resize(below(file.size() + 1));
    return file;
  }

 private:
  static constexpr size_t kDataBytes = 33;
  // Each describes 33 bytes of data.
  static constexpr std::string_view kHeaders[] = {
      R"({"__metadata__":{"format":"pt","k\u00e9y":"\"\\\n"},"step":{"dtype":"I64","shape":[],"data_offsets":[0,8]},)"
      R"("w":{"dtype":"F32","shape":[2,2],"data_offsets":[8,24]},"none":{"dtype":"F64","shape":[0,4],"data_offsets":[24,24]},)"
      R"("half":{"dtype":"BF16","shape":[3],"data_offsets":[24,30]},"mask":{"dtype":"BOOL","shape":[3],"data_offsets":[30,33]}}  )",
      R"({"层.0":{"data_offsets":[1,33],"shape":[1,2,1,2,1,2,1,1],"dtype":"I32"},"u":{"shape":[1],"dtype":"U8","data_offsets":[0,1]}})",
      R"({"b":{"dtype":"F16","shape":[16],"data_offsets":[0,32]},"a":{"dtype":"BOOL","shape":[1,1],"data_offsets":[32,33]}})",
      R"({"all":{"dtype":"U8","shape":[3,11],"data_offsets":[0,33]}})"};
  static constexpr std::string_view kPieces[] = {"{",
                                                 "}",
                                                 "[",
                                                 "]",
                                                 ",",
                                                 ":",
                                                 "\"",
                                                 "\\",
                                                 "null",
                                                 "true",
                                                 "-1",
                                                 "-0",
                                                 "1.5",
                                                 "1e400",
                                                 "0",
                                                 "8",
                                                 "33",
                                                 "2147483648",
                                                 "4611686018427387904",
                                                 "9223372036854775807",
                                                 "9223372036854775808",
                                                 "18446744073709551615",
                                                 "18446744073709551616",
                                                 "\"F32\"",
                                                 "\"F8_E4M3\"",
                                                 "\"dtype\":",
                                                 "\"shape\":[",
                                                 "\"data_offsets\":[0,8]",
                                                 "\"__metadata__\":{",
                                                 "\"w\":{",
                                                 "\\u0000",
                                                 "\\ud800",
                                                 "\xFF",
                                                 "\xC3",
                                                 "\xEF\xBB\xBF",
                                                 "/*",
                                                 " ",
                                                 R"("x":{"dtype":"F32","shape":[0],"data_offsets":[0,0]},)",
                                                 "[[[[[[[[[[[[[[[[",
                                                 R"({"a":{"a":{"a":{"a":{"a":)"};

  size_t below(size_t limit) {
    uint32_t word = philox(seed_, number_, drawn_++).word[0];
    return word % limit;
  }

  void change(std::string& text) {
    size_t at = below(text.size() + 1), length = below(std::min<size_t>(text.size() - at, 24) + 1);
    switch (below(8)) {
      case 0: change_bytes(text, text.size()); break;
      case 1: text.erase(at, length); break;
      case 2: text.insert(below(text.size() + 1), text.substr(at, length)); break;
      case 3: text.insert(at, kPieces[below(std::size(kPieces))]); break;
      case 4: text.replace(at, length, kPieces[below(std::size(kPieces))]); break;
      default: change_number(text, at);
    }
  }

  void change_bytes(std::string& text, size_t first) {  // one among the `first` bytes
    if (first > 0 && !text.empty()) text[below(std::min(first, text.size()))] = static_cast<char>(below(256));
  }

  void change_number(std::string& text, size_t at) {  // the first at or after `at`
    size_t begin = text.find_first_of("0123456789", at);
    if (begin == text.npos) return;
    size_t end = std::min(text.find_first_not_of("0123456789", begin), text.size());
    text.replace(begin, end - begin, below(2) == 0 ? std::to_string(below(40)) : std::string(kPieces[10 + below(13)]));
  }

  uint64_t seed_, number_, drawn_ = 0;
};

// Whether the parser takes the file. It must either refuse it with a DataError or give entries that keep the header's
// promises; anything else leaves here as another exception or is a sanitizer's finding.
inline bool parses(const std::string& file) {
  std::vector<char> exact(file.begin(), file.end());  // no spare capacity that would hide a read beyond the end
  std::span<const std::byte> bytes = std::as_bytes(std::span(exact));
  try {
    SafetensorsFile parsed = SafetensorsFile::from_bytes(bytes, "fuzz");
    size_t total = 0;
    unsigned sum = 0;
    for (const TensorEntry& entry : parsed.entries()) {
      BONFIRE_CHECK(entry.bytes.size() == static_cast<size_t>(entry.shape.count()) * size_of(entry.dtype));
      BONFIRE_CHECK(row_major_strides(entry.shape).rank() == entry.shape.rank());
      BONFIRE_CHECK(parsed.find(entry.name) == &entry);
      total += entry.bytes.size();
      for (std::byte value : entry.bytes) sum += std::to_integer<unsigned>(value);
    }
    BONFIRE_CHECK(total < bytes.size() && sum <= 255 * total);
    return true;
  } catch (const DataError& error) {
    BONFIRE_CHECK(std::strlen(error.what()) < 1000, "a message of {} characters", std::strlen(error.what()));
    return false;
  }
}

}  // namespace bonfire::nn::testing
