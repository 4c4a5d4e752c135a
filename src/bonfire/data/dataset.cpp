#include "bonfire/data/dataset.h"

#include <cstring>

#include "bonfire/base/error.h"
#include "bonfire/base/random.h"

namespace bonfire::data {

float SampleKey::uniform(uint64_t number) const {
  constexpr uint64_t kDraws = 1 << 16;  // a sample's share of the counter
  BONFIRE_CHECK(number < kDraws);
  return uniform_at(seed_, static_cast<uint64_t>(epoch_), static_cast<uint64_t>(index_) * kDraws + number);
}

Sample image_sample(std::vector<std::byte> pixels, const Shape& shape, int64_t label) {
  Sample sample{{DType::u8, shape, std::move(pixels)}, {DType::i64, {}, std::vector<std::byte>(sizeof label)}, {}};
  std::memcpy(sample.label.bytes.data(), &label, sizeof label);
  return sample;
}

Sample encoded_image_sample(std::vector<std::byte> file, int64_t label, std::string source) {
  Shape shape{static_cast<int64_t>(file.size())};
  Sample sample = image_sample(std::move(file), shape, label);
  sample.source = std::move(source);
  return sample;
}

int64_t Dataset::label(int64_t index) const { return label_of(get(index)); }

void Dataset::require_index(int64_t index) const {
  if (index < 0 || index >= size())
    throw_error<DataError>("[dataset] there is no sample {}: the data set has {}, counted from 0", index, size());
}

int64_t label_of(const Sample& sample) {
  int64_t label = 0;
  const Array& found = sample.label;
  if (found.dtype != DType::i64 || found.bytes.size() != sizeof label)
    throw_error<DataError>(
        "[dataset] the label of {} is {} {} in {} bytes, expected a class, i64 [] in {}; mixup, hold_out by class and "
        "records are for classes alone",
        sample.source.empty() ? "a sample" : sample.source, name_of(found.dtype), to_string(found.shape),
        found.bytes.size(), sizeof label);
  std::memcpy(&label, found.bytes.data(), sizeof label);
  return label;
}

}  // namespace bonfire::data
