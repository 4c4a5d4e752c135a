#include "bonfire/data/image_reader.h"

#include <gtest/gtest.h>

#include <cmath>

#include "bonfire/base/error.h"
#include "tests/data/image_mutator.h"
#include "tests/support/expect_error.h"
#include "tests/support/image_files.h"

namespace bonfire::data::image_reader_test {
namespace {

using namespace bonfire::testing;

// Of two pictures of one size.
double mean_difference(std::span<const uint8_t> a, std::span<const std::byte> b) {
  EXPECT_EQ(a.size(), b.size());
  double sum = 0;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) sum += std::abs(a[i] - std::to_integer<int>(b[i]));
  return sum / static_cast<double>(a.size());
}

struct Part {
  DecodedPart where;
  std::vector<uint8_t> pixels;  // [H, W, 4]
};

Part part_of(const std::string& file, const ImageRegion& region, ImageSize least) {
  auto reader = open_image(bytes_of(file), "picture");
  Part part{reader->start(region, least), {}};
  auto row = static_cast<size_t>(part.where.width) * 4;
  part.pixels.resize(row * static_cast<size_t>(part.where.height));
  for (size_t at = 0; at < part.pixels.size(); at += row) reader->read_row(std::span(part.pixels).subspan(at, row));
  return part;
}

// The part holds the very pixels that the whole picture has there, at full size.
void expect_part_of_whole(const std::string& file, const ImageRegion& region) {
  Array whole = decode_image(bytes_of(file), "picture");
  Part part = part_of(file, region, {region.height, region.width});
  ASSERT_EQ(part.where.height, region.height);
  auto left = static_cast<int64_t>(part.where.box.left);
  for (int64_t y = 0; y < region.height; ++y)
    for (int64_t x = 0; x < region.width; ++x)
      for (int64_t c = 0; c < 3; ++c) {
        int64_t there = ((region.top + y) * whole.shape[1] + region.left + x) * 3 + c;
        int64_t here = (y * part.where.width + left + x) * 4 + c;
        ASSERT_EQ(part.pixels.at(static_cast<size_t>(here)),
                  std::to_integer<int>(whole.bytes.at(static_cast<size_t>(there))))
            << "row " << y << ", column " << x << ", channel " << c;
      }
}

TEST(JpegReader, DecodesColourGreyAndProgressiveFiles) {
  std::vector<uint8_t> picture = test_picture(75, 101);
  for (bool progressive : {false, true})
    for (int chroma : {1, 2}) {
      std::string file =
          jpeg_file(picture, 75, 101, {.quality = 95, .chroma_blocks = chroma, .progressive = progressive});
      Array image = decode_image(bytes_of(file), "picture");
      EXPECT_EQ(image.shape, (Shape{75, 101, 3}));
      EXPECT_LT(mean_difference(picture, image.bytes), 3);
    }
  std::vector<uint8_t> grey = test_picture(20, 31, 1), tripled;
  for (uint8_t value : grey) tripled.insert(tripled.end(), 3, value);
  Array image = decode_image(bytes_of(jpeg_file(grey, 20, 31, {.quality = 95, .channels = 1})), "grey");
  EXPECT_LT(mean_difference(tripled, image.bytes), 2);
}

TEST(JpegReader, MultipliesOutTheBlackOfCmyk) {
  // As files hold it: 255 is no ink.
  std::vector<uint8_t> ink, expected;
  for (int i = 0; i < 16 * 16; ++i) {
    ink.insert(ink.end(), {200, 100, 50, 128});
    expected.insert(expected.end(), {100, 50, 25});
  }
  Array image = decode_image(bytes_of(jpeg_file(ink, 16, 16, {.quality = 98, .channels = 4})), "ink");
  EXPECT_LT(mean_difference(expected, image.bytes), 2);
}

TEST(JpegReader, APartHasThePixelsOfTheWhole) {
  for (bool progressive : {false, true})
    for (int chroma : {1, 2}) {
      std::string file =
          jpeg_file(test_picture(120, 200), 120, 200, {.chroma_blocks = chroma, .progressive = progressive});
      expect_part_of_whole(file, {0, 0, 120, 200});
      expect_part_of_whole(file, {37, 51, 50, 60});
      expect_part_of_whole(file, {16, 32, 32, 32});
      expect_part_of_whole(file, {119, 199, 1, 1});
      expect_part_of_whole(file, {3, 150, 117, 50});
    }
}

TEST(JpegReader, ComesOutSmallerWhereThatIsEnough) {
  std::string file = jpeg_file(test_picture(400, 600), 400, 600);
  auto scale_for = [&](const ImageRegion& region, ImageSize least) {
    Part part = part_of(file, region, least);
    EXPECT_GE(static_cast<double>(part.where.height), part.where.box.top + part.where.box.height);
    EXPECT_GE(static_cast<double>(part.where.width), part.where.box.left + part.where.box.width);
    return part.where.box.width / static_cast<double>(region.width);
  };
  EXPECT_EQ(scale_for({0, 0, 400, 600}, {50, 75}), 0.125);
  EXPECT_EQ(scale_for({0, 0, 400, 600}, {51, 75}), 0.25);
  EXPECT_EQ(scale_for({0, 0, 400, 600}, {100, 150}), 0.25);
  EXPECT_EQ(scale_for({33, 77, 224, 301}, {112, 112}), 0.5);
  EXPECT_EQ(scale_for({33, 77, 223, 301}, {112, 112}), 1);
}

TEST(JpegReader, ASmallerPartLiesWhereItsBoxSays) {
  // Left half black, right half white: the edge must stay at column 300 of 600.
  std::vector<uint8_t> picture;
  for (int i = 0; i < 400 * 600 * 3; ++i) picture.push_back(i / 3 % 600 < 300 ? 0 : 255);
  Part part = part_of(jpeg_file(picture, 400, 600), {50, 101, 300, 400}, {100, 133});
  double edge = part.where.box.left + (300 - 101) / 2.0;  // at half size
  for (int64_t x = 1; x + 1 < part.where.width; ++x) {
    int value = part.pixels[static_cast<size_t>((part.where.width * 70 + x) * 4)];
    if (std::abs(static_cast<double>(x) + 0.5 - edge) > 1.5) {
      EXPECT_NEAR(value, static_cast<double>(x) < edge ? 0 : 255, 16) << x;
    }
  }
}

TEST(PngReader, DecodesEveryKindToEightBitsOfRedGreenAndBlue) {
  const int kHeight = 9, kWidth = 14;
  struct Case {
    PngKind kind;
    int bytes;  // of a pixel
    std::array<int, 3> (*expected)(const uint8_t*);
  };
  const Case cases[] = {
      {PngKind::grey, 1,
       [](const uint8_t* p) {
         return std::array<int, 3>{p[0], p[0], p[0]};
       }},
      {PngKind::rgb, 3,
       [](const uint8_t* p) {
         return std::array<int, 3>{p[0], p[1], p[2]};
       }},
      {PngKind::rgba, 4,
       [](const uint8_t* p) {
         return std::array<int, 3>{p[0], p[1], p[2]};
       }},
      {PngKind::palette, 1,
       [](const uint8_t* p) {
         return std::array<int, 3>{p[0], 255 - p[0], p[0] / 2};
       }},
      {PngKind::grey16, 2,
       [](const uint8_t* p) {
         return std::array<int, 3>{p[0], p[0], p[0]};
       }},
      {PngKind::rgb16, 6,
       [](const uint8_t* p) {
         return std::array<int, 3>{p[0], p[2], p[4]};
       }},
      {PngKind::grey_alpha, 2,
       [](const uint8_t* p) {
         return std::array<int, 3>{p[0], p[0], p[0]};
       }},
  };
  for (const Case& one : cases)
    for (bool interlaced : {false, true}) {
      std::vector<uint8_t> samples = test_picture(kHeight, kWidth, one.bytes);
      std::string file = png_file(samples, kHeight, kWidth, {one.kind, interlaced});
      Array image = decode_image(bytes_of(file), "picture");
      ASSERT_EQ(image.shape, (Shape{kHeight, kWidth, 3}));
      for (size_t pixel = 0; pixel < kHeight * kWidth; ++pixel) {
        std::array<int, 3> expected = one.expected(samples.data() + pixel * static_cast<size_t>(one.bytes));
        for (size_t c = 0; c < 3; ++c) ASSERT_EQ(std::to_integer<int>(image.bytes[pixel * 3 + c]), expected[c]);
      }
      expect_part_of_whole(file, {2, 5, 6, 7});
    }
}

TEST(ImageReader, DamagedFilesAreErrorsWithTheirName) {
  std::string jpeg = jpeg_file(test_picture(60, 80), 60, 80), png = png_file(test_picture(60, 80), 60, 80);
  auto decode = [](const std::string& file) { return decode_image(bytes_of(file), "cats/13.jpg"); };
  EXPECT_ERROR(decode("GIF89a"), DataError, "cats/13.jpg: 6 bytes that are neither a JPEG nor a PNG file");
  EXPECT_ERROR(decode(""), DataError, "cats/13.jpg: 0 bytes");
  EXPECT_ERROR(decode(jpeg.substr(0, jpeg.size() / 2)), DataError, "remature end");  // as libjpeg says it
  EXPECT_ERROR(decode(jpeg.substr(0, 100)), DataError, "cats/13.jpg");
  EXPECT_ERROR(decode(png.substr(0, png.size() / 2)), DataError, "cats/13.jpg: the file is cut short");
  std::string flipped = png;
  flipped[flipped.size() / 2] = static_cast<char>(flipped[flipped.size() / 2] ^ 0x10);
  EXPECT_ERROR(decode(flipped), DataError, "cats/13.jpg: IDAT");
}

// The short form of fuzz_image.
TEST(ImageReader, DamageOfEveryKindIsEitherReadOrRefused) {
  for (bool jpeg : {true, false}) {
    std::vector<std::string> whole = testing::whole_files(jpeg);
    int taken = 0, refused = 0;
    for (uint64_t number = 0; number < 400; ++number) {
      testing::ImageMutator mutator(whole, jpeg, 7, number);
      ++(testing::decodes(mutator.file(), mutator) ? taken : refused);
    }
    EXPECT_GT(taken, 10);
    EXPECT_GT(refused, 50);
  }
}

TEST(ImageReader, APictureThatClaimsToBeEnormousIsRefusedBeforeAnyMemoryIsTaken) {
  std::string jpeg = jpeg_file(test_picture(8, 8), 8, 8);
  size_t frame = jpeg.find("\xff\xc0");
  ASSERT_NE(frame, std::string::npos);
  for (size_t i = 5; i < 9; ++i) jpeg[frame + i] = static_cast<char>(0xfd);
  EXPECT_ERROR(decode_image(bytes_of(jpeg), "bomb.jpg"), DataError, "bomb.jpg: 65021 × 65021 pixels");
}

}  // namespace
}  // namespace bonfire::data::image_reader_test
