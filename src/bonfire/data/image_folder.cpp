#include "bonfire/data/image_folder.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <map>

#include "bonfire/base/error.h"
#include "bonfire/base/file.h"
#include "bonfire/base/hash.h"

namespace bonfire::data {

namespace {

namespace fs = std::filesystem;

bool is_hidden(const fs::path& path) { return path.filename().string().starts_with('.'); }

bool is_picture(const fs::path& path) {
  std::string ending = path.extension().string();
  std::transform(ending.begin(), ending.end(), ending.begin(), [](unsigned char c) { return std::tolower(c); });
  return !is_hidden(path) && (ending == ".jpg" || ending == ".jpeg" || ending == ".png");
}

constexpr auto kFollow = fs::directory_options::follow_directory_symlink;

// Calls visit(path) for each picture below the folder, until it returns false.
template <class Visit>
void each_picture(const fs::path& folder, const Visit& visit) {
  std::error_code error;
  fs::recursive_directory_iterator entry(folder, kFollow, error);
  for (; !error && entry != fs::recursive_directory_iterator(); entry.increment(error)) {
    if (is_hidden(entry->path()) && entry->is_directory()) {
      entry.disable_recursion_pending();
    } else if (is_picture(entry->path()) && entry->is_regular_file() && !visit(entry->path())) {
      return;
    }
  }
  if (error) throw_error<DataError>("[image_folder] cannot read '{}': {}", folder.string(), error.message());
}

std::vector<fs::path> folders_in(const fs::path& folder) {
  std::vector<fs::path> found;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error))
    if (entry.is_directory() && !is_hidden(entry.path())) found.push_back(entry.path());
  std::sort(found.begin(), found.end());
  return found;
}

using Classes = std::map<std::string, std::vector<fs::path>>;  // pictures below the folder, in order

Classes classes_in(const fs::path& folder) {
  Classes classes;
  for (const fs::path& path : folders_in(folder)) {
    std::vector<fs::path>& pictures = classes[path.filename().string()];
    each_picture(path, [&](const fs::path& picture) {
      pictures.push_back(picture.lexically_relative(folder));
      return true;
    });
    if (pictures.empty())
      throw_error<DataError>("[image_folder] there is no .jpg, .jpeg or .png file in the class folder '{}'; remove it",
                             path.string());
    std::sort(pictures.begin(), pictures.end());
  }
  if (classes.empty())
    throw_error<DataError>(
        "[image_folder] there is no folder of pictures in '{}', expected CLASS/NAME.jpg, or train/CLASS/NAME.jpg and "
        "val/CLASS/NAME.jpg",
        folder.string());
  return classes;
}

std::shared_ptr<const ImageFolder> in_rounds(const fs::path& folder, const Classes& classes,
                                             const std::vector<std::string>& names) {
  std::vector<ImageFolder::File> files;
  size_t most = 0;
  for (const auto& [name, pictures] : classes) most = std::max(most, pictures.size());
  for (size_t round = 0; round < most; ++round)
    for (size_t label = 0; label < names.size(); ++label) {
      auto pictures = classes.find(names[label]);
      if (pictures != classes.end() && round < pictures->second.size())
        files.push_back({pictures->second[round], static_cast<int64_t>(label)});
    }
  return std::make_shared<ImageFolder>(folder, std::move(files), names);
}

std::vector<std::string> names_of(const Classes& classes) {
  std::vector<std::string> names;
  for (const auto& [name, pictures] : classes) names.push_back(name);
  return names;
}

// Moves a share of each class out, at least one picture of two and more.
Classes take_share(Classes& classes, double share) {
  Classes taken;
  for (auto& [name, pictures] : classes) {
    std::vector<std::pair<uint64_t, fs::path>> order;
    for (const fs::path& picture : pictures) {
      base::Hash128 hash;
      hash.mix(picture.generic_string());
      order.emplace_back(hash.high, picture);
    }
    std::sort(order.begin(), order.end());
    auto count = static_cast<size_t>(std::llround(share * static_cast<double>(order.size())));
    if (order.size() > 1) count = std::clamp<size_t>(count, 1, order.size() - 1);
    std::vector<fs::path> kept;
    for (size_t i = 0; i < order.size(); ++i) (i < count ? taken[name] : kept).push_back(order[i].second);
    std::sort(kept.begin(), kept.end());
    std::sort(taken[name].begin(), taken[name].end());
    pictures = std::move(kept);
  }
  return taken;
}

}  // namespace

ImageFolder::ImageFolder(fs::path folder, std::vector<File> files, std::vector<std::string> names)
    : folder_(std::move(folder)), files_(std::move(files)), names_(std::move(names)) {}

fs::path ImageFolder::path(int64_t index) const {
  BONFIRE_CHECK(index >= 0 && index < size());
  return folder_ / files_[static_cast<size_t>(index)].path;
}

Sample ImageFolder::get(int64_t index) const {
  fs::path file = path(index);
  return encoded_image_sample(base::read_file(file), files_[static_cast<size_t>(index)].label, file.string());
}

bool is_image_folder(const fs::path& folder) {
  for (const fs::path& parent : {folder / "train", folder})
    for (const fs::path& one : folders_in(parent)) {
      bool found = false;
      each_picture(one, [&](const fs::path&) { return !(found = true); });
      if (found) return true;
    }
  return false;
}

ImageFolders load_image_folders(const fs::path& train, const fs::path& test) {
  Classes classes = classes_in(train), others = classes_in(test);
  for (const auto& [name, pictures] : others)
    if (!classes.contains(name))
      throw_error<DataError>("[image_folder] '{}' is a class of '{}', but not of '{}'; both must have the same names",
                             name, test.string(), train.string());
  std::vector<std::string> names = names_of(classes);
  return {in_rounds(train, classes, names), in_rounds(test, others, names)};
}

ImageFolders load_image_folders(const fs::path& folder, double test_share) {
  std::error_code ignored;
  bool has_train = fs::is_directory(folder / "train", ignored);
  for (const char* name : {"val", "test"})
    if (has_train && fs::is_directory(folder / name, ignored))
      return load_image_folders(folder / "train", folder / name);
  fs::path both = has_train ? folder / "train" : folder;
  Classes train = classes_in(both);
  std::vector<std::string> names = names_of(train);
  Classes test = take_share(train, test_share);
  return {in_rounds(both, train, names), in_rounds(both, test, names)};
}

}  // namespace bonfire::data
