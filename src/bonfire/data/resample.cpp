#include "bonfire/data/resample.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "bonfire/base/error.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace bonfire::data {

namespace {

constexpr int kWeightBits = 14, kKeptBits = 7;  // of weights and of kept rows, after the point

using U8x16 = uint8_t __attribute__((vector_size(16)));
using I16x8 = int16_t __attribute__((vector_size(16)));
using I32x4 = int32_t __attribute__((vector_size(16)));
using I32x8 = int32_t __attribute__((vector_size(32)));
using I64x2 = int64_t __attribute__((vector_size(16)));

template <class Vector>
Vector load(const void* from) {
  Vector vector;
  std::memcpy(&vector, from, sizeof vector);
  return vector;
}

// Three steps that are one instruction each on x86, which compilers do not find by themselves.
#if defined(__SSE2__)
I32x4 sums_of_products(I16x8 a, I16x8 b) {
  return reinterpret_cast<I32x4>(_mm_madd_epi16(reinterpret_cast<__m128i>(a), reinterpret_cast<__m128i>(b)));
}
I16x8 narrowed(I32x4 low, I32x4 high) {
  return reinterpret_cast<I16x8>(_mm_packs_epi32(reinterpret_cast<__m128i>(low), reinterpret_cast<__m128i>(high)));
}
U8x16 narrowed(I16x8 low, I16x8 high) {
  return reinterpret_cast<U8x16>(_mm_packus_epi16(reinterpret_cast<__m128i>(low), reinterpret_cast<__m128i>(high)));
}
#else
I32x4 sums_of_products(I16x8 a, I16x8 b) {  // a[0] b[0] + a[1] b[1], a[2] b[2] + a[3] b[3], …
  auto wide_a = __builtin_convertvector(a, I32x8), wide_b = __builtin_convertvector(b, I32x8);
  I32x8 products = wide_a * wide_b;
  return __builtin_shufflevector(products, products, 0, 2, 4, 6) +
         __builtin_shufflevector(products, products, 1, 3, 5, 7);
}
I16x8 narrowed(I32x4 low, I32x4 high) {  // values must fit
  return __builtin_convertvector(__builtin_shufflevector(low, high, 0, 1, 2, 3, 4, 5, 6, 7), I16x8);
}
U8x16 narrowed(I16x8 low, I16x8 high) {
  return __builtin_convertvector(
      __builtin_shufflevector(low, high, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15), U8x16);
}
#endif

// Two pixels that lie side by side, each [4] u8, channel by channel.
I16x8 pair_channels(const uint8_t* pixels) {
  int64_t both = 0;
  std::memcpy(&both, pixels, sizeof both);
  auto two = reinterpret_cast<I32x4>(I64x2{both, 0});
  auto first = reinterpret_cast<U8x16>(two);
  auto second = reinterpret_cast<U8x16>(__builtin_shufflevector(two, two, 1, 1, 1, 1));
  U8x16 paired = __builtin_shufflevector(first, second, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  return reinterpret_cast<I16x8>(
      __builtin_shufflevector(paired, U8x16{}, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23));
}

}  // namespace

Resampler::Weights Resampler::weights_for(double begin, double length, int64_t count, PixelRange range, bool flip) {
  const double scale = length / static_cast<double>(count), reach = std::max(scale, 1.0);
  Weights weights;
  weights.pairs = (static_cast<int64_t>(std::ceil(2 * reach)) + 1) / 2;  // a triangle covers no more pixels
  weights.first.reserve(static_cast<size_t>(count));
  weights.values.resize(static_cast<size_t>(count * weights.pairs * 8));
  std::vector<double> exact(static_cast<size_t>(weights.pairs) * 2);
  std::vector<int16_t> rounded(exact.size());
  int16_t* out = weights.values.data();
  for (int64_t i = 0; i < count; ++i) {
    double center = begin + (static_cast<double>(flip ? count - 1 - i : i) + 0.5) * scale;
    auto first = std::clamp(static_cast<int64_t>(std::floor(center - reach + 0.5)), range.begin, range.end - 1);
    auto past = std::clamp(static_cast<int64_t>(std::floor(center + reach + 0.5)), first + 1, range.end);
    double sum = 0;
    for (int64_t k = 0; k < 2 * weights.pairs; ++k) {
      double distance = std::abs(static_cast<double>(first + k) + 0.5 - center) / reach;
      sum += exact[static_cast<size_t>(k)] = first + k < past ? std::max(0.0, 1 - distance) : 0;
    }
    // What rounding leaves over goes to the largest, so that a plain area stays as it is.
    int left = 1 << kWeightBits;
    for (size_t k = 0; k < exact.size(); ++k) {
      rounded[k] = static_cast<int16_t>(std::lround(exact[k] / sum * (1 << kWeightBits)));
      left -= rounded[k];
    }
    int16_t& largest = *std::max_element(rounded.begin(), rounded.end());
    largest = static_cast<int16_t>(largest + left);
    weights.first.push_back(first);
    for (size_t k = 0; k < rounded.size(); k += 2)
      for (int copy = 0; copy < 4; ++copy) {
        *out++ = rounded[k];
        *out++ = rounded[k + 1];
      }
  }
  return weights;
}

Resampler::Resampler(const ResampleOptions& options) : options_(options), next_(options.rows.begin) {
  BONFIRE_CHECK(options.channels >= 1 && options.channels <= 4);
  BONFIRE_CHECK(options.rows.end > options.rows.begin && options.columns.end > options.columns.begin);
  BONFIRE_CHECK(options.columns.begin >= 0 && options.columns.end <= options.width && options.rows.begin >= 0 &&
                options.box.width > 0 && options.box.height > 0);
  across_ = weights_for(options.box.left, options.box.width, options.size.width, options.columns, options.flip);
  down_ = weights_for(options.box.top, options.box.height, options.size.height, options.rows, false);
  // Weights of zero reach beyond the last pixel of a row, and vectors beyond the last of a kept row.
  source_.resize(kAhead + static_cast<size_t>(options.width + 2 * across_.pairs) * 4);
  kept_rows_ = 2 * down_.pairs;
  kept_stride_ = (options.size.width * options.channels + 15) / 8 * 8;
  kept_.resize(static_cast<size_t>(kept_rows_ * kept_stride_));
  rows_.resize(static_cast<size_t>(kept_rows_));
}

template <int kPairs>
void Resampler::resample_columns(int16_t* out) const {
  const int64_t pairs = kPairs > 0 ? kPairs : across_.pairs, channels = options_.channels;
  const int16_t* weight = across_.values.data();
  for (int64_t first : across_.first) {
    const uint8_t* pixel = source_.data() + kAhead + first * 4;
    I32x4 sum = I32x4{} + (1 << (kWeightBits - kKeptBits - 1));
    for (int64_t pair = 0; pair < pairs; ++pair, weight += 8, pixel += 8)
      sum += sums_of_products(pair_channels(pixel), load<I16x8>(weight));
    sum >>= kWeightBits - kKeptBits;
    I16x8 result = narrowed(sum, sum);
    std::memcpy(out, &result, 8);  // the next pixel overwrites what is too much
    out += channels;
  }
}

template <int kPairs>
void Resampler::resample_rows(int64_t row, uint8_t* out) const {
  const int64_t pairs = kPairs > 0 ? kPairs : down_.pairs, width = options_.size.width * options_.channels;
  const int16_t* weights = down_.values.data() + row * pairs * 8;
  for (int64_t x = 0; x < width; x += 8) {
    I32x4 low = I32x4{} + (1 << (kWeightBits + kKeptBits - 1)), high = low;
    for (int64_t pair = 0; pair < pairs; ++pair) {
      auto weight = load<I16x8>(weights + pair * 8);
      auto a = load<I16x8>(rows_[static_cast<size_t>(2 * pair)] + x);
      auto b = load<I16x8>(rows_[static_cast<size_t>(2 * pair + 1)] + x);
      low += sums_of_products(__builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11), weight);
      high += sums_of_products(__builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15), weight);
    }
    I16x8 values = narrowed(low >> (kWeightBits + kKeptBits), high >> (kWeightBits + kKeptBits));
    U8x16 pixels = narrowed(values, values);
    if (x + 8 <= width) {
      std::memcpy(out + x, &pixels, 8);
    } else {
      std::memcpy(out + x, &pixels, static_cast<size_t>(width - x));
    }
  }
}

void Resampler::take_row(uint8_t* result) {
  int16_t* kept = kept_row(next_);
  switch (across_.pairs) {
    case 1: resample_columns<1>(kept); break;
    case 2: resample_columns<2>(kept); break;
    case 3: resample_columns<3>(kept); break;
    case 4: resample_columns<4>(kept); break;
    default: resample_columns<0>(kept); break;
  }
  ++next_;
  const int64_t bytes = options_.size.width * options_.channels;
  while (done_ < options_.size.height) {
    int64_t past = std::min(down_.first[static_cast<size_t>(done_)] + 2 * down_.pairs, options_.rows.end);
    if (past > next_) return;
    for (int64_t k = 0; k < kept_rows_; ++k)
      rows_[static_cast<size_t>(k)] = kept_row(down_.first[static_cast<size_t>(done_)] + k);
    uint8_t* out = result + done_ * bytes;
    switch (down_.pairs) {
      case 1: resample_rows<1>(done_, out); break;
      case 2: resample_rows<2>(done_, out); break;
      case 3: resample_rows<3>(done_, out); break;
      default: resample_rows<0>(done_, out); break;
    }
    ++done_;
  }
}

}  // namespace bonfire::data
