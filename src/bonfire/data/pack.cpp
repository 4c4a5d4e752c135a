#include "bonfire/data/pack.h"

#include <jpeglib.h>

#include <algorithm>

#include "bonfire/base/error.h"
#include "bonfire/data/jpeg_writer.h"
#include "bonfire/data/source.h"
#include "bonfire/data/transforms.h"

namespace bonfire::data {

namespace {

constexpr int kQuality = 95;  // of pictures that are brought to another size

ImageSize size_of(const Sample& sample) {
  const Array& input = sample.input;
  if (input.shape.rank() == 1) return open_image(input.bytes, sample.source)->size();
  return {input.shape[0], input.shape[1]};
}

// Pictures come out as JPEG files, pixels as pixels; what is small enough stays what it is.
void bring_down(Sample& sample, int64_t short_side, int64_t index) {
  ImageSize size = size_of(sample);
  int64_t now = std::min(size.height, size.width);
  if (now <= short_side) return;
  auto scaled = [&](int64_t side) { return std::max<int64_t>(1, (side * short_side + now / 2) / now); };
  bool is_file = sample.input.shape.rank() == 1;
  resize({.size = {scaled(size.height), scaled(size.width)}})(sample, SampleKey(0, 0, index));
  if (!is_file) return;
  std::vector<std::byte> file = encode_jpeg(sample.input, kQuality);
  sample.input = {DType::u8, {static_cast<int64_t>(file.size())}, std::move(file)};
}

}  // namespace

PackReport pack(const std::filesystem::path& source, const std::filesystem::path& target, const PackOptions& options) {
  for (const auto& [name, value] : {std::pair("--shards", options.shards), std::pair("--resize", options.resize)})
    if (value < 0) throw_error<ConfigError>("[pack] {} is {}, expected at least 1", name, value);
  ImageSource images = open_images(source);
  // One writer holds both parts: where they differ in size the larger one's shards have the wanted number.
  int64_t most = std::max(images.train->size(), images.test->size());
  RecordWriter writer(target, {.class_names = images.class_names,
                               .shard_bytes = options.shards > 0 ? INT64_MAX : options.shard_bytes,
                               .shard_samples = options.shards > 0 ? (most + options.shards - 1) / options.shards : 0});
  for (Split split : {Split::train, Split::test}) {
    const Dataset& part = split == Split::train ? *images.train : *images.test;
    for (int64_t i = 0; i < part.size(); ++i) {
      Sample sample = part.get(i);
      if (options.resize > 0) bring_down(sample, options.resize, i);
      writer.add(split, sample);
    }
  }
  writer.finish();
  return {writer.packed(Split::train), writer.packed(Split::test)};
}

}  // namespace bonfire::data
