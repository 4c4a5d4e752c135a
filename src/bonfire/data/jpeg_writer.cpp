#include "bonfire/data/jpeg_writer.h"

#include <jpeglib.h>

#include <csetjmp>
#include <cstdio>  // jpeglib.h uses what it declares
#include <cstdlib>

#include "bonfire/base/error.h"

namespace bonfire::data {

namespace {

// libjpeg is C and ends the process at an error unless it is jumped out of.
struct Errors {
  jpeg_error_mgr base{};  // first, so that libjpeg's pointer to it is one to all
  std::jmp_buf back{};
  char text[JMSG_LENGTH_MAX] = "";
};

void jump_back(j_common_ptr failed) {
  auto* errors = reinterpret_cast<Errors*>(failed->err);
  failed->err->format_message(failed, errors->text);
  std::longjmp(errors->back, 1);
}

class JpegWriter {
 public:
  JpegWriter() {
    encoder_.err = jpeg_std_error(&errors_.base);
    errors_.base.error_exit = jump_back;
  }
  JpegWriter(const JpegWriter&) = delete;
  JpegWriter& operator=(const JpegWriter&) = delete;
  ~JpegWriter() {
    jpeg_destroy_compress(&encoder_);
    std::free(memory_);
  }

  std::vector<std::byte> encode(const Array& image, int quality) {
    if (setjmp(errors_.back) != 0)
      throw_error<DataError>("[jpeg] cannot encode {}: {}", to_string(image.shape), text());
    jpeg_create_compress(&encoder_);
    jpeg_mem_dest(&encoder_, &memory_, &bytes_);
    encoder_.image_height = static_cast<JDIMENSION>(image.shape[0]);
    encoder_.image_width = static_cast<JDIMENSION>(image.shape[1]);
    encoder_.input_components = static_cast<int>(image.shape[2]);
    encoder_.in_color_space = image.shape[2] == 1 ? JCS_GRAYSCALE : JCS_RGB;
    jpeg_set_defaults(&encoder_);
    jpeg_set_quality(&encoder_, quality, TRUE);
    jpeg_start_compress(&encoder_, TRUE);
    while (encoder_.next_scanline < encoder_.image_height) {
      size_t at = encoder_.next_scanline * static_cast<size_t>(image.shape[1] * image.shape[2]);
      auto* row = reinterpret_cast<JSAMPROW>(const_cast<std::byte*>(image.bytes.data() + at));  // only read
      jpeg_write_scanlines(&encoder_, &row, 1);
    }
    jpeg_finish_compress(&encoder_);
    const auto* begin = reinterpret_cast<const std::byte*>(memory_);
    return {begin, begin + bytes_};
  }

 private:
  const char* text() const { return errors_.text; }

  Errors errors_;
  jpeg_compress_struct encoder_{};
  unsigned char* memory_ = nullptr;  // libjpeg's, from malloc
  unsigned long bytes_ = 0;          // as libjpeg has it
};

}  // namespace

std::vector<std::byte> encode_jpeg(const Array& image, int quality) {
  BONFIRE_CHECK(image.shape.rank() == 3 && (image.shape[2] == 1 || image.shape[2] == 3));
  return JpegWriter().encode(image, quality);
}

}  // namespace bonfire::data
