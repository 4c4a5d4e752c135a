#pragma once
// Parts of JPEG files that are decoded without what lies above and beside them.
//
// A JPEG file is one stream: where a block's bits begin is known only when all before it were read, which is half of
// the work of decoding. Restart markers are the exception: a decoder may begin after each. A file that has them at
// equal distances along every row of blocks is a grid of tiles, and a rectangle of tiles, with the picture's size in
// the header set to theirs and the markers numbered anew, is a JPEG file of its own with the very same pixels.

#include <optional>
#include <span>
#include <vector>

#include "bonfire/data/image_reader.h"

namespace bonfire::data {

// The same picture, to the bit, as a grid of tiles: its coefficients are written anew, which costs no quality, with
// codes that fit them best, so the file is seldom larger. Metadata (EXIF, colour profiles) is left out. Empty for what
// cannot be written so, or is damaged.
std::vector<std::byte> tile_jpeg(std::span<const std::byte> file);

// What the head of a JPEG file says.
struct JpegLayout {
  ImageSize picture;     // pixels
  ImageSize unit;        // pixels of the smallest part that is coded by itself (an MCU)
  int64_t interval = 0;  // units from one restart marker to the next; 0: there are none
  size_t units_at = 0;   // bytes in front of the first unit
};

struct JpegCut {
  std::vector<std::byte> file;
  int64_t top, left;  // pixels of the whole picture that are above it and beside it
};

// The tiles that hold the region; nothing when the file is no grid of them, when its markers are not where they should
// be, or when nothing would be left out above or beside.
std::optional<JpegCut> cut_jpeg(std::span<const std::byte> file, const JpegLayout& layout, const ImageRegion& region);

}  // namespace bonfire::data
