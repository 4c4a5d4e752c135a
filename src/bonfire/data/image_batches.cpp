#include "bonfire/data/image_batches.h"

#include <algorithm>
#include <numeric>
#include <span>
#include <utility>

#include "bonfire/base/error.h"
#include "bonfire/base/random.h"

namespace bonfire::data {

struct ImageBatches::Source {
  LabelledImages images;
  ImageBatchesOptions options;

  int64_t samples() const {
    auto all = static_cast<int64_t>(images.size());
    return options.limit > 0 ? std::min(options.limit, all) : all;
  }
  int64_t batches() const {
    return options.drop_last ? samples() / options.batch_size
                             : (samples() + options.batch_size - 1) / options.batch_size;
  }
};

std::vector<uint32_t> shuffled(uint32_t count, uint64_t seed, uint64_t stream) {
  std::vector<uint32_t> order(count);
  std::iota(order.begin(), order.end(), 0U);
  for (uint32_t i = count; i > 1; --i) {
    RandomBlock block = philox(seed, stream, i);
    uint64_t bits = (static_cast<uint64_t>(block.word[0]) << 32) | block.word[1];
    std::swap(order[i - 1], order[bits % i]);
  }
  return order;
}

ImageBatches::ImageBatches(LabelledImages images, const ImageBatchesOptions& options) {
  if (options.batch_size < 1)
    throw_error<ConfigError>("[image_batches] batch_size is {}, expected at least 1", options.batch_size);
  if (options.limit < 0)
    throw_error<ConfigError>("[image_batches] limit is {}, expected 0 (all) or a number of images", options.limit);
  source_ = std::make_shared<const Source>(Source{std::move(images), options});
}

int64_t ImageBatches::samples() const { return source_->samples(); }
int64_t ImageBatches::batches_per_epoch() const { return source_->batches(); }
ImageBatches::Epoch ImageBatches::epoch(int64_t number) const { return Epoch(source_, number); }

ImageBatches::Epoch::Epoch(std::shared_ptr<const Source> source, int64_t number)
    : source_(std::move(source)), batches_(source_->batches()) {
  const ImageBatchesOptions& options = source_->options;
  if (options.shuffle)
    order_ = shuffled(static_cast<uint32_t>(source_->samples()), options.seed, static_cast<uint64_t>(number));
}

ImageBatch ImageBatches::Epoch::batch(int64_t number) const {
  const LabelledImages& images = source_->images;
  int64_t size = source_->options.batch_size;
  int64_t begin = number * size, count = std::min(size, source_->samples() - begin);
  auto pixels = static_cast<size_t>(images.image_shape.count());
  std::vector<uint8_t> image(static_cast<size_t>(count) * pixels);  // [N, H, W]
  std::vector<int64_t> label(static_cast<size_t>(count));
  for (size_t i = 0; i < label.size(); ++i) {
    size_t from = static_cast<size_t>(begin) + i;
    if (!order_.empty()) from = order_[from];
    std::copy_n(images.images.data() + from * pixels, pixels, image.data() + i * pixels);
    label[i] = images.labels[from];
  }
  Device device = source_->options.device;
  Shape shape{count, 1, images.image_shape[0], images.image_shape[1]};
  return {Tensor::from<uint8_t>(image, shape, device), Tensor::from<int64_t>(label, {count}, device)};
}

}  // namespace bonfire::data
