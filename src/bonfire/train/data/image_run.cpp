#include "bonfire/train/data/image_run.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "bonfire/base/error.h"
#include "bonfire/base/file.h"
#include "bonfire/data/idx.h"
#include "bonfire/data/transforms.h"
#include "bonfire/train/checkpoint/checkpoint.h"
#include "bonfire/train/data/image_transforms.h"

namespace bonfire::train {

namespace {

namespace fs = std::filesystem;

// Pillow's weights of red, green and blue (ITU-R 601), in 1/65536.
uint8_t grey_of(const std::byte* pixel) {
  auto part = [&](int channel) { return std::to_integer<uint32_t>(pixel[channel]); };
  return static_cast<uint8_t>((part(0) * 19595 + part(1) * 38470 + part(2) * 7471 + 0x8000) >> 16);
}

data::Array with_channels(data::Array image, int64_t channels) {  // u8 [H, W, C]
  if (image.shape.rank() != 3) return image;                      // a file that is not decoded yet
  int64_t found = image.shape[2];
  if (found == channels || !(found == 1 || (found == 3 && channels == 1))) return image;
  data::Array result{DType::u8, {image.shape[0], image.shape[1], channels}, {}};
  auto pixels = static_cast<size_t>(image.shape[0] * image.shape[1]);
  for (size_t i = 0; i < pixels; ++i)
    for (int64_t c = 0; c < channels; ++c)
      result.bytes.push_back(found == 1 ? image.bytes[i] : std::byte{grey_of(image.bytes.data() + 3 * i)});
  return result;
}

bool begins(std::span<const std::byte> file, std::initializer_list<uint8_t> mark) {
  return file.size() >= mark.size() && std::equal(mark.begin(), mark.end(), file.begin(), [](uint8_t a, std::byte b) {
           return a == std::to_integer<uint8_t>(b);
         });
}

bool is_picture(std::span<const std::byte> file) {
  return begins(file, {0xFF, 0xD8}) || begins(file, {0x89, 'P', 'N', 'G'});
}

bool is_idx(std::span<const std::byte> file) { return begins(file, {0, 0}) || begins(file, {0x1F, 0x8B}); }  // or gzip

}  // namespace

ImageRun::ImageRun(const fs::path& run, std::span<const std::string> overrides, const ImageRunOptions& options)
    : config_(load_config(run / "config.yaml", overrides)) {
  const fs::path weights = weights_in(run);
  const nn::TensorFiles file = open_tensors(weights);
  if (std::string_view trained_for = models::task_of(config_.model); trained_for != options.task)
    throw_error<DataError>("[predict] {} is a run of {}, which is trained for another task ({}, expected {})",
                           run.string(), config_.model, trained_for, options.task);
  std::string what = "image";
  try {
    const nn::SafetensorsMetadata& said = file.metadata();
    auto read = [&](const char* key) {
      what = key;
      return nlohmann::json::parse(said.contains(key) ? said.at(key) : "");
    };
    auto extents = read("image").get<std::vector<int64_t>>();
    input_.image = {extents.at(0), extents.at(1), extents.at(2)};
    input_.class_names = read("class_names").get<std::vector<std::string>>();
    input_.mean = read("mean").get<std::vector<float>>();
    input_.deviation = read("deviation").get<std::vector<float>>();
  } catch (const std::exception&) {
    throw_error<DataError>("[predict] {} does not say its '{}': was it written by bonfire train?", weights.string(),
                           what);
  }
  place_ = places_of(config_)[0];
  model_ = models::make(config_.model, {.classes = static_cast<int64_t>(input_.class_names.size()),
                                        .in_channels = input_.image[2] + options.more_channels});
  nn::load_state_dict(model_->state_dict(), file);
  model_->to(place_);
  place(*model_, config_.placement);
  model_->eval();
}

// As evaluation sees images: the middle of pictures, where the run was trained on parts of them, else all of it.
data::Array ImageRun::fit(data::Array image, const std::string& name) const {
  bool is_file = image.shape.rank() == 1;
  data::Sample sample{.input = with_channels(std::move(image), input_.image[2]), .label = {}, .source = name};
  bool cropped = config_.crop == "resized" || (config_.crop == "auto" && is_file &&
                                               input_.image == image_shape(config_, {.pictures = true, .shape = {}}));
  data::Transform transform = cropped ? data::center_crop({.size = input_.image[0], .share = config_.center_crop})
                                      : data::resize({.size = {input_.image[0], input_.image[1]}});
  if (sample.input.shape != input_.image) transform(sample, data::SampleKey(0, 0, 0));
  sample.input = with_channels(std::move(sample.input), input_.image[2]);
  if (sample.input.shape != input_.image)
    throw_error<DataError>("[predict] {} is {}, the model was trained on {}", name, to_string(sample.input.shape),
                           to_string(input_.image));
  return std::move(sample.input);
}

std::vector<data::Array> ImageRun::open(const fs::path& file) const {
  std::vector<std::byte> bytes = base::read_file(file);
  if (is_picture(bytes)) {
    auto size = static_cast<int64_t>(bytes.size());
    return {fit({DType::u8, {size}, std::move(bytes)}, file.string())};
  }
  if (!is_idx(bytes)) throw_error<DataError>("[predict] {} is neither a JPEG nor a PNG nor an IDX file", file.string());
  data::IdxArray idx = data::read_idx(file);
  if (idx.shape.rank() != 3)
    throw_error<DataError>("[predict] {} has rank {}: labels; expected images of rank 3", file.string(),
                           idx.shape.rank());
  std::vector<data::Array> images;
  auto size = static_cast<size_t>(idx.shape[1] * idx.shape[2]);
  for (int64_t i = 0; i < idx.shape[0]; ++i) {
    auto pixels = std::as_bytes(std::span(idx.data)).subspan(static_cast<size_t>(i) * size, size);
    data::Array image{DType::u8, {idx.shape[1], idx.shape[2], 1}, {pixels.begin(), pixels.end()}};
    images.push_back(fit(std::move(image), file.string()));
  }
  return images;
}

std::string ImageRun::name_of(const std::string& file, size_t images, size_t index) {
  return images == 1 ? file : fmt::format("{}[{}]", file, index);
}

void ImageRun::for_each_batch(
    std::span<const data::Array> images,
    const std::function<std::vector<Tensor>(const models::Model& model, const Tensor& pixels)>& compute,
    const std::function<void(std::span<const Tensor> results, size_t count)>& visit) const {
  NoGrad no_grad;
  constexpr size_t kBatch = 64;
  const Shape& image = input_.image;
  for (size_t begin = 0; begin < images.size(); begin += kBatch) {
    size_t count = std::min(kBatch, images.size() - begin);
    std::vector<std::byte> pixels;  // [N, H, W, C]
    for (size_t i = 0; i < count; ++i)
      pixels.insert(pixels.end(), images[begin + i].bytes.begin(), images[begin + i].bytes.end());
    Tensor batch =
        Tensor::from_bytes(pixels, {{static_cast<int64_t>(count), image[0], image[1], image[2]}, DType::u8, place_});
    visit(compute(*model_, batch), count);
  }
}

std::vector<Guess> likeliest(std::span<const float> logits, std::span<const float> shares, size_t most) {
  std::vector<Guess> row;
  for (size_t c = 0; c < shares.size(); ++c) row.push_back({static_cast<int64_t>(c), shares[c], logits[c]});
  std::stable_sort(row.begin(), row.end(),
                   [](const Guess& a, const Guess& b) { return a.probability > b.probability; });
  row.resize(std::min(most, row.size()));
  return row;
}

}  // namespace bonfire::train
