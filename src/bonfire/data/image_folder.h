#pragma once
// Pictures in folders: CLASS/NAME.jpg, .jpeg or .png, also in folders further down. Classes are the names of the
// folders, in order; names that begin with a dot, and other files, are passed over, pictures of other formats (.webp,
// .gif, .bmp, .tiff …) not without a word. Links are followed; one that leads back to a folder it lies in is an error.
// Samples are the files as they are, not decoded; the transforms decode them. The order goes round the classes: the
// first picture of each, the second of each, … so the first so many samples are of all classes alike.
//
//   data::ImageFolders folders = data::load_image_folders("data/flowers");
//   data::DataLoader train(folders.train, {.shuffle = true, .transform = data::random_resized_crop({.flip = 0.5})});

#include <filesystem>

#include "bonfire/data/dataset.h"

namespace bonfire::data {

class ImageFolder final : public Dataset {
 public:
  struct File {
    std::filesystem::path path;  // below the folder
    int64_t label = 0;
  };
  ImageFolder(std::filesystem::path folder, std::vector<File> files, std::vector<std::string> names);

  int64_t size() const override { return static_cast<int64_t>(files_.size()); }
  Sample get(int64_t index) const override;  // u8 [bytes]
  int64_t label(int64_t index) const override;
  std::vector<std::string> class_names() const override { return names_; }  // bytes that are not UTF-8 as \xE9
  std::filesystem::path path(int64_t index) const;

 private:
  std::filesystem::path folder_;
  std::vector<File> files_;
  std::vector<std::string> names_;
};

struct ImageFolders {
  std::shared_ptr<const ImageFolder> train, test;
  bool split_by_share = false;   // there was no folder to test on
  std::string passed_over = {};  // "3 pictures that are neither JPEG nor PNG: 2 .webp, 1 .bmp (cats/a.webp, …)"
};

// Whether there are pictures in folders of this folder, or of its train/.
bool is_image_folder(const std::filesystem::path& folder);

// From train/ and val/ (or test/) inside the folder. Where there is no such pair the folder itself (or its train/) is
// split: `test_share` of each class's pictures, by their names alone, are for testing. DataError naming the folder when
// there is no picture in it, when a class has none, and when val/ has a class that train/ does not have.
ImageFolders load_image_folders(const std::filesystem::path& folder, double test_share = 0.1);
ImageFolders load_image_folders(const std::filesystem::path& train, const std::filesystem::path& test);

}  // namespace bonfire::data
