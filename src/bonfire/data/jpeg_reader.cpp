#include "bonfire/data/jpeg_reader.h"

#include <algorithm>
#include <optional>

#include "bonfire/base/error.h"
#include "bonfire/data/jpeg_errors.h"
#include "bonfire/data/jpeg_tiles.h"

namespace bonfire::data {

namespace {

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
  JpegReader(std::span<const std::byte> file, const std::string& name) : file_(file), name_(name) {
    info_.err = listen(errors_);
    try {
      create();
      read_header(file_);
      size_ = {info_.image_height, info_.image_width};
    } catch (...) {
      jpeg_destroy_decompress(&info_);
      throw;
    }
  }
  JpegReader(const JpegReader&) = delete;
  JpegReader& operator=(const JpegReader&) = delete;
  ~JpegReader() override { jpeg_destroy_decompress(&info_); }

  ImageSize size() const override { return size_; }

  DecodedPart start(const ImageRegion& region, ImageSize least) override {
    require_inside(region);
    const unsigned eighths = scale_for(region, least);
    cut_ = cut_jpeg(file_, layout(), with_margin(region, kMargin * 8 / eighths));
    if (!cut_) return start_at(eighths, region);
    read_header(cut_->file);
    return start_at(eighths, {region.top - cut_->top, region.left - cut_->left, region.height, region.width});
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

  void create() {
    if (setjmp(errors_.back) != 0) fail();
    jpeg_create_decompress(&info_);
    limit_scans(info_, errors_);
  }

  void read_header(std::span<const std::byte> file) {
    if (setjmp(errors_.back) != 0) fail();
    jpeg_abort_decompress(&info_);
    jpeg_mem_src(&info_, reinterpret_cast<const unsigned char*>(file.data()), file.size());
    jpeg_read_header(&info_, TRUE);
    bool cmyk = info_.jpeg_color_space == JCS_CMYK || info_.jpeg_color_space == JCS_YCCK;
    info_.out_color_space = cmyk ? JCS_CMYK : JCS_EXT_RGBX;
  }

  DecodedPart start_at(unsigned eighths, const ImageRegion& region) {
    if (setjmp(errors_.back) != 0) fail();
    info_.scale_num = eighths;
    info_.scale_denom = 8;
    jpeg_start_decompress(&info_);
    return crop(region);
  }

  JpegLayout layout() const {
    bool one_scan = !info_.progressive_mode && !info_.arith_code && info_.comps_in_scan == info_.num_components;
    ImageSize unit{8, 8};
    if (info_.num_components > 1) unit = {8 * info_.max_v_samp_factor, 8 * info_.max_h_samp_factor};
    return {size_, unit, one_scan ? info_.restart_interval : 0, file_.size() - info_.src->bytes_in_buffer};
  }

  ImageRegion with_margin(const ImageRegion& region, int64_t margin) const {
    int64_t top = std::max<int64_t>(region.top - margin, 0), left = std::max<int64_t>(region.left - margin, 0);
    return {top, left, std::min(region.top + region.height + margin, size_.height) - top,
            std::min(region.left + region.width + margin, size_.width) - left};
  }

  // The smallest size that covers what is wanted, in eighths. The inverse transform is fast for these only.
  static unsigned scale_for(const ImageRegion& region, ImageSize least) {
    for (unsigned eighths : {1U, 2U, 4U})
      if (region.height * eighths >= least.height * 8 && region.width * eighths >= least.width * 8) return eighths;
    return 8;
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

  // Beside a block's edge chroma would be interpolated without its neighbour.
  static constexpr JDIMENSION kMargin = 2;  // pixels of what comes out

  std::span<const std::byte> file_;
  std::string name_;
  ImageSize size_;
  std::optional<JpegCut> cut_;  // what is decoded in place of the file
  JpegErrors errors_{};
  jpeg_decompress_struct info_{};
};

}  // namespace

std::unique_ptr<ImageReader> open_jpeg(std::span<const std::byte> file, const std::string& name) {
  return std::make_unique<JpegReader>(file, name);
}

}  // namespace bonfire::data
