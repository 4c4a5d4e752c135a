#pragma once
// What a folder holds, told by its files, and the images in it whatever they are packed as.
//
//   data::ImageSource source = data::open_images("data/photos");

#include <filesystem>
#include <optional>

#include "bonfire/data/dataset.h"

namespace bonfire::data {

enum class SourceKind : uint8_t { mnist, cifar, pictures, records, text };

const char* name_of(SourceKind kind);  // "MNIST's IDX files", …

std::optional<SourceKind> kind_of(const std::filesystem::path& folder);  // empty: nothing that is known

// The same, or a DataError that says what was looked for.
SourceKind require_kind(const std::filesystem::path& folder);

struct ImageSource {
  std::shared_ptr<const Dataset> train, test;
  int64_t classes = 0;
  std::optional<int64_t> known_classes = {};  // at most so many, as data of this kind has; empty: any number
  std::vector<std::string> class_names = {};  // may be empty
  bool split_by_share = false;                // the test part is test_share of the pictures
  std::string passed_over = {};               // pictures that cannot be read, in words; empty: none
};

// test_share: of pictures in folders without a test part. DataError for what is damaged, or no images.
ImageSource open_images(const std::filesystem::path& folder, double test_share = 0.1);

}  // namespace bonfire::data
