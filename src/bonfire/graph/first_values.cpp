#include "bonfire/graph/first_values.h"

#include <algorithm>

#include "bonfire/base/thread_pool.h"

namespace bonfire {

void fill_slice(const FirstValues& values, const Slice& slice, DType dtype, std::byte* target) {
  constexpr int64_t kGrain = 1 << 16;  // elements worth a thread of their own
  const auto element = static_cast<int64_t>(size_of(dtype));
  std::vector<int64_t> begins;  // [stretch]: how many elements the stretches before have
  const std::vector<Stretch> stretches = stretches_of(slice);
  int64_t count = 0;
  for (const Stretch& stretch : stretches) {
    begins.push_back(count);
    count += stretch.count;
  }
  ThreadPool threads(count > kGrain ? available_cores() : 1);
  threads.parallel_for(count, kGrain, [&](int64_t begin, int64_t end) {
    auto stretch = static_cast<size_t>(std::upper_bound(begins.begin(), begins.end(), begin) - begins.begin()) - 1;
    for (int64_t at = begin; at < end; ++stretch) {
      const int64_t skipped = at - begins[stretch], length = std::min(end - at, stretches[stretch].count - skipped);
      values(stretches[stretch].whole + skipped, length, dtype,
             target + (stretches[stretch].local + skipped) * element);
      at += length;
    }
  });
}

}  // namespace bonfire
