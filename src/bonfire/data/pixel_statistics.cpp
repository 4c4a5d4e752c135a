#include "bonfire/data/pixel_statistics.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <mutex>

#include "bonfire/base/error.h"
#include "bonfire/base/thread_pool.h"

namespace bonfire::data {

namespace {

using Histogram = std::array<int64_t, 256>;  // how often a channel has each value

void count_values(const Array& image, std::vector<Histogram>& counts) {
  const size_t channels = counts.size();
  BONFIRE_CHECK(image.dtype == DType::u8 && image.bytes.size() % channels == 0);
  for (size_t at = 0; at < image.bytes.size(); at += channels)
    for (size_t c = 0; c < channels; ++c) ++counts[c][static_cast<uint8_t>(image.bytes[at + c])];
}

}  // namespace

PixelStatistics measure_pixels(const Dataset& images, int64_t count, int64_t most) {
  constexpr int64_t kGrain = 64;  // images worth a thread
  count = std::min(count, images.size());
  const int64_t looked_at = std::min(count, most);
  BONFIRE_CHECK(looked_at > 0);
  const auto channels = static_cast<size_t>(images.get(0).input.shape[2]);
  std::vector<Histogram> all(channels);
  std::mutex mutex;
  ThreadPool threads(looked_at < 2 * kGrain ? 1 : available_cores());
  threads.parallel_for(looked_at, kGrain, [&](int64_t begin, int64_t end) {
    std::vector<Histogram> own(channels);
    for (int64_t i = begin; i < end; ++i) count_values(images.get(i * count / looked_at).input, own);
    std::lock_guard lock(mutex);
    for (size_t c = 0; c < channels; ++c)
      for (size_t value = 0; value < own[c].size(); ++value) all[c][value] += own[c][value];
  });
  PixelStatistics result;
  result.images = looked_at;
  for (const Histogram& histogram : all) {
    double pixels = 0, sum = 0, squares = 0;
    for (size_t value = 0; value < histogram.size(); ++value) {
      const auto times = static_cast<double>(histogram[value]), share = static_cast<double>(value) / 255;
      pixels += times;
      sum += times * share;
      squares += times * share * share;
    }
    const double mean = sum / pixels, variance = squares / pixels - mean * mean;
    result.mean.push_back(static_cast<float>(mean));
    result.deviation.push_back(static_cast<float>(std::sqrt(std::max(variance, 1e-6))));  // all of one colour: no 0
  }
  return result;
}

}  // namespace bonfire::data
