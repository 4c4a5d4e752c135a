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

constexpr int kWeightBits = 14, kKeptBits = 7;  // of weights and of kept rows, behind the point

using U8x16 = uint8_t __attribute__((vector_size(16)));
using I16x8 = int16_t __attribute__((vector_size(16)));
using I32x4 = int32_t __attribute__((vector_size(16)));

template <class Vector>
Vector load(const void* from) {
  Vector vector;
  std::memcpy(&vector, from, sizeof vector);
  return vector;
}

// a[0] b[0] + a[1] b[1], a[2] b[2] + a[3] b[3], …
I32x4 add_products(I32x4 sum, I16x8 a, I16x8 b) {
#if defined(__SSE2__)  // one instruction, which compilers do not find by themselves
  return sum + reinterpret_cast<I32x4>(_mm_madd_epi16(reinterpret_cast<__m128i>(a), reinterpret_cast<__m128i>(b)));
#else
  for (int i = 0; i < 4; ++i) sum[i] += a[2 * i] * b[2 * i] + a[2 * i + 1] * b[2 * i + 1];
  return sum;
#endif
}

// Two pixels that lie side by side, each [4] u8, channel by channel.
I16x8 pair_channels(const uint8_t* pixels) {
  U8x16 two{};
  std::memcpy(&two, pixels, 8);
  auto second = reinterpret_cast<U8x16>(
      __builtin_shufflevector(reinterpret_cast<I32x4>(two), reinterpret_cast<I32x4>(two), 1, 1, 1, 1));
  U8x16 paired = __builtin_shufflevector(two, second, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
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
  // Weights of zero reach behind the last pixel of a row, and vectors behind the last of a kept row.
  source_.resize(static_cast<size_t>(options.width + 2 * across_.pairs) * 4);
  kept_rows_ = 2 * down_.pairs;
  kept_stride_ = (options.size.width * options.channels + 15) / 8 * 8;
  kept_.resize(static_cast<size_t>(kept_rows_ * kept_stride_));
}

template <int kPairs>
void Resampler::resample_columns(int16_t* out) const {
  const int64_t pairs = kPairs > 0 ? kPairs : across_.pairs, channels = options_.channels;
  const int16_t* weight = across_.values.data();
  for (int64_t first : across_.first) {
    const uint8_t* pixel = source_.data() + first * 4;
    I32x4 sum = I32x4{} + (1 << (kWeightBits - kKeptBits - 1));
    for (int64_t pair = 0; pair < pairs; ++pair, weight += 8, pixel += 8)
      sum = add_products(sum, pair_channels(pixel), load<I16x8>(weight));
    sum >>= kWeightBits - kKeptBits;
    // The next pixel overwrites what is too much.
    for (int64_t c = 0; c < 4; ++c) out[c] = static_cast<int16_t>(sum[c]);
    out += channels;
  }
}

void Resampler::resample_rows(int64_t row, uint8_t* out) const {
  const int64_t width = options_.size.width * options_.channels;
  const int16_t* weights = down_.values.data() + row * down_.pairs * 8;
  for (int64_t x = 0; x < width; x += 8) {
    I32x4 low = I32x4{} + (1 << (kWeightBits + kKeptBits - 1)), high = low;
    for (int64_t pair = 0; pair < down_.pairs; ++pair) {
      auto weight = load<I16x8>(weights + pair * 8);
      auto a = load<I16x8>(kept_row(down_.first[static_cast<size_t>(row)] + 2 * pair) + x);
      auto b = load<I16x8>(kept_row(down_.first[static_cast<size_t>(row)] + 2 * pair + 1) + x);
      low = add_products(low, __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11), weight);
      high = add_products(high, __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15), weight);
    }
    uint8_t pixels[8];
    for (int i = 0; i < 4; ++i) {
      pixels[i] = static_cast<uint8_t>(low[i] >> (kWeightBits + kKeptBits));
      pixels[4 + i] = static_cast<uint8_t>(high[i] >> (kWeightBits + kKeptBits));
    }
    std::memcpy(out + x, pixels, static_cast<size_t>(std::min<int64_t>(8, width - x)));
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
    resample_rows(done_, result + done_ * bytes);
    ++done_;
  }
}

}  // namespace bonfire::data
