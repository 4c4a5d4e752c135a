#include "bonfire/data/jpeg_tiles.h"

#include <gtest/gtest.h>

#include "bonfire/base/error.h"
#include "bonfire/base/random.h"
#include "bonfire/data/transforms.h"
#include "tests/support/image_files.h"

namespace bonfire::data {
namespace {

using namespace bonfire::testing;

// Noise: every block has coefficients of all kinds, and neighbours differ.
std::vector<uint8_t> noise(int height, int width, int channels) {
  std::vector<uint8_t> pixels = test_picture(height, width, channels);
  for (size_t i = 0; i < pixels.size(); ++i)
    pixels[i] = static_cast<uint8_t>(pixels[i] / 2 + philox(5, i, 0).word[0] % 128);
  return pixels;
}

std::string file_of(int height, int width, const JpegOptions& options = {}) {
  return encode_jpeg(noise(height, width, options.channels), height, width, options);
}

std::vector<JpegOptions> all_kinds() {
  std::vector<JpegOptions> kinds;
  for (bool progressive : {false, true}) {
    kinds.push_back({.channels = 1, .progressive = progressive});
    kinds.push_back({.channels = 4, .progressive = progressive});
    for (int across : {1, 2})
      for (int down : {1, 2})
        kinds.push_back({.chroma_blocks = across, .chroma_rows = down, .progressive = progressive});
  }
  return kinds;
}

struct Part {
  DecodedPart where;
  std::vector<uint8_t> pixels;  // [H, W, 3], of the box
};

Part part_of(std::span<const std::byte> file, const ImageRegion& region, ImageSize least) {
  auto reader = open_image(file, "picture");
  Part part{reader->start(region, least), {}};
  std::vector<uint8_t> row(static_cast<size_t>(part.where.width) * 4);
  auto first = static_cast<size_t>(part.where.box.left);
  auto past = static_cast<size_t>(part.where.box.left + part.where.box.width);
  for (int64_t y = 0; y < part.where.height; ++y) {
    reader->read_row(row);
    for (size_t x = first; x < past; ++x)
      part.pixels.insert(part.pixels.end(), {row[4 * x], row[4 * x + 1], row[4 * x + 2]});
  }
  return part;
}

void expect_same_part(std::span<const std::byte> a, std::span<const std::byte> b, const ImageRegion& region,
                      ImageSize least) {
  Part expected = part_of(a, region, least), found = part_of(b, region, least);
  ASSERT_EQ(found.where.height, expected.where.height);
  ASSERT_EQ(found.where.width, expected.where.width);
  ASSERT_EQ(found.where.box.top, expected.where.box.top);
  ASSERT_EQ(found.where.box.left, expected.where.box.left);
  ASSERT_EQ(found.pixels, expected.pixels) << region.top << ' ' << region.left << ' ' << region.height << ' '
                                           << region.width << " at least " << least.height;
}

TEST(JpegTiles, EveryPartHasThePixelsThatItHadBefore) {
  const int kHeight = 90, kWidth = 331;
  for (const JpegOptions& kind : all_kinds()) {
    std::string file = file_of(kHeight, kWidth, kind);
    std::vector<std::byte> tiled = tile_jpeg(bytes_of(file));
    ASSERT_FALSE(tiled.empty());
    ASSERT_EQ(decode_image(tiled, "tiled").bytes, decode_image(bytes_of(file), "file").bytes);
    for (uint64_t i = 0; i < 24; ++i) {
      auto below = [&, draw = uint64_t{0}](int64_t count) mutable {
        return static_cast<int64_t>(philox(i, draw++, 0).word[0]) % count;
      };
      int64_t top = below(kHeight), left = below(kWidth);
      ImageRegion region{top, left, 1 + below(kHeight - top), 1 + below(kWidth - left)};
      int64_t smaller = int64_t{1} << below(4);
      expect_same_part(bytes_of(file), tiled, region,
                       {(region.height + smaller - 1) / smaller, (region.width + smaller - 1) / smaller});
    }
  }
}

TEST(JpegTiles, RowsOfAnyNumberOfBlocksAreCut) {
  for (int width : {1, 8, 16, 17, 40, 100, 200, 304, 464, 520, 640}) {  // 304: 19 units, 464: 29
    std::string file = file_of(40, width);
    std::vector<std::byte> tiled = tile_jpeg(bytes_of(file));
    ASSERT_EQ(decode_image(tiled, "tiled").bytes, decode_image(bytes_of(file), "file").bytes);
    ImageRegion region{20, width / 2, 10, width - width / 2};
    expect_same_part(bytes_of(file), tiled, region, {10, 1});
  }
}

TEST(JpegTiles, TransformsGiveTheSameImages) {
  std::string file = file_of(375, 500);
  std::vector<std::byte> tiled = tile_jpeg(bytes_of(file));
  for (int64_t i = 0; i < 12; ++i)
    for (const Transform& transform : {random_resized_crop({.size = 64, .flip = 0.5}), center_crop({.size = 100})}) {
      Sample a = encoded_image_sample({bytes_of(file).begin(), bytes_of(file).end()}, 0, "file");
      Sample b = encoded_image_sample(tiled, 0, "tiled");
      transform(a, {9, 0, i});
      transform(b, {9, 0, i});
      ASSERT_EQ(a.input.bytes, b.input.bytes) << i;
    }
}

// Where the units begin.
size_t units_at(std::span<const std::byte> file) {
  for (size_t at = 2;; at += 2 + (std::to_integer<size_t>(file[at + 2]) << 8) + std::to_integer<size_t>(file[at + 3]))
    if (file[at + 1] == std::byte{0xda}) return at + 2 + std::to_integer<size_t>(file[at + 3]);
}

TEST(JpegTiles, WhatLiesAboveAndBesideIsNotRead) {
  std::vector<std::byte> tiled = tile_jpeg(bytes_of(file_of(160, 320)));
  size_t first_unit = units_at(tiled);
  tiled[first_unit + 3] = tiled[first_unit + 4] = tiled[first_unit + 5] = std::byte{0x7f};
  const ImageRegion kBelow{40, 0, 20, 320}, kBeside{0, 100, 16, 200}, kAll{0, 0, 160, 320};
  std::vector<std::byte> whole = tile_jpeg(bytes_of(file_of(160, 320)));
  expect_same_part(whole, tiled, kBelow, {20, 320});
  expect_same_part(whole, tiled, kBeside, {16, 200});
  bool noticed = false;
  try {
    noticed = part_of(tiled, kAll, {160, 320}).pixels != part_of(whole, kAll, {160, 320}).pixels;
  } catch (const DataError&) {
    noticed = true;
  }
  EXPECT_TRUE(noticed);
}

TEST(JpegTiles, AFileIsAboutAsLargeAsBefore) {
  for (const JpegOptions& kind : all_kinds()) {
    std::string file = file_of(100, 250, kind);
    EXPECT_LT(tile_jpeg(bytes_of(file)).size(), file.size() + file.size() / 16);
  }
  // Nothing in the blocks, so markers would be most of the file.
  std::string plain = encode_jpeg(std::vector<uint8_t>(160 * 1184 * 3, 100), 160, 1184);
  EXPECT_LT(tile_jpeg(bytes_of(plain)).size(), plain.size() + plain.size() / 16);
}

TEST(JpegTiles, MarkersThatAreNotWhereTheyShouldBeAreDamage) {
  std::vector<std::byte> tiled = tile_jpeg(bytes_of(file_of(160, 320)));
  const ImageRegion kPart{40, 100, 100, 200};
  for (size_t at = units_at(tiled); at + 1 < tiled.size(); ++at)
    if (tiled[at] == std::byte{0xff} && tiled[at + 1] == std::byte{0xd3}) {
      tiled[at + 1] = std::byte{0xd6};
      break;
    }
  EXPECT_THROW(part_of(tiled, kPart, {100, 200}), DataError);
}

TEST(JpegTiles, WhatCannotBeWrittenAnewIsLeft) {
  std::string file = file_of(40, 60), progressive = file_of(40, 60, {.progressive = true});
  EXPECT_TRUE(tile_jpeg(bytes_of(file.substr(0, file.size() / 2))).empty());
  EXPECT_TRUE(tile_jpeg(bytes_of("no picture")).empty());
  // Without its last scan decoders smooth the picture, but not one that does not say so.
  size_t last = progressive.rfind("\xff\xda");
  EXPECT_TRUE(tile_jpeg(bytes_of(progressive.substr(0, last) + "\xff\xd9")).empty());
}

}  // namespace
}  // namespace bonfire::data
