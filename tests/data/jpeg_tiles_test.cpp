#include "bonfire/data/jpeg_tiles.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "bonfire/base/error.h"
#include "bonfire/base/random.h"
#include "bonfire/data/transforms.h"
#include "tests/support/image_files.h"

namespace bonfire::data::jpeg_tiles_test {
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
  return jpeg_file(noise(height, width, options.channels), height, width, options);
}

std::vector<JpegOptions> all_kinds() {
  std::vector<JpegOptions> kinds;
  for (bool progressive : {false, true}) {
    kinds.push_back({.channels = 1, .progressive = progressive});
    kinds.push_back({.channels = 4, .progressive = progressive});
    kinds.push_back({.progressive = progressive, .as_rgb = true});
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

// Corners, edges, the inside, single pixels and all of it.
std::vector<ImageRegion> places_in(ImageSize size) {
  std::vector<ImageRegion> places{{0, 0, size.height, size.width}};
  for (int64_t parts : {2, 3, 1000}) {
    int64_t height = (size.height + parts - 1) / parts, width = (size.width + parts - 1) / parts;
    for (int64_t top : {int64_t{0}, (size.height - height) / 2, size.height - height})
      for (int64_t left : {int64_t{0}, (size.width - width) / 2, size.width - width})
        places.push_back({top, left, height, width});
  }
  return places;
}

TEST(JpegTiles, EveryPlaceIsTheSameAtEveryScale) {
  for (ImageSize size : {ImageSize{38, 138}, ImageSize{48, 192}})
    for (const JpegOptions& kind : all_kinds()) {
      std::string file = file_of(static_cast<int>(size.height), static_cast<int>(size.width), kind);
      std::vector<std::byte> tiled = tile_jpeg(bytes_of(file));
      for (const ImageRegion& place : places_in(size))
        for (int64_t smaller : {1, 2, 4, 8})
          expect_same_part(bytes_of(file), tiled, place,
                           {(place.height + smaller - 1) / smaller, (place.width + smaller - 1) / smaller});
    }
}

TEST(JpegTiles, FilesThatHaveRestartMarkersAlreadyAreReadTheSame) {
  const ImageSize kSize{71, 250};  // 16 units of 16 pixels in a row
  std::string plain = file_of(71, 250);
  for (int units : {1, 2, 4, 8, 16, 3, 5, 17, 32, 1000}) {  // the last ones are no grids
    std::string file = file_of(71, 250, {.restart_units = units});
    for (const ImageRegion& place : places_in(kSize))
      expect_same_part(bytes_of(plain), bytes_of(file), place, {place.height, place.width});
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

// A file of 160 × 320 pixels in tiles of 64.
void expect_reads_only_what_is_needed(std::span<const std::byte> whole) {
  std::vector<std::byte> damaged(whole.begin(), whole.end());
  auto first_unit = damaged.begin() + static_cast<ptrdiff_t>(units_at(damaged));
  const std::byte kFirstMarker[] = {std::byte{0xff}, std::byte{0xd0}};
  // The first tile ends too early, which is an error for who reads it.
  damaged.erase(first_unit + 8,
                std::search(first_unit, damaged.end(), std::begin(kFirstMarker), std::end(kFirstMarker)));
  EXPECT_THROW(part_of(damaged, {0, 0, 160, 320}, {160, 320}), DataError);
  expect_same_part(whole, damaged, {40, 0, 20, 320}, {20, 320});   // below it
  expect_same_part(whole, damaged, {0, 100, 16, 200}, {16, 200});  // beside it
}

TEST(JpegTiles, WhatLiesAboveAndBesideIsNotRead) {
  expect_reads_only_what_is_needed(tile_jpeg(bytes_of(file_of(160, 320))));
  expect_reads_only_what_is_needed(bytes_of(file_of(160, 320, {.restart_units = 4})));
}

TEST(JpegTiles, AFrameHeaderInsideMetadataIsNotTakenForTheFiles) {
  const std::string kMarkers[] = {"\xff\x01", std::string("\xff\0", 2), "\xff\xd3"};  // none has a length after it
  std::string file = file_of(160, 320, {.restart_units = 4});
  for (const std::string& marker : kMarkers) {
    std::string metadata = "\xff\xe9\xff\xfd" + std::string(0xfffb, 'x');
    // Where the bytes after the marker would lead if they were its length.
    metadata.replace(0xffe9, 9, std::string("\xff\xc0\0\x11\x08\0\xa0\x01\x40", 9));
    std::string odd = file;
    odd.insert(2, marker + metadata);
    expect_same_part(bytes_of(file), bytes_of(odd), {40, 100, 60, 200}, {60, 200});
  }
}

TEST(JpegTiles, AFileIsAboutAsLargeAsBefore) {
  for (const JpegOptions& kind : all_kinds()) {
    std::string file = file_of(100, 250, kind);
    EXPECT_LT(tile_jpeg(bytes_of(file)).size(), file.size() + file.size() / 16);
  }
  // Nothing in the blocks, so markers would be most of the file.
  std::string plain = jpeg_file(std::vector<uint8_t>(160 * 1184 * 3, 100), 160, 1184);
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
}  // namespace bonfire::data::jpeg_tiles_test
