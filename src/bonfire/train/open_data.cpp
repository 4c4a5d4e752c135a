#include "bonfire/train/open_data.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "bonfire/base/error.h"
#include "bonfire/data/glyphs.h"
#include "bonfire/data/hold_out.h"
#include "bonfire/data/image_folder.h"
#include "bonfire/data/labels.h"
#include "bonfire/data/pixel_statistics.h"
#include "bonfire/data/sentences.h"
#include "bonfire/data/source.h"
#include "bonfire/data/text.h"
#include "bonfire/train/image_transforms.h"
#include "bonfire/train/number_text.h"

namespace bonfire::train {

namespace {

using data::Split;

// Every training image counts, up to so many: then some that are spread evenly.
constexpr int64_t kMostStored = 100'000, kMostPictures = 2'000;  // pictures are decoded for this

std::string pixels_text(const OpenedData& data, const std::string& how) {
  return fmt::format("mean {:.4f}, deviation {:.4f} of pixels / 255, {}", fmt::join(data.mean, " "),
                     fmt::join(data.deviation, " "), how);
}

void take_given_pixels(const Config& config, OpenedData& data) {
  auto take = [&](const char* key, const std::optional<std::vector<double>>& given, std::vector<float>& values) {
    if (!given) return;
    if (given->size() != values.size())
      throw_error<ConfigError>("[data] {} has {} values, expected one for each of the {} channels of {}", key,
                               given->size(), values.size(), data.title);
    values.assign(given->begin(), given->end());
  };
  take("mean", config.mean, data.mean);
  take("deviation", config.deviation, data.deviation);
}

void note_content(OpenedData& data) {
  data.train_content = content_of(*data.train);
  data.test_content = content_of(*data.test);
}

// As measured, but for what is given.
void set_pixels(const Config& config, const data::Dataset& images, int64_t most, OpenedData& data) {
  if (config.mean && config.deviation) {
    data.mean.resize(static_cast<size_t>(data.image[2]));
    data.deviation.resize(data.mean.size());
    take_given_pixels(config, data);
    data.pixels = pixels_text(data, "as given");
    return;
  }
  const int64_t count = std::min(images.size(), config.limit.value_or(images.size()));
  data::PixelStatistics found = data::measure_pixels(images, count, most);
  data.mean = found.mean;
  data.deviation = found.deviation;
  take_given_pixels(config, data);
  data.pixels =
      pixels_text(data, found.images == count ? fmt::format("measured on all {} training images", grouped(count))
                                              : fmt::format("measured on {} of the {} training images, spread evenly",
                                                            grouped(found.images), grouped(count)));
}

// Before anything is measured on what is trained on.
void hold_back(const Config& config, OpenedData& data) {
  if (config.validation_share == 0) return;
  const int64_t all = data.train->size();
  data::HeldOut parts =
      data::hold_out(data.train, {.share = config.validation_share, .seed = config.seed, .by_class = !data.is_text()});
  if (parts.held->size() == 0)
    throw_error<ConfigError>(
        "[data] validation_share is {}: of the {} training samples of {} none would be held back, "
        "since no class has two; leave it out",
        config.validation_share, all, data.title);
  data.train = parts.kept;
  data.validation = parts.held;
}

// Training and test images go the way that the settings say.
void transform_images(const Config& config, OpenedData& data) {
  data::Sample first = data.train->get(0);
  StoredForm stored{.pictures = first.input.shape.rank() == 1, .shape = first.input.shape};
  data.image = image_shape(config, stored);
  data::Transform evaluation = evaluation_transform(config, stored);
  for (auto* part : {&data.test, &data.validation})
    if (evaluation && *part) *part = std::make_shared<data::TransformedDataset>(*part, evaluation);
  if (stored.pictures)
    set_pixels(config, data::TransformedDataset(data.train, evaluation), kMostPictures, data);
  else
    set_pixels(config, *data.train, kMostStored, data);
  data.train_transform = training_transform(config, stored, data.mean);
  if (config.mixup)
    data.train_transform =
        data::mixup(data.train, data.train_transform,
                    {.alpha = *config.mixup, .classes = data.classes, .samples = config.limit.value_or(0)});
}

void open_pictures(const Config& config, OpenedData& data) {
  data::ImageFolders folders = data::load_image_folders(config.train_file, config.test_file);
  data.train = folders.train;
  data.test = folders.test;
  data.passed_over = folders.passed_over;
  data.title = config.train_file;
  data.class_names = folders.train->class_names();
  data.classes = static_cast<int64_t>(data.class_names.size());
}

void refuse_image_settings(const Config& config) {
  const std::pair<const char*, bool> given[] = {{"train_file", !config.train_file.empty()},
                                                {"test_file", !config.test_file.empty()},
                                                {"image_size", config.image_size.has_value()},
                                                {"num_classes", config.num_classes.has_value()},
                                                {"test_share", config.test_share != Config{}.test_share},
                                                {"crop", config.crop != "auto"},
                                                {"crop_area", config.crop_area != Config{}.crop_area},
                                                {"crop_ratio", config.crop_ratio != Config{}.crop_ratio},
                                                {"center_crop", config.center_crop != Config{}.center_crop},
                                                {"flip", config.flip.has_value()},
                                                {"random_erasing", config.random_erasing > 0},
                                                {"mixup", config.mixup.has_value()},
                                                {"mean", config.mean.has_value()},
                                                {"deviation", config.deviation.has_value()}};
  for (const auto& [name, is_given] : given)
    if (is_given)
      throw_error<ConfigError>("[data] {} is for images, and {} reads text; leave it out", name, config.model);
}

void refuse_text_settings(const Config& config) {
  const std::pair<const char*, bool> given[] = {{"seq_length", config.seq_length != Config{}.seq_length},
                                                {"lower_case", config.lower_case != Config{}.lower_case}};
  for (const auto& [name, is_given] : given)
    if (is_given)
      throw_error<ConfigError>("[data] {} is for text, and {} reads images; leave it out", name, config.model);
}

// vocab.txt, train.txt and test.txt of the folder; or the sentences that are built in.
OpenedData open_text(const Config& config) {
  refuse_image_settings(config);
  OpenedData data;
  bool is_generated = config.data == "generated";
  std::filesystem::path folder = config.data;
  data::WordPiece pieces = open_vocabulary(config);
  auto load = [&](Split split) {
    if (is_generated) {
      int64_t lines = split == Split::train ? 16000 : 2000;
      return data::text_of_lines(data::sentences(split, lines), pieces, config.seq_length, "the generated text");
    }
    return data::load_text(data::text_file(folder, split), pieces, config.seq_length);
  };
  data.title = is_generated ? "generated sentences" : config.data;
  data.train = load(Split::train);
  data.test = load(Split::test);
  note_content(data);
  data.classes = data.vocabulary = pieces.size();
  hold_back(config, data);
  data.train_transform = data::mask_tokens(pieces, {.every_epoch = true});
  data.test_transform = data::mask_tokens(pieces);
  return data;
}

}  // namespace

bool reads_text(const Config& config) { return config.model.starts_with("bert_"); }

data::WordPiece open_vocabulary(const Config& config) {
  data::WordPieceOptions reading{.lower_case = config.lower_case};
  if (config.data == "generated") return {data::sentence_vocabulary(), "the built-in vocabulary", reading};
  return data::WordPiece::load(std::filesystem::path(config.data) / "vocab.txt", reading);
}

OpenedData open_data(const Config& config) {
  bool model_reads_text = reads_text(config);
  if (bool text = data::is_text(config.data); config.data != "generated" && text != model_reads_text)
    throw_error<ConfigError>("[data] {} reads {}, {} {}; choose another model or other data", config.model,
                             model_reads_text ? "text" : "images", config.data,
                             text ? "is text (it has a vocab.txt)" : "is no text (it has no vocab.txt)");
  if (model_reads_text) return open_text(config);
  refuse_text_settings(config);
  OpenedData data;
  bool split_by_share = false;
  if (config.data == "generated" && config.train_file.empty() && config.test_file.empty()) {
    data.title = "generated glyphs";
    data.train = std::make_shared<data::Glyphs>(data::GlyphsOptions{.split = Split::train});
    data.test = std::make_shared<data::Glyphs>(data::GlyphsOptions{.split = Split::test, .size = 4000});
    data.class_names = data.train->class_names();
    data.classes = static_cast<int64_t>(data.class_names.size());
  } else if (!config.train_file.empty() || !config.test_file.empty()) {
    open_pictures(config, data);
  } else {
    data::ImageSource source = data::open_images(config.data, config.test_share);
    if (!config.num_classes)
      for (const std::string& fault : data::label_faults(source))
        throw_error<DataError>("[data] {}: {}", config.data, fault);
    data.title = config.data;
    data.train = source.train;
    data.test = source.test;
    data.class_names = source.class_names;
    data.classes = source.classes;
    data.passed_over = source.passed_over;
    split_by_share = source.split_by_share;
  }
  if (!split_by_share && config.test_share != Config{}.test_share)
    throw_error<ConfigError>("[data] test_share has no effect: {} has a test part of its own; leave it out",
                             data.title);
  if (data.train->size() == 0 || data.test->size() == 0)
    throw_error<DataError>("[data] {} has {} images to train on and {} to test, expected some of both", data.title,
                           data.train->size(), data.test->size());
  if (config.num_classes && *config.num_classes < data.classes)
    throw_error<ConfigError>("[data] num_classes is {}, but {} has the label {}", *config.num_classes, data.title,
                             data.classes - 1);
  data.classes = config.num_classes.value_or(data.classes);
  for (auto i = static_cast<int64_t>(data.class_names.size()); i < data.classes; ++i)
    data.class_names.push_back(std::to_string(i));
  note_content(data);
  hold_back(config, data);
  transform_images(config, data);
  return data;
}

}  // namespace bonfire::train
