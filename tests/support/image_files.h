#pragma once
// JPEG and PNG files for tests, made by the libraries themselves.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace bonfire::testing {

struct JpegOptions {
  int quality = 90;
  int channels = 3;       // 1: grey; 3: RGB, stored as YCbCr; 4: CMYK
  int chroma_blocks = 2;  // pixels in each direction that share their chroma: 1 or 2
  int chroma_rows = 0;    // pixels from top to bottom, where that is another number
  bool progressive = false;
  bool as_rgb = false;    // three channels that are not stored as YCbCr
  int restart_units = 0;  // from one restart marker to the next; 0: there are none
};

// pixels: [height, width, channels].
std::string jpeg_file(std::span<const uint8_t> pixels, int height, int width, const JpegOptions& options = {});

enum class PngKind { grey, rgb, rgba, palette, grey16, rgb16, grey_alpha };

struct PngOptions {
  PngKind kind = PngKind::rgb;
  bool interlaced = false;
};

// samples: as many as the kind has for a pixel, 16-bit ones as high byte and low byte; palette: an index into
// (i, 255 − i, i / 2).
std::string png_file(std::span<const uint8_t> samples, int height, int width, const PngOptions& options = {});

// A picture with edges, slopes and colours: [height, width, channels].
std::vector<uint8_t> test_picture(int height, int width, int channels = 3);

inline std::span<const std::byte> bytes_of(const std::string& text) { return std::as_bytes(std::span(text)); }

}  // namespace bonfire::testing
