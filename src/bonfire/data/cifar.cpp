#include "bonfire/data/cifar.h"

#include <fstream>

#include "bonfire/base/error.h"
#include "bonfire/base/file.h"

namespace bonfire::data {

namespace {

namespace fs = std::filesystem;

constexpr size_t kPixels = 32 * 32, kChannels = 3;

// What tells the two apart.
struct Form {
  int classes;
  const char* names;  // a file with a class a line
  std::vector<std::string> train, test;
};

const Form& form_of(const fs::path& folder) {
  static const Form kTen{
      10,
      "batches.meta.txt",
      {"data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin", "data_batch_4.bin", "data_batch_5.bin"},
      {"test_batch.bin"}};
  static const Form kHundred{100, "fine_label_names.txt", {"train.bin"}, {"test.bin"}};
  return base::exists(folder / kHundred.train[0]) ? kHundred : kTen;
}

std::vector<std::string> read_names(const fs::path& path) {
  std::vector<std::string> names;
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) {
    while (!line.empty() && (line.back() == '\r' || line.back() == ' ')) line.pop_back();
    if (!line.empty()) names.push_back(line);
  }
  return names;
}

}  // namespace

void parse_cifar(std::span<const std::byte> file, const std::string& name, int classes, std::vector<uint8_t>& images,
                 std::vector<uint8_t>& labels) {
  size_t label_bytes = classes == 100 ? 2 : 1;  // the last is the one to use
  size_t record = label_bytes + kPixels * kChannels;
  if (file.empty() || file.size() % record != 0)
    throw_error<DataError>("[cifar] {}: {} bytes, expected a whole number of records of {}; it is truncated or damaged",
                           name, file.size(), record);
  for (size_t at = 0; at < file.size(); at += record) {
    auto label = static_cast<uint8_t>(file[at + label_bytes - 1]);
    if (label >= classes)
      throw_error<DataError>("[cifar] {}: record {} has the label {}, expected less than {}", name, at / record, label,
                             classes);
    labels.push_back(label);
    const std::byte* planes = file.data() + at + label_bytes;  // [3, 32, 32]
    for (size_t pixel = 0; pixel < kPixels; ++pixel)
      for (size_t channel = 0; channel < kChannels; ++channel)
        images.push_back(static_cast<uint8_t>(planes[channel * kPixels + pixel]));
  }
}

bool is_cifar(const fs::path& folder) { return base::exists(folder / form_of(folder).train[0]); }

std::vector<fs::path> cifar_files(const fs::path& folder, Split split) {
  std::vector<fs::path> files;
  const Form& form = form_of(folder);
  for (const std::string& name : split == Split::train ? form.train : form.test) files.push_back(folder / name);
  return files;
}

int cifar_classes(const fs::path& folder) { return form_of(folder).classes; }

std::shared_ptr<StoredImages> load_cifar(const fs::path& folder, Split split) {
  const Form& form = form_of(folder);
  std::vector<uint8_t> images, labels;
  for (const fs::path& path : cifar_files(folder, split)) {
    base::MappedFile file(path);
    parse_cifar(file.bytes(), path.string(), form.classes, images, labels);
  }
  std::vector<std::string> names = read_names(folder / form.names);
  if (names.size() != static_cast<size_t>(form.classes)) names.clear();
  return std::make_shared<StoredImages>(Shape{32, 32, kChannels}, std::move(images), std::move(labels),
                                        std::move(names));
}

}  // namespace bonfire::data
