#pragma once
// Pictures brought to another size, row by row: bilinear with antialiasing, what Pillow and torchvision call BILINEAR.
// A pixel of the result is a weighted mean of the pixels that it covers, by a triangle as wide as two of them (of two
// source pixels when the picture grows). Whole numbers throughout, so the result has the same bits on every processor;
// it is within 1 of Pillow's.
//
//   Resampler resampler(
//       {.width = 500, .rows = {0, 375}, .columns = {0, 500}, .box = {0, 0, 375, 500}, .size = {224, 224}});
//   for (int64_t y = 0; y < 375; ++y) {
//     read(resampler.row());       // [width, 4]
//     resampler.take_row(result);  // u8 [224, 224, 3]
//   }

#include <span>
#include <vector>

#include "bonfire/data/image_reader.h"

namespace bonfire::data {

struct PixelRange {
  int64_t begin = 0, end = 0;
};

struct ResampleOptions {
  int64_t width = 0;         // of the rows that come
  PixelRange rows, columns;  // pixels that may count
  ImageBox box;              // the part of them that becomes the result
  ImageSize size;            // of the result
  int64_t channels = 3;      // of the result, at most 4
  bool flip = false;         // left becomes right
};

class Resampler {
 public:
  explicit Resampler(const ResampleOptions& options);

  // Where the next row goes, rows.begin first (those above it are not wanted): [width, 4].
  std::span<uint8_t> row() { return std::span(source_).subspan(kAhead, static_cast<size_t>(options_.width) * 4); }

  // Uses that row; writes the rows of the result, u8 [H, W, channels], that have all they need.
  void take_row(uint8_t* result);

 private:
  // How the pixels of a result's row, or its rows, are made: pixel i is the sum over k < 2 × pairs of source pixel
  // first[i] + k times a weight. Weights come in pairs, each four times over, as multiplication wants them.
  struct Weights {
    int64_t pairs = 0;
    std::vector<int64_t> first;
    std::vector<int16_t> values;  // [result, pairs, 4, 2]; those of a pixel add up to 2^14
  };
  static Weights weights_for(double begin, double length, int64_t count, PixelRange range, bool flip);

  template <int kPairs>
  void resample_columns(int16_t* out) const;  // of the row in source_
  template <int kPairs>
  void resample_rows(int64_t row, uint8_t* out) const;  // of the rows in rows_
  int16_t* kept_row(int64_t row) { return kept_.data() + row % kept_rows_ * kept_stride_; }

  ResampleOptions options_;
  Weights across_, down_;
  // libjpeg-turbo writes rows that begin at a multiple of 16 bytes past the caches, from where they would be fetched
  // again at once. Memory begins at such a multiple, so the row must not.
  static constexpr size_t kAhead = 8;  // bytes
  std::vector<uint8_t> source_;        // kAhead, [width + padding, 4]
  std::vector<int16_t> kept_;          // [kept_rows_, kept_stride_]: the last rows, resampled across, in 1/128
  int64_t kept_rows_ = 0, kept_stride_ = 0;
  std::vector<const int16_t*> rows_;  // [kept_rows_]: into kept_, those of one row of the result
  int64_t next_ = 0, done_ = 0;       // the source row to come; rows of the result that are written
};

}  // namespace bonfire::data
