#include "bonfire/data/pack.h"

#include <algorithm>

#include "bonfire/base/error.h"
#include "bonfire/base/thread_pool.h"
#include "bonfire/data/jpeg_tiles.h"
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

void set_file(Sample& sample, std::vector<std::byte> file) {
  sample.input = {DType::u8, {static_cast<int64_t>(file.size())}, std::move(file)};
}

// Pictures come out as JPEG files, pixels as pixels. False for what is small enough: it stays what it is.
bool bring_down(Sample& sample, int64_t short_side, int64_t index) {
  ImageSize size = size_of(sample);
  int64_t now = std::min(size.height, size.width);
  if (now <= short_side) return false;
  auto scaled = [&](int64_t side) { return std::max<int64_t>(1, (side * short_side + now / 2) / now); };
  bool is_file = sample.input.shape.rank() == 1;
  resize({.size = {scaled(size.height), scaled(size.width)}})(sample, SampleKey(0, 0, index));
  if (is_file) set_file(sample, encode_jpeg(sample.input, kQuality));
  return true;
}

// As it is stored.
Sample prepared(const Dataset& part, int64_t index, const PackOptions& options) {
  Sample sample = part.get(index);
  bool encoded_anew = options.resize > 0 && bring_down(sample, options.resize, index);
  if (sample.input.shape.rank() == 1 && (encoded_anew || !options.keep_bytes))
    if (std::vector<std::byte> tiled = tile_jpeg(sample.input.bytes); !tiled.empty())
      set_file(sample, std::move(tiled));
  return sample;
}

// A few samples to a thread at a time: pictures may be large.
void add_all(RecordWriter& writer, Split split, const Dataset& part, const PackOptions& options) {
  ThreadPool threads(available_cores());
  std::vector<Sample> samples(static_cast<size_t>(threads.size()) * 8);
  for (int64_t first = 0; first < part.size(); first += static_cast<int64_t>(samples.size())) {
    int64_t count = std::min(static_cast<int64_t>(samples.size()), part.size() - first);
    threads.run(count, [&](int64_t i) { samples[static_cast<size_t>(i)] = prepared(part, first + i, options); });
    for (int64_t i = 0; i < count; ++i) writer.add(split, samples[static_cast<size_t>(i)]);
  }
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
  add_all(writer, Split::train, *images.train, options);
  add_all(writer, Split::test, *images.test, options);
  writer.finish();
  return {writer.packed(Split::train), writer.packed(Split::test), images.passed_over};
}

}  // namespace bonfire::data
