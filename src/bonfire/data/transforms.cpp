#include "bonfire/data/transforms.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>

#include "bonfire/base/error.h"
#include "bonfire/data/labels.h"
#include "bonfire/data/resample.h"

namespace bonfire::data {

namespace {

// Which of a sample's random numbers belong to whom. Rectangles are drawn at most ten times, four numbers each.
constexpr uint64_t kCrop = 0, kFlip = 64, kShift = 65, kErase = 128, kMixPartner = 256, kMixShare = 512;
constexpr uint64_t kTries = 10;

void require_share(const char* where, const char* name, double value) {
  if (!(value >= 0 && value <= 1)) throw_error<ConfigError>("[{}] {} is {}, expected from 0 to 1", where, name, value);
}

void require_positive(const char* where, const char* name, int64_t value) {
  if (value < 1) throw_error<ConfigError>("[{}] {} is {}, expected at least 1", where, name, value);
}

void require_range(const char* where, const char* name, double least, double most) {
  if (!(least > 0 && least <= most))
    throw_error<ConfigError>("[{}] {} from {} to {}, expected a range above 0", where, name, least, most);
}

bool is_encoded(const Sample& sample) { return sample.input.dtype == DType::u8 && sample.input.shape.rank() == 1; }

void require_image(const Sample& sample) {
  const Shape& shape = sample.input.shape;
  if (sample.input.dtype != DType::u8 || shape.rank() != 3 || shape[2] < 1 || shape[2] > 4)
    throw_error<ShapeError>("[transform] a sample is {} {}, expected an image, u8 [H, W, C] with at most 4 channels",
                            name_of(sample.input.dtype), to_string(shape));
}

// --- parts of images brought to a size -------------------------------------------------------------------------------

// The result is what `box` shows, with the pixels of `region` counting.
struct View {
  ImageRegion region;
  ImageBox box;  // in pixels of the whole image
  ImageSize size;
  bool flip = false;
};

View view_of(const ImageRegion& region, ImageSize size, bool flip) {
  return {region,
          {static_cast<double>(region.top), static_cast<double>(region.left), static_cast<double>(region.height),
           static_cast<double>(region.width)},
          size,
          flip};
}

Array empty_image(ImageSize size, int64_t channels) {
  Array image{DType::u8, {size.height, size.width, channels}, {}};
  image.bytes.resize(static_cast<size_t>(image.shape.count()));
  return image;
}

uint8_t* pixels_of(Array& image) { return reinterpret_cast<uint8_t*>(image.bytes.data()); }

Array view_decoded(const Array& image, const View& view) {
  const ImageRegion& region = view.region;
  const int64_t width = image.shape[1], channels = image.shape[2];
  Resampler resampler({.width = width,
                       .rows = {region.top, region.top + region.height},
                       .columns = {region.left, region.left + region.width},
                       .box = view.box,
                       .size = view.size,
                       .channels = channels,
                       .flip = view.flip});
  Array result = empty_image(view.size, channels);
  for (int64_t y = region.top; y < region.top + region.height; ++y) {
    const auto* from = reinterpret_cast<const uint8_t*>(image.bytes.data()) + y * width * channels;
    std::span<uint8_t> row = resampler.row();
    for (int64_t x = region.left; x < region.left + region.width; ++x)
      std::memcpy(&row[static_cast<size_t>(x) * 4], from + x * channels, static_cast<size_t>(channels));
    resampler.take_row(pixels_of(result));
  }
  return result;
}

Array view_encoded(ImageReader& reader, const View& view) {
  const ImageRegion& region = view.region;
  // Of the region so many pixels are wanted that `box` has at least as many as the result.
  auto least = [](int64_t whole, double part, int64_t wanted) {
    return static_cast<int64_t>(std::ceil(static_cast<double>(whole * wanted) / part));
  };
  DecodedPart part = reader.start(region, {least(region.height, view.box.height, view.size.height),
                                           least(region.width, view.box.width, view.size.width)});
  double down = part.box.height / static_cast<double>(region.height);  // how much smaller it came out
  double across = part.box.width / static_cast<double>(region.width);
  auto past = [](double edge, int64_t most) { return std::min(most, static_cast<int64_t>(std::ceil(edge - 1e-6))); };
  Resampler resampler(
      {.width = part.width,
       .rows = {0, past(part.box.top + part.box.height, part.height)},
       .columns = {static_cast<int64_t>(part.box.left), past(part.box.left + part.box.width, part.width)},
       .box = {part.box.top + (view.box.top - static_cast<double>(region.top)) * down,
               part.box.left + (view.box.left - static_cast<double>(region.left)) * across, view.box.height * down,
               view.box.width * across},
       .size = view.size,
       .flip = view.flip});
  Array result = empty_image(view.size, 3);
  for (int64_t y = 0; y < part.height; ++y) {
    reader.read_row(resampler.row());
    resampler.take_row(pixels_of(result));
  }
  return result;
}

// choose(size of the image) → View.
template <class Choose>
void show(Sample& sample, const Choose& choose) {
  if (is_encoded(sample)) {
    std::unique_ptr<ImageReader> reader = open_image(sample.input.bytes, sample.source);
    sample.input = view_encoded(*reader, choose(reader->size()));
    return;
  }
  require_image(sample);
  sample.input = view_decoded(sample.input, choose(ImageSize{sample.input.shape[0], sample.input.shape[1]}));
}

// --- random rectangles -----------------------------------------------------------------------------------------------

struct RectangleOptions {
  double least_area, most_area;    // as a share of the image
  double least_ratio, most_ratio;  // width to height
};

// One that fits into the image, anywhere in it; none when ten did not fit.
std::optional<ImageRegion> random_rectangle(ImageSize image, const RectangleOptions& options, const SampleKey& key,
                                            uint64_t draw) {
  auto between = [](double least, double most, float u) { return least + (most - least) * u; };
  auto place = [](int64_t room, float u) {
    return std::min(room, static_cast<int64_t>(static_cast<double>(room + 1) * u));
  };
  for (uint64_t number = draw; number < draw + 4 * kTries; number += 4) {
    double area = static_cast<double>(image.height * image.width) *
                  between(options.least_area, options.most_area, key.uniform(number));
    double ratio =
        std::exp(between(std::log(options.least_ratio), std::log(options.most_ratio), key.uniform(number + 1)));
    int64_t width = std::llround(std::sqrt(area * ratio)), height = std::llround(std::sqrt(area / ratio));
    if (width < 1 || height < 1 || width > image.width || height > image.height) continue;
    return ImageRegion{place(image.height - height, key.uniform(number + 2)),
                       place(image.width - width, key.uniform(number + 3)), height, width};
  }
  return {};
}

// The largest in the middle whose ratio is allowed.
ImageRegion middle_rectangle(ImageSize image, const RectangleOptions& options) {
  ImageSize part = image;
  double ratio = static_cast<double>(image.width) / static_cast<double>(image.height);
  auto rounded = [](double value, int64_t most) { return std::clamp<int64_t>(std::llround(value), 1, most); };
  if (ratio < options.least_ratio)
    part.height = rounded(static_cast<double>(image.width) / options.least_ratio, image.height);
  if (ratio > options.most_ratio)
    part.width = rounded(static_cast<double>(image.height) * options.most_ratio, image.width);
  return {(image.height - part.height) / 2, (image.width - part.width) / 2, part.height, part.width};
}

// --- evaluation
// --------------------------------------------------------------------------------------------------------

// What Resize(short_side) and then CenterCrop(size) show of one axis, in its own pixels, and what they read of it.
struct Middle {
  double begin, length;
  int64_t first, past;
};

Middle middle_of(int64_t length, int64_t shortest, int64_t short_side, int64_t size) {
  int64_t resized = short_side * length / shortest;
  double scale = static_cast<double>(length) / static_cast<double>(resized);
  double begin = std::nearbyint(static_cast<double>(resized - size) / 2) * scale;
  double reach = std::max(scale, 1.0) + 1;
  return {begin, static_cast<double>(size) * scale, std::max<int64_t>(0, static_cast<int64_t>(begin - reach)),
          std::min(length, static_cast<int64_t>(begin + static_cast<double>(size) * scale + reach) + 1)};
}

}  // namespace

Transform random_resized_crop(const RandomResizedCropOptions& options) {
  require_positive("random_resized_crop", "size", options.size);
  require_share("random_resized_crop", "flip", options.flip);
  require_range("random_resized_crop", "the area is", options.least_area, options.most_area);
  require_range("random_resized_crop", "the ratio is", options.least_ratio, options.most_ratio);
  RectangleOptions wanted{options.least_area, options.most_area, options.least_ratio, options.most_ratio};
  return [options, wanted](Sample& sample, const SampleKey& key) {
    show(sample, [&](ImageSize image) {
      ImageRegion region = random_rectangle(image, wanted, key, kCrop).value_or(middle_rectangle(image, wanted));
      return view_of(region, {options.size, options.size}, key.uniform(kFlip) < options.flip);
    });
  };
}

Transform center_crop(const CenterCropOptions& options) {
  require_positive("center_crop", "size", options.size);
  if (!(options.share > 0 && options.share <= 1))
    throw_error<ConfigError>("[center_crop] share is {}, expected above 0, at most 1", options.share);
  int64_t short_side = std::llround(static_cast<double>(options.size) / options.share);
  return [options, short_side](Sample& sample, const SampleKey&) {
    show(sample, [&](ImageSize image) {
      int64_t shortest = std::min(image.height, image.width);
      Middle rows = middle_of(image.height, shortest, short_side, options.size);
      Middle columns = middle_of(image.width, shortest, short_side, options.size);
      return View{{rows.first, columns.first, rows.past - rows.first, columns.past - columns.first},
                  {rows.begin, columns.begin, rows.length, columns.length},
                  {options.size, options.size}};
    });
  };
}

Transform resize(const ResizeOptions& options) {
  require_positive("resize", "the height", options.size.height);
  require_positive("resize", "the width", options.size.width);
  require_share("resize", "flip", options.flip);
  return [options](Sample& sample, const SampleKey& key) {
    show(sample, [&](ImageSize image) {
      return view_of({0, 0, image.height, image.width}, options.size, key.uniform(kFlip) < options.flip);
    });
  };
}

Transform random_crop(const RandomCropOptions& options) {
  if (options.padding < 0)
    throw_error<ConfigError>("[random_crop] padding is {}, expected at least 0", options.padding);
  require_share("random_crop", "flip", options.flip);
  return [options](Sample& sample, const SampleKey& key) {
    decode(sample);
    require_image(sample);
    const int64_t height = sample.input.shape[0], width = sample.input.shape[1], channels = sample.input.shape[2];
    auto shift = [&](uint64_t number) {
      return static_cast<int64_t>(key.uniform(number) * static_cast<float>(2 * options.padding + 1)) - options.padding;
    };
    const int64_t down = shift(kShift), across = shift(kShift + 1);
    const bool flip = key.uniform(kFlip) < options.flip;
    Array cut = empty_image({height, width}, channels);
    const auto* from = reinterpret_cast<const uint8_t*>(sample.input.bytes.data());
    uint8_t* to = pixels_of(cut);
    for (int64_t y = 0; y < height; ++y)
      for (int64_t x = 0; x < width; ++x) {
        int64_t source_y = y + down, source_x = (flip ? width - 1 - x : x) + across;
        bool inside = source_y >= 0 && source_y < height && source_x >= 0 && source_x < width;
        for (int64_t c = 0; c < channels; ++c)
          *to++ = inside                                          ? from[(source_y * width + source_x) * channels + c]
                  : c < static_cast<int64_t>(options.fill.size()) ? options.fill[static_cast<size_t>(c)]
                                                                  : uint8_t{0};
      }
    sample.input = std::move(cut);
  };
}

Transform random_erasing(const RandomErasingOptions& options) {
  require_share("random_erasing", "probability", options.probability);
  require_range("random_erasing", "the area is", options.least_area, options.most_area);
  require_range("random_erasing", "the ratio is", options.least_ratio, options.most_ratio);
  RectangleOptions wanted{options.least_area, options.most_area, 1 / options.most_ratio, 1 / options.least_ratio};
  return [options, wanted](Sample& sample, const SampleKey& key) {
    if (key.uniform(kErase) >= options.probability) return;
    decode(sample);
    require_image(sample);
    const int64_t width = sample.input.shape[1], channels = sample.input.shape[2];
    auto region = random_rectangle({sample.input.shape[0], width}, wanted, key, kErase + 1);
    if (!region) return;
    std::vector<uint8_t> color(options.fill);
    color.resize(static_cast<size_t>(channels));
    for (int64_t y = region->top; y < region->top + region->height; ++y)
      for (int64_t x = region->left; x < region->left + region->width; ++x)
        std::memcpy(pixels_of(sample.input) + (y * width + x) * channels, color.data(), color.size());
  };
}

Transform in_turn(std::vector<Transform> transforms) {
  std::erase_if(transforms, [](const Transform& transform) { return !transform; });
  return [transforms = std::move(transforms)](Sample& sample, const SampleKey& key) {
    for (const Transform& transform : transforms) transform(sample, key);
  };
}

void decode(Sample& sample) {
  if (is_encoded(sample)) sample.input = decode_image(sample.input.bytes, sample.source);
}

Sample TransformedDataset::get(int64_t index) const {
  Sample sample = dataset_->get(index);
  transform_(sample, {0, 0, index});
  return sample;
}

// --- mixup
// -------------------------------------------------------------------------------------------------------------

namespace {

// Marsaglia and Tsang's: a number with the density x^(alpha − 1) e^−x. Nineteen of twenty tries are taken.
double gamma_number(double alpha, const SampleKey& key, uint64_t draw) {
  if (alpha < 1) return gamma_number(alpha + 1, key, draw + 1) * std::pow(key.uniform(draw), 1 / alpha);
  double d = alpha - 1.0 / 3, c = 1 / std::sqrt(9 * d);
  for (uint64_t number = draw; number < draw + 48; number += 3) {
    double u = std::max(1e-12F, key.uniform(number)), angle = 2 * M_PI * key.uniform(number + 1);
    double normal = std::sqrt(-2 * std::log(u)) * std::cos(angle), v = std::pow(1 + c * normal, 3);
    double height = std::max(1e-12F, key.uniform(number + 2));
    if (v > 0 && std::log(height) < normal * normal / 2 + d - d * v + d * std::log(v)) return d * v;
  }
  return d;
}

// From Beta(alpha, alpha), in units of 2^-15.
int32_t mixup_share(double alpha, const SampleKey& key) {
  double own = gamma_number(alpha, key, kMixShare), other = gamma_number(alpha, key, kMixShare + 64);
  if (own + other <= 0) return 1 << 15;
  return static_cast<int32_t>(std::lround(own / (own + other) * (1 << 15)));
}

}  // namespace

Transform mixup(std::shared_ptr<const Dataset> dataset, Transform transform, const MixupOptions& options) {
  if (!(options.alpha > 0)) throw_error<ConfigError>("[mixup] alpha is {}, expected above 0", options.alpha);
  require_positive("mixup", "classes", options.classes);
  int64_t samples = options.samples > 0 ? std::min(options.samples, dataset->size()) : dataset->size();
  return [dataset = std::move(dataset), transform = std::move(transform), options, samples](Sample& sample,
                                                                                            const SampleKey& key) {
    auto partner = static_cast<int64_t>(static_cast<double>(key.uniform(kMixPartner)) * static_cast<double>(samples));
    Sample other = dataset->get(partner);
    if (transform) {
      transform(sample, key);
      transform(other, key.of(partner));
    }
    decode(sample);
    decode(other);
    if (sample.input.shape != other.input.shape)
      throw_error<DataError>("[mixup] samples {} and {} are {} and {}; a transform must bring all to one size",
                             key.index(), partner, to_string(sample.input.shape), to_string(other.input.shape));
    const int32_t share = mixup_share(options.alpha, key), rest = (1 << 15) - share;
    uint8_t* pixel = pixels_of(sample.input);
    for (std::byte byte : other.input.bytes) {
      *pixel = static_cast<uint8_t>((*pixel * share + std::to_integer<int32_t>(byte) * rest + (1 << 14)) >> 15);
      ++pixel;
    }
    std::vector<float> shares(static_cast<size_t>(options.classes));
    auto share_of = [&](const Sample& one, int64_t index) -> float& {
      return shares[class_index("mixup", index, label_of(one), options.classes)];
    };
    share_of(sample, key.index()) += static_cast<float>(share) / (1 << 15);
    share_of(other, partner) += static_cast<float>(rest) / (1 << 15);
    sample.label = {DType::f32, {options.classes}, std::vector<std::byte>(shares.size() * sizeof(float))};
    std::memcpy(sample.label.bytes.data(), shares.data(), sample.label.bytes.size());
  };
}

}  // namespace bonfire::data
