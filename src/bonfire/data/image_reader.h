#pragma once
// Pictures out of JPEG and PNG files, as red, green and blue. Only the part that is asked for is decoded as far as the
// format allows it, and JPEGs straight to a smaller size where that is enough.
//
//   data::Array whole = data::decode_image(bytes, "cats/13.jpg");  // u8 [H, W, 3]
//
//   auto reader = data::open_image(bytes, "cats/13.jpg");
//   data::DecodedPart part = reader->start({.top = 20, .left = 30, .height = 300, .width = 400}, {224, 224});
//   for (int64_t y = 0; y < part.height; ++y) reader->read_row(row);  // [part.width, 4]
//
// What a file is, is told by its first bytes, not by its name. Grey becomes three equal channels; CMYK is multiplied
// out as Pillow does; 16 bits become their upper 8; alpha is dropped; a palette is looked up; the EXIF orientation is
// not applied (as in torchvision's ImageFolder). A file that is damaged, cut short or not a picture is a DataError with
// its name, at the latest when the damaged part is read.

#include <memory>
#include <span>
#include <string>

#include "bonfire/data/dataset.h"

namespace bonfire::data {

struct ImageSize {
  int64_t height = 0, width = 0;  // pixels
  friend bool operator==(const ImageSize&, const ImageSize&) = default;
};

struct ImageRegion {
  int64_t top = 0, left = 0, height = 0, width = 0;  // pixels of the whole picture
  friend bool operator==(const ImageRegion&, const ImageRegion&) = default;
};

// A rectangle with edges anywhere, also between pixels.
struct ImageBox {
  double top = 0, left = 0, height = 0, width = 0;
};

struct DecodedPart {
  int64_t height = 0, width = 0;  // of the rows that read_row gives
  ImageBox box;                   // the region that was asked for, in pixels of those rows
};

class ImageReader {
 public:
  virtual ~ImageReader() = default;
  virtual ImageSize size() const = 0;  // of the whole picture

  // Begins to decode the region, which must be inside the picture; once. It may come out smaller than it is, but in
  // neither direction smaller than `least`.
  virtual DecodedPart start(const ImageRegion& region, ImageSize least) = 0;

  // The next row from the top: [part.width, 4], red, green, blue and a byte without meaning.
  virtual void read_row(std::span<uint8_t> row) = 0;

 protected:
  void require_inside(const ImageRegion& region) const;
};

// The file's bytes must outlive the reader. `name` is for errors.
std::unique_ptr<ImageReader> open_image(std::span<const std::byte> file, const std::string& name);

Array decode_image(std::span<const std::byte> file, const std::string& name);  // all of it: u8 [H, W, 3]

}  // namespace bonfire::data
