#include "bonfire/data/jpeg_writer.h"

#include <cstdlib>

#include "bonfire/base/error.h"
#include "bonfire/data/jpeg_errors.h"

namespace bonfire::data {

namespace {

class JpegWriter {
 public:
  JpegWriter() { encoder_.err = listen(errors_); }
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

  JpegErrors errors_{};
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
