#include "bonfire/data/source.h"

#include <algorithm>

#include "bonfire/base/error.h"
#include "bonfire/base/file.h"
#include "bonfire/data/cifar.h"
#include "bonfire/data/image_folder.h"
#include "bonfire/data/records.h"
#include "bonfire/data/text.h"

namespace bonfire::data {

namespace {

namespace fs = std::filesystem;

bool has_idx_files(const fs::path& folder) {
  for (const char* name :
       {"train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"})
    if (base::exists(folder / name) || base::exists(folder / (std::string(name) + ".gz"))) return true;
  return false;
}

int64_t count_classes(const Dataset& dataset) {
  int64_t most = -1;
  for (int64_t i = 0; i < dataset.size(); ++i) most = std::max(most, dataset.label(i));
  return most + 1;
}

ImageSource open_stored(std::shared_ptr<const Dataset> train, std::shared_ptr<const Dataset> test, int64_t known) {
  int64_t classes = std::max(count_classes(*train), count_classes(*test));
  std::vector<std::string> names = train->class_names();
  return {.train = std::move(train),
          .test = std::move(test),
          .classes = classes,
          .known_classes = known,
          .class_names = std::move(names)};
}

ImageSource open_records(const fs::path& folder) {
  auto train = load_records(folder, Split::train), test = load_records(folder, Split::test);
  std::vector<std::string> names = train->class_names();
  int64_t classes = std::max({train->classes(), test->classes(), static_cast<int64_t>(names.size())});
  return {.train = train, .test = test, .classes = classes, .class_names = std::move(names)};
}

}  // namespace

const char* name_of(SourceKind kind) {
  switch (kind) {
    case SourceKind::mnist: return "MNIST's IDX files";
    case SourceKind::cifar: return "CIFAR's binary files";
    case SourceKind::pictures: return "folders of pictures";
    case SourceKind::records: return "record shards";
    case SourceKind::text: return "text";
  }
  BONFIRE_CHECK(false);
}

std::optional<SourceKind> kind_of(const fs::path& folder) {
  if (is_records(folder)) return SourceKind::records;
  if (is_text(folder)) return SourceKind::text;
  if (has_idx_files(folder)) return SourceKind::mnist;
  if (is_cifar(folder)) return SourceKind::cifar;
  if (is_image_folder(folder)) return SourceKind::pictures;
  return {};
}

SourceKind require_kind(const fs::path& folder) {
  if (auto kind = kind_of(folder)) return *kind;
  throw_error<DataError>(
      "[data] {} '{}'; looked for train-images-idx3-ubyte or its .gz (MNIST), data_batch_1.bin or train.bin (CIFAR), "
      "records.json (packed), vocab.txt (text) and CLASS/NAME.jpg or .png (pictures)",
      base::is_folder(folder) ? "there is no data set in the folder" : "there is no folder", folder.string());
}

ImageSource open_images(const fs::path& folder, double test_share) {
  switch (require_kind(folder)) {
    case SourceKind::mnist:
      return open_stored(load_mnist(folder, Split::train), load_mnist(folder, Split::test), kMnistClasses);
    case SourceKind::cifar:
      return open_stored(load_cifar(folder, Split::train), load_cifar(folder, Split::test), cifar_classes(folder));
    case SourceKind::records: return open_records(folder);
    case SourceKind::pictures: {
      ImageFolders folders = load_image_folders(folder, test_share);
      std::vector<std::string> names = folders.train->class_names();
      return {.train = folders.train,
              .test = folders.test,
              .classes = static_cast<int64_t>(names.size()),
              .class_names = names,
              .split_by_share = folders.split_by_share,
              .passed_over = folders.passed_over};
    }
    case SourceKind::text: throw_error<DataError>("[data] {} holds text, expected images", folder.string());
  }
  BONFIRE_CHECK(false);
}

}  // namespace bonfire::data
