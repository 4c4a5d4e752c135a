#include "bonfire/data/png_reader.h"

#include <png.h>

#include <algorithm>
#include <cstring>

#include "bonfire/base/error.h"

namespace bonfire::data {

namespace {

// libpng reports through these. An error must not return, and C++ exceptions must not cross C code: it jumps back into
// the method of PngReader that called, which throws.
struct PngState {
  std::span<const std::byte> left;  // bytes that libpng has not asked for
  char text[128] = {};
};

[[noreturn]] void jump_back(png_structp png, png_const_charp text) {
  auto* state = static_cast<PngState*>(png_get_error_ptr(png));
  std::strncpy(state->text, text, sizeof state->text - 1);
  png_longjmp(png, 1);
}

void ignore(png_structp, png_const_charp) {}

void give_bytes(png_structp png, png_bytep to, size_t count) {
  auto* state = static_cast<PngState*>(png_get_io_ptr(png));
  if (state->left.size() < count) png_error(png, "the file is cut short");
  std::memcpy(to, state->left.data(), count);
  state->left = state->left.subspan(count);
}

class PngReader final : public ImageReader {
 public:
  PngReader(std::span<const std::byte> file, const std::string& name) : name_(name), state_{file} {
    png_ = png_create_read_struct(PNG_LIBPNG_VER_STRING, &state_, jump_back, ignore);
    info_ = png_ == nullptr ? nullptr : png_create_info_struct(png_);
    try {
      if (info_ == nullptr) fail();
      read_header();
    } catch (...) {
      png_destroy_read_struct(&png_, &info_, nullptr);
      throw;
    }
  }
  PngReader(const PngReader&) = delete;
  PngReader& operator=(const PngReader&) = delete;
  ~PngReader() override { png_destroy_read_struct(&png_, &info_, nullptr); }

  ImageSize size() const override { return {png_get_image_height(png_, info_), png_get_image_width(png_, info_)}; }

  // Rows can be left out below the region only: every row is stored as a difference from the one above it.
  DecodedPart start(const ImageRegion& region, ImageSize) override {
    require_inside(region);
    row_.resize(png_get_rowbytes(png_, info_));
    if (interlaced_) {
      read_interlaced();
      next_ = static_cast<size_t>(region.top);
    } else {
      for (int64_t y = 0; y < region.top; ++y) next_row();
    }
    left_ = static_cast<size_t>(region.left) * 4;
    return {region.height, region.width, {0, 0, static_cast<double>(region.height), static_cast<double>(region.width)}};
  }

  void read_row(std::span<uint8_t> row) override {
    const uint8_t* from = interlaced_ ? whole_.data() + next_++ * row_.size() : next_row();
    std::memcpy(row.data(), from + left_, row.size());
  }

 private:
  [[noreturn]] void fail() const {
    throw_error<DataError>("[image] {}: {}; the file is damaged, remove it or fetch it again", name_, state_.text);
  }

  // Whatever the file holds, rows will be red, green, blue and a filler, 8 bits each.
  void read_header() {
    if (setjmp(png_jmpbuf(png_)) != 0) fail();
    png_set_read_fn(png_, &state_, give_bytes);
    png_set_user_limits(png_, 1 << 20, 1 << 20);
    png_read_info(png_, info_);
    png_set_expand(png_);
    png_set_strip_16(png_);
    png_set_gray_to_rgb(png_);
    png_set_strip_alpha(png_);
    png_set_filler(png_, 255, PNG_FILLER_AFTER);
    interlaced_ = png_set_interlace_handling(png_) > 1;
    png_read_update_info(png_, info_);
  }

  const uint8_t* next_row() {
    if (setjmp(png_jmpbuf(png_)) != 0) fail();
    png_read_row(png_, row_.data(), nullptr);
    return row_.data();
  }

  // Each of the seven passes goes over the rows that are there already.
  void read_interlaced() {
    whole_.resize(row_.size() * png_get_image_height(png_, info_));
    rows_.clear();
    for (size_t at = 0; at < whole_.size(); at += row_.size()) rows_.push_back(whole_.data() + at);
    read_passes();
  }
  void read_passes() {
    if (setjmp(png_jmpbuf(png_)) != 0) fail();
    png_read_image(png_, rows_.data());
  }

  std::string name_;
  PngState state_;
  png_structp png_ = nullptr;
  png_infop info_ = nullptr;
  bool interlaced_ = false;
  size_t left_ = 0, next_ = 0;   // bytes of a row in front of the region; the next row of an interlaced picture
  std::vector<uint8_t> row_;     // [W, 4]
  std::vector<uint8_t> whole_;   // [H, W, 4]; of an interlaced picture
  std::vector<png_bytep> rows_;  // into whole_
};

}  // namespace

std::unique_ptr<ImageReader> open_png(std::span<const std::byte> file, const std::string& name) {
  return std::make_unique<PngReader>(file, name);
}

}  // namespace bonfire::data
