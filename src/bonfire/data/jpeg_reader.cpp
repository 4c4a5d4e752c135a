#include "bonfire/data/jpeg_reader.h"

#include <csetjmp>
#include <cstddef>
#include <cstdio>
// libjpeg's headers expect the two above.
#include <jerror.h>
#include <jpeglib.h>

#include <algorithm>

#include "bonfire/base/error.h"

namespace bonfire::data {

namespace {

// libjpeg reports through these. An error must not return, and C++ exceptions must not cross C code: it jumps back
// into the method of JpegReader that called, which throws.
struct JpegErrors {
  jpeg_error_mgr base;  // first: libjpeg knows only this
  std::jmp_buf back;
  char text[JMSG_LENGTH_MAX];
};

[[noreturn]] void jump_back(j_common_ptr info) {
  auto* errors = reinterpret_cast<JpegErrors*>(info->err);
  info->err->format_message(info, errors->text);
  std::longjmp(errors->back, 1);
}

// libjpeg calls damage a warning and goes on with grey. Bytes too many and odd headers do no harm.
void on_message(j_common_ptr info, int level) {
  if (level >= 0) return;
  switch (info->err->msg_code) {
    case JWRN_HIT_MARKER:
    case JWRN_HUFF_BAD_CODE:
    case JWRN_JPEG_EOF:
    case JWRN_MUST_RESYNC: jump_back(info);
    default: break;
  }
}

void print_nothing(j_common_ptr) {}

// A progressive file may refine its picture as often as it likes, which costs a pass over all of it each time.
void limit_scans(j_common_ptr info) {
  constexpr int kMost = 500;
  if (!info->is_decompressor || reinterpret_cast<j_decompress_ptr>(info)->input_scan_number <= kMost) return;
  auto* errors = reinterpret_cast<JpegErrors*>(info->err);
  std::snprintf(errors->text, sizeof errors->text, "more than %d scans", kMost);
  std::longjmp(errors->back, 1);
}

// Files store ink the other way round, 255 is none: channel × black / 255, rounded.
void multiply_out_black(std::span<uint8_t> row) {
  for (size_t x = 0; x + 3 < row.size(); x += 4)
    for (size_t c = 0; c < 3; ++c) {
      unsigned product = row[x + c] * row[x + 3] + 128U;
      row[x + c] = static_cast<uint8_t>((product + (product >> 8)) >> 8);
    }
}

class JpegReader final : public ImageReader {
 public:
  JpegReader(std::span<const std::byte> file, const std::string& name) : name_(name) {
    info_.err = jpeg_std_error(&errors_.base);
    errors_.base.error_exit = jump_back;
    errors_.base.emit_message = on_message;
    errors_.base.output_message = print_nothing;
    progress_.progress_monitor = limit_scans;
    try {
      read_header(file);
    } catch (...) {
      jpeg_destroy_decompress(&info_);
      throw;
    }
  }
  JpegReader(const JpegReader&) = delete;
  JpegReader& operator=(const JpegReader&) = delete;
  ~JpegReader() override { jpeg_destroy_decompress(&info_); }

  ImageSize size() const override { return {info_.image_height, info_.image_width}; }

  DecodedPart start(const ImageRegion& region, ImageSize least) override {
    require_inside(region);
    if (setjmp(errors_.back) != 0) fail();
    choose_scale(region, least);
    jpeg_start_decompress(&info_);
    return crop(region);
  }

  void read_row(std::span<uint8_t> row) override {
    if (setjmp(errors_.back) != 0) fail();
    JSAMPROW rows[] = {row.data()};
    if (jpeg_read_scanlines(&info_, rows, 1) != 1) fail();
    if (info_.out_color_space == JCS_CMYK) multiply_out_black(row);
  }

 private:
  [[noreturn]] void fail() const {
    throw_error<DataError>("[image] {}: {}; the file is damaged, remove it or fetch it again", name_, errors_.text);
  }

  void read_header(std::span<const std::byte> file) {
    if (setjmp(errors_.back) != 0) fail();
    jpeg_create_decompress(&info_);
    info_.progress = &progress_;
    jpeg_mem_src(&info_, reinterpret_cast<const unsigned char*>(file.data()), file.size());
    jpeg_read_header(&info_, TRUE);
    bool cmyk = info_.jpeg_color_space == JCS_CMYK || info_.jpeg_color_space == JCS_YCCK;
    info_.out_color_space = cmyk ? JCS_CMYK : JCS_EXT_RGBX;
  }

  // The smallest size that covers what is wanted. The inverse transform is fast for these eighths only.
  void choose_scale(const ImageRegion& region, ImageSize least) {
    info_.scale_denom = 8;
    for (int64_t eighths : {1, 2, 4, 8}) {
      info_.scale_num = static_cast<unsigned>(eighths);
      if (region.height * eighths >= least.height * 8 && region.width * eighths >= least.width * 8) return;
    }
  }

  // Leaves out what lies above and beside the region. What is beside can be left out in whole blocks only.
  DecodedPart crop(const ImageRegion& region) {
    const double scale = info_.scale_num / 8.0;
    auto first = [scale](int64_t pixel) { return static_cast<JDIMENSION>(static_cast<double>(pixel) * scale); };
    auto past = [scale](int64_t pixel, JDIMENSION most) {
      return std::min(most, static_cast<JDIMENSION>(static_cast<double>(pixel) * scale + 0.999));
    };
    JDIMENSION top = first(region.top), bottom = past(region.top + region.height, info_.output_height);
    JDIMENSION left = first(region.left), right = past(region.left + region.width, info_.output_width);
    // Beside a block's edge chroma would be interpolated without its neighbour.
    constexpr JDIMENSION kMargin = 2;
    left = left > kMargin ? left - kMargin : 0;
    right = std::min(right + kMargin, info_.output_width);
    JDIMENSION width = right - left;
    if (width < info_.output_width) jpeg_crop_scanline(&info_, &left, &width);
    if (top > 0) jpeg_skip_scanlines(&info_, top);
    return {bottom - top,
            width,
            {static_cast<double>(region.top) * scale - top, static_cast<double>(region.left) * scale - left,
             static_cast<double>(region.height) * scale, static_cast<double>(region.width) * scale}};
  }

  std::string name_;
  JpegErrors errors_{};
  jpeg_progress_mgr progress_{};
  jpeg_decompress_struct info_{};
};

}  // namespace

std::unique_ptr<ImageReader> open_jpeg(std::span<const std::byte> file, const std::string& name) {
  return std::make_unique<JpegReader>(file, name);
}

}  // namespace bonfire::data
