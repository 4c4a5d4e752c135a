#include "bonfire/train/predictor.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "bonfire/base/error.h"
#include "bonfire/base/file.h"
#include "bonfire/data/idx.h"
#include "bonfire/data/transforms.h"
#include "bonfire/ops/image.h"
#include "bonfire/ops/softmax.h"
#include "bonfire/train/image_transforms.h"

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

Predictor::Predictor(const fs::path& run, std::span<const std::string> overrides)
    : config_(load_config(run / "config.yaml", overrides)) {
  fs::path weights = run / "best.safetensors";
  nn::SafetensorsFile file = nn::SafetensorsFile::open(weights);
  std::string what = "image";
  try {
    const nn::SafetensorsMetadata& said = file.metadata();
    auto read = [&](const char* key) {
      what = key;
      return nlohmann::json::parse(said.contains(key) ? said.at(key) : "");
    };
    auto extents = read("image").get<std::vector<int64_t>>();
    if (extents.size() != 3)
      throw_error<DataError>("[predict] {} was trained on text, which train/masked_words.h is for", run.string());
    image_ = {extents[0], extents[1], extents[2]};
    class_names_ = read("class_names").get<std::vector<std::string>>();
    mean_ = read("mean").get<std::vector<float>>();
    deviation_ = read("deviation").get<std::vector<float>>();
  } catch (const nlohmann::json::exception&) {
    throw_error<DataError>("[predict] {} does not say its '{}': was it written by bonfire train?", weights.string(),
                           what);
  }
  place_ = places_of(config_)[0];
  model_ =
      models::make(config_.model, {.classes = static_cast<int64_t>(class_names_.size()), .in_channels = image_[2]});
  nn::load_state_dict(model_->state_dict(), file.entries(), weights.string());
  model_->to(place_);
  model_->eval();
}

// As evaluation sees images: the middle of pictures, where the run was trained on parts of them, else all of it.
data::Array Predictor::fit(data::Array image, const std::string& name) const {
  bool is_file = image.shape.rank() == 1;
  data::Sample sample{.input = with_channels(std::move(image), image_[2]), .label = {}, .source = name};
  bool cropped = config_.crop == "resized" ||
                 (config_.crop == "auto" && is_file && image_ == image_shape(config_, {.pictures = true, .shape = {}}));
  data::Transform transform = cropped ? data::center_crop({.size = image_[0], .share = config_.center_crop})
                                      : data::resize({.size = {image_[0], image_[1]}});
  if (sample.input.shape != image_) transform(sample, data::SampleKey(0, 0, 0));
  sample.input = with_channels(std::move(sample.input), image_[2]);
  if (sample.input.shape != image_)
    throw_error<DataError>("[predict] {} is {}, the model was trained on {}", name, to_string(sample.input.shape),
                           to_string(image_));
  return std::move(sample.input);
}

std::vector<data::Array> Predictor::open(const fs::path& file) const {
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

std::vector<std::vector<Guess>> Predictor::guesses(std::span<const data::Array> images, size_t most) const {
  NoGrad no_grad;
  constexpr size_t kBatch = 64;
  size_t classes = class_names_.size();
  std::vector<std::vector<Guess>> all;
  Tensor mean = Tensor::from<float>(mean_, {image_[2]}, place_);
  Tensor deviation = Tensor::from<float>(deviation_, {image_[2]}, place_);
  for (size_t begin = 0; begin < images.size(); begin += kBatch) {
    size_t count = std::min(kBatch, images.size() - begin);
    std::vector<std::byte> pixels;  // [N, H, W, C]
    for (size_t i = 0; i < count; ++i)
      pixels.insert(pixels.end(), images[begin + i].bytes.begin(), images[begin + i].bytes.end());
    Tensor batch =
        Tensor::from_bytes(pixels, {{static_cast<int64_t>(count), image_[0], image_[1], image_[2]}, DType::u8, place_});
    Tensor logits = (*model_)(normalize_image(batch, mean, deviation, {.channels_last = true}));
    std::vector<float> values = logits.to_vector<float>();
    std::vector<float> shares = softmax(logits.to(DType::f32), -1).to_vector<float>();
    for (size_t i = 0; i < count; ++i) {
      std::vector<Guess>& row = all.emplace_back();
      for (size_t c = 0; c < classes; ++c)
        row.push_back({static_cast<int64_t>(c), shares[i * classes + c], values[i * classes + c]});
      std::stable_sort(row.begin(), row.end(),
                       [](const Guess& a, const Guess& b) { return a.probability > b.probability; });
      row.resize(std::min(most, classes));
    }
  }
  return all;
}

}  // namespace bonfire::train
