#pragma once
// Damaged JPEG and PNG files for the fuzz test and the fuzz program. File `number` under `seed` is a pure function of
// the two, so a finding is repeated by its number.

#include <zlib.h>

#include <algorithm>
#include <string>
#include <vector>

#include "bonfire/base/error.h"
#include "bonfire/base/random.h"
#include "bonfire/data/image_reader.h"
#include "bonfire/data/jpeg_tiles.h"
#include "bonfire/data/transforms.h"
#include "tests/support/image_files.h"

namespace bonfire::data::testing {

// Whole files of all kinds.
inline std::vector<std::string> whole_files(bool jpeg) {
  using namespace bonfire::testing;
  const int kHeight = 37, kWidth = 50;
  std::vector<std::string> files;
  if (jpeg) {
    for (bool progressive : {false, true})
      for (int channels : {1, 3, 4})
        for (int chroma : {1, 2})
          files.push_back(jpeg_file(test_picture(kHeight, kWidth, channels), kHeight, kWidth,
                                    {.channels = channels, .chroma_blocks = chroma, .progressive = progressive}));
    for (int units : {1, 2})  // several tiles to a row
      for (int channels : {1, 3})
        files.push_back(jpeg_file(test_picture(kHeight, kWidth, channels), kHeight, kWidth,
                                  {.channels = channels, .restart_units = units}));
    for (size_t i = 0, plain = files.size(); i < plain; ++i) {
      std::vector<std::byte> tiled = tile_jpeg(bytes_of(files[i]));
      files.emplace_back(reinterpret_cast<const char*>(tiled.data()), tiled.size());
    }
    return files;
  }
  const std::pair<PngKind, int> kinds[] = {{PngKind::grey, 1},      {PngKind::rgb, 3},    {PngKind::rgba, 4},
                                           {PngKind::palette, 1},   {PngKind::grey16, 2}, {PngKind::rgb16, 6},
                                           {PngKind::grey_alpha, 2}};
  for (bool interlaced : {false, true})
    for (auto [kind, bytes] : kinds)
      files.push_back(png_file(test_picture(kHeight, kWidth, bytes), kHeight, kWidth, {kind, interlaced}));
  return files;
}

class ImageMutator {
 public:
  ImageMutator(const std::vector<std::string>& whole, bool jpeg, uint64_t seed, uint64_t number)
      : whole_(whole), jpeg_(jpeg), seed_(seed), number_(number) {}

  // A whole file with one to four changes.
  std::string file() {
    std::string file = whole_[below(whole_.size())];
    for (size_t changes = 1 + below(4); changes > 0; --changes) change(file);
    if (!jpeg_ && below(8) != 0) set_checksums(file);  // otherwise little would get past them
    return file;
  }

  size_t below(size_t count) { return philox(seed_, number_, draw_++).word[0] % count; }

 private:
  void change(std::string& file) {
    // Headers decide what happens, so they are met as often as the rest.
    size_t end = below(2) == 0 ? std::min<size_t>(file.size(), 700) : file.size();
    if (end == 0) return;
    size_t at = below(end), length = 1 + below(below(2) == 0 ? 4 : 60);
    switch (below(6)) {
      case 0: file[at] = static_cast<char>(file[at] ^ (1 << below(8))); break;
      case 1: file[at] = static_cast<char>(below(256)); break;
      case 2: file[at] = static_cast<char>(below(2) == 0 ? 0 : 0xff); break;
      case 3: file.erase(at, length); break;
      case 4: file.insert(at, file.substr(below(file.size()), length)); break;
      default:
        if (below(4) == 0) {
          file.resize(at);
        } else {  // a piece of another file
          const std::string& other = whole_[below(whole_.size())];
          file.replace(at, length, other.substr(below(other.size()), 1 + below(60)));
        }
    }
  }

  static void set_checksums(std::string& file) {
    auto word = [&](size_t at) {
      uint32_t value = 0;
      for (size_t i = 0; i < 4; ++i) value = value << 8 | static_cast<uint8_t>(file[at + i]);
      return value;
    };
    for (size_t at = 8; at + 12 <= file.size();) {
      size_t length = word(at);
      if (length > file.size() - at - 12) return;
      uint64_t sum = crc32(0, reinterpret_cast<const Bytef*>(file.data()) + at + 4, static_cast<uInt>(length + 4));
      for (size_t i = 0; i < 4; ++i) file[at + 8 + length + i] = static_cast<char>(sum >> (24 - 8 * i));
      at += length + 12;
    }
  }

  const std::vector<std::string>& whole_;
  bool jpeg_;
  uint64_t seed_, number_, draw_ = 0;
};

// Decodes a part of it, or brings a random part to a size; false when it is refused with a DataError, which is how it
// must be refused. Pictures that have become large are only opened.
inline bool decodes(const std::string& file, ImageMutator& draws) {
  constexpr int64_t kLarge = 1 << 18;  // pixels
  auto bytes = bonfire::testing::bytes_of(file);
  try {
    auto reader = open_image(bytes, "damaged");
    ImageSize size = reader->size();
    if (size.height * size.width > kLarge) return true;
    if (draws.below(2) == 0) {
      Sample sample = encoded_image_sample({bytes.begin(), bytes.end()}, 0, "damaged");
      random_resized_crop({.size = 24, .flip = 0.5})(sample, {1, 0, static_cast<int64_t>(draws.below(1000))});
      BONFIRE_CHECK(sample.input.shape == (Shape{24, 24, 3}));
      return true;
    }
    auto height = static_cast<size_t>(size.height), width = static_cast<size_t>(size.width);
    size_t top = draws.below(height), left = draws.below(width);
    ImageRegion region{static_cast<int64_t>(top), static_cast<int64_t>(left),
                       static_cast<int64_t>(1 + draws.below(height - top)),
                       static_cast<int64_t>(1 + draws.below(width - left))};
    DecodedPart part = reader->start(region, {static_cast<int64_t>(draws.below(20)), 1});
    std::vector<uint8_t> row(static_cast<size_t>(part.width) * 4);
    for (int64_t y = 0; y < part.height; ++y) reader->read_row(row);
    return true;
  } catch (const DataError&) {
    return false;
  }
}

}  // namespace bonfire::data::testing
