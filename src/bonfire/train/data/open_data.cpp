#include "bonfire/train/data/open_data.h"

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
#include "bonfire/train/data/image_transforms.h"
#include "bonfire/train/report/number_text.h"
#include "bonfire/train/tasks/known_tasks.h"
#include "bonfire/train/tasks/next_token.h"

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

}  // namespace

void note_content(OpenedData& data) {
  data.train_content = content_of(*data.train);
  data.test_content = content_of(*data.test);
}

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

void hold_back(const Config& config, OpenedData& data) {
  if (config.validation_share == 0) return;
  const int64_t all = data.train->size();
  data::HeldOut parts = data::hold_out(
      data.train, {.share = config.validation_share, .seed = config.seed, .by_class = !data.class_names.empty()});
  if (parts.held->size() == 0)
    throw_error<ConfigError>(
        "[data] validation_share is {}: of the {} training samples of {} none would be held back, "
        "since no class has two; leave it out",
        config.validation_share, all, data.title);
  data.train = parts.kept;
  data.validation = parts.held;
}

namespace {

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

}  // namespace

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
      throw_error<ConfigError>("[data] {} is for images, and {} reads {}; leave it out", name, config.model,
                               known_task_of(config.model).reads);
}

void refuse_text_settings(const Config& config) {
  const std::pair<const char*, bool> given[] = {{"seq_length", config.seq_length != Config{}.seq_length},
                                                {"lower_case", config.lower_case != Config{}.lower_case}};
  for (const auto& [name, is_given] : given)
    if (is_given)
      throw_error<ConfigError>("[data] {} is for text, and {} reads {}; leave it out", name, config.model,
                               known_task_of(config.model).reads);
}

namespace {

void refuse_sizes(const Config& config) {
  const std::pair<const char*, bool> given[] = {{"layers", config.layers.has_value()},
                                                {"heads", config.heads.has_value()},
                                                {"width", config.width.has_value()},
                                                {"context", config.context.has_value()},
                                                {"dropout", config.dropout.has_value()}};
  for (const auto& [name, is_given] : given)
    if (is_given) throw_error<ConfigError>("[data] {} is for gpt2, not for {}; leave it out", name, config.model);
}

}  // namespace

void require_generated(const Config& config, const std::string& built_in) {
  if (!config.train_file.empty() || config.data != "generated")
    throw_error<ConfigError>(
        "[data] {} learns from {}, which are built in, and there is no other data for it here: leave data out (it is "
        "'{}'); a program of your own can give it any (docs/tasks.md)",
        config.model, built_in, config.train_file.empty() ? config.data : config.train_file);
}

data::WordPiece open_vocabulary(const Config& config) {
  data::WordPieceOptions reading{.lower_case = config.lower_case};
  if (config.data == "generated") return {data::sentence_vocabulary(), "the built-in vocabulary", reading};
  return data::WordPiece::load(std::filesystem::path(config.data) / "vocab.txt", reading);
}

void open_images(const Config& config, OpenedData& data) {
  refuse_text_settings(config);
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
  data.model = {.classes = data.classes, .in_channels = data.image[2]};
  data.sample_bytes = 5 * static_cast<double>(data.image.count());
}

namespace {

// "bert_mini, bert_base": those that can learn from it.
std::string models_that_read(std::string_view what) {
  std::vector<std::string> fitting;
  for (const std::string& name : models::names())
    if (known_task_of(name).reads == what) fitting.push_back(name);
  return fmt::format("{}", fmt::join(fitting, ", "));
}

}  // namespace

OpenedData open_data(const Config& config) {
  const KnownTask& task = known_task_of(config.model);
  const std::string_view reads = task.reads;
  if (config.data != "generated" && config.train_file.empty()) {
    const bool is_text = data::is_text(config.data);
    // Running text may have a vocabulary of any kind, or none.
    if (&task != &kNextToken && is_text != (reads == "text") && (is_text || reads == "text"))
      throw_error<ConfigError>("[data] {} reads {}, {} {}; choose other data, or a model that it is for ({})",
                               config.model, reads, config.data,
                               is_text ? "is text (it has a vocab.txt)" : "is no text (it has no vocab.txt)",
                               models_that_read(is_text ? "text" : "images"));
  }
  if (&task != &kNextToken) refuse_sizes(config);
  return task.open(config);
}

}  // namespace bonfire::train
