#include "bonfire/train/data/data_content.h"

#include <fmt/format.h>

#include <algorithm>

#include "bonfire/base/hash.h"

namespace bonfire::train {

namespace {

void mix(base::Hash128& hash, const data::Array& array) {
  hash.mix(static_cast<uint64_t>(array.dtype));
  for (int64_t extent : array.shape.extents()) hash.mix(static_cast<uint64_t>(extent));
  hash.mix(std::string_view(reinterpret_cast<const char*>(array.bytes.data()), array.bytes.size()));
}

}  // namespace

DataContent content_of(const data::Dataset& dataset) {
  constexpr int64_t kHashed = 64;
  const int64_t size = dataset.size(), count = std::min(size, kHashed);
  base::Hash128 hash;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t index = count == 1 ? 0 : i * (size - 1) / (count - 1);
    const data::Sample sample = dataset.get(index);
    mix(hash, sample.input);
    mix(hash, sample.label);
  }
  return {size, fmt::format("{:016x}{:016x}", hash.high, hash.low)};
}

std::string in_words(const DataContent& content) {
  return fmt::format("{} samples (hash {})", content.samples, content.hash.substr(0, 12));
}

}  // namespace bonfire::train
