#include "tests/support/image_files.h"

#include <png.h>

#include <cmath>
#include <cstddef>
#include <cstdio>
#include <stdexcept>
// libjpeg's header expects the two before.
#include <jpeglib.h>

namespace bonfire::testing {

std::string jpeg_file(std::span<const uint8_t> pixels, int height, int width, const JpegOptions& options) {
  jpeg_compress_struct info{};
  jpeg_error_mgr errors{};
  info.err = jpeg_std_error(&errors);
  jpeg_create_compress(&info);
  unsigned char* memory = nullptr;
  unsigned long size = 0;  // as libjpeg has it
  jpeg_mem_dest(&info, &memory, &size);
  info.image_height = static_cast<JDIMENSION>(height);
  info.image_width = static_cast<JDIMENSION>(width);
  info.input_components = options.channels;
  info.in_color_space = options.channels == 1 ? JCS_GRAYSCALE : options.channels == 3 ? JCS_RGB : JCS_CMYK;
  jpeg_set_defaults(&info);
  jpeg_set_quality(&info, options.quality, TRUE);
  if (options.as_rgb) jpeg_set_colorspace(&info, JCS_RGB);
  info.restart_interval = static_cast<unsigned>(options.restart_units);
  if (options.channels == 3 && !options.as_rgb) {
    info.comp_info[0].h_samp_factor = options.chroma_blocks;
    info.comp_info[0].v_samp_factor = options.chroma_rows > 0 ? options.chroma_rows : options.chroma_blocks;
  } else {
    info.comp_info[0].h_samp_factor = info.comp_info[0].v_samp_factor = 1;
  }
  if (options.progressive) jpeg_simple_progression(&info);
  jpeg_start_compress(&info, TRUE);
  size_t row = static_cast<size_t>(width) * static_cast<size_t>(options.channels);
  while (info.next_scanline < info.image_height) {
    JSAMPROW rows[] = {const_cast<uint8_t*>(pixels.data()) + info.next_scanline * row};
    jpeg_write_scanlines(&info, rows, 1);
  }
  jpeg_finish_compress(&info);
  std::string file(reinterpret_cast<const char*>(memory), size);
  jpeg_destroy_compress(&info);
  std::free(memory);
  return file;
}

namespace {

struct PngForm {
  int color, bits, bytes;  // bytes of a pixel
};

PngForm form_of(PngKind kind) {
  switch (kind) {
    case PngKind::grey: return {PNG_COLOR_TYPE_GRAY, 8, 1};
    case PngKind::rgb: return {PNG_COLOR_TYPE_RGB, 8, 3};
    case PngKind::rgba: return {PNG_COLOR_TYPE_RGBA, 8, 4};
    case PngKind::palette: return {PNG_COLOR_TYPE_PALETTE, 8, 1};
    case PngKind::grey16: return {PNG_COLOR_TYPE_GRAY, 16, 2};
    case PngKind::rgb16: return {PNG_COLOR_TYPE_RGB, 16, 6};
    case PngKind::grey_alpha: return {PNG_COLOR_TYPE_GRAY_ALPHA, 8, 2};
  }
  throw std::logic_error("no such kind");
}

void append(png_structp png, png_bytep bytes, size_t count) {
  static_cast<std::string*>(png_get_io_ptr(png))->append(reinterpret_cast<const char*>(bytes), count);
}

}  // namespace

std::string png_file(std::span<const uint8_t> samples, int height, int width, const PngOptions& options) {
  PngForm form = form_of(options.kind);
  std::string file;
  png_structp png = png_create_write_struct(PNG_LIBPNG_VER_STRING, nullptr, nullptr, nullptr);
  png_infop info = png_create_info_struct(png);
  png_set_write_fn(png, &file, append, nullptr);
  png_set_IHDR(png, info, static_cast<png_uint_32>(width), static_cast<png_uint_32>(height), form.bits, form.color,
               options.interlaced ? PNG_INTERLACE_ADAM7 : PNG_INTERLACE_NONE, PNG_COMPRESSION_TYPE_DEFAULT,
               PNG_FILTER_TYPE_DEFAULT);
  if (options.kind == PngKind::palette) {
    std::vector<png_color> palette;
    for (int i = 0; i < 256; ++i)
      palette.push_back({static_cast<png_byte>(i), static_cast<png_byte>(255 - i), static_cast<png_byte>(i / 2)});
    png_set_PLTE(png, info, palette.data(), 256);
  }
  png_write_info(png, info);
  std::vector<png_bytep> rows;
  for (int y = 0; y < height; ++y)
    rows.push_back(const_cast<uint8_t*>(samples.data()) +
                   static_cast<size_t>(y) * static_cast<size_t>(width * form.bytes));
  png_write_image(png, rows.data());
  png_write_end(png, info);
  png_destroy_write_struct(&png, &info);
  return file;
}

std::vector<uint8_t> test_picture(int height, int width, int channels) {
  std::vector<uint8_t> pixels;
  for (int y = 0; y < height; ++y)
    for (int x = 0; x < width; ++x)
      for (int c = 0; c < channels; ++c) {
        double slope = 255.0 * (c == 1 ? y : x) / std::max(1, c == 1 ? height : width);
        double wave = 40 * std::sin(0.13 * x * (c + 1)) * std::cos(0.09 * y);
        double disc = std::hypot(x - width / 2.0, y - height / 2.0) < height / 4.0 ? 70 * (1 - c) : 0;
        pixels.push_back(static_cast<uint8_t>(std::lround(std::min(255.0, std::max(0.0, slope + wave + disc)))));
      }
  return pixels;
}

}  // namespace bonfire::testing
