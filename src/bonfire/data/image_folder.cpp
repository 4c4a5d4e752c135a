#include "bonfire/data/image_folder.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <map>

#include "bonfire/base/error.h"
#include "bonfire/base/file.h"
#include "bonfire/base/hash.h"
#include "bonfire/data/unicode.h"

namespace bonfire::data {

namespace {

namespace fs = std::filesystem;

bool is_hidden(const fs::path& path) { return path.filename().string().starts_with('.'); }

std::string ending_of(const fs::path& path) {
  std::string ending = path.extension().string();
  std::transform(ending.begin(), ending.end(), ending.begin(), [](unsigned char c) { return std::tolower(c); });
  return ending;
}

bool is_picture(const fs::path& path) {
  std::string ending = ending_of(path);
  return !is_hidden(path) && (ending == ".jpg" || ending == ".jpeg" || ending == ".png");
}

// A picture to other programs, which is not read here.
bool is_other_picture(const fs::path& path) {
  constexpr std::string_view kEndings[] = {".avif", ".bmp", ".dng", ".gif", ".heic", ".heif", ".ico", ".jfif", ".jp2",
                                           ".jxl",  ".pbm", ".pgm", ".ppm", ".svg",  ".tga",  ".tif", ".tiff", ".webp"};
  return !is_hidden(path) && std::ranges::find(kEndings, ending_of(path)) != std::end(kEndings);
}

// Pictures that are not read, counted by their endings.
class PassedOver {
 public:
  void add(const fs::path& path) {
    ++counts_[ending_of(path)];
    constexpr size_t kNamed = 3;
    if (++all_ <= kNamed) named_ += (named_.empty() ? "" : ", ") + path.string();
    if (all_ == kNamed + 1) named_ += ", ...";
  }
  std::string text() const {  // empty: none
    if (all_ == 0) return {};
    std::string kinds;
    for (const auto& [ending, count] : counts_)
      kinds += fmt::format("{}{} {}", kinds.empty() ? "" : ", ", count, ending);
    return fmt::format("{} picture{} that {} neither JPEG nor PNG: {} ({})", all_, all_ == 1 ? "" : "s",
                       all_ == 1 ? "is" : "are", kinds, named_);
  }

 private:
  size_t all_ = 0;
  std::map<std::string, size_t> counts_;  // [ending]
  std::string named_;                     // the first of them
};

// Calls visit(path) for each file below the folder, until it returns false; then so does this. `above` are the folders
// that hold this one: a link back to one of them would give the same pictures again and again.
template <class Visit>
bool each_file(const fs::path& folder, const Visit& visit, std::vector<fs::path> above = {}) {
  std::error_code error;
  fs::path real = fs::canonical(folder, error);
  if (!error && std::ranges::find(above, real) != above.end())
    throw_error<DataError>("[image_folder] '{}' is a link back to '{}', which holds it: a loop; remove the link",
                           folder.string(), real.string());
  above.push_back(real);
  std::vector<fs::path> entries;
  if (!error)
    for (fs::directory_iterator entry(folder, error); !error && entry != fs::directory_iterator();
         entry.increment(error))
      if (!is_hidden(entry->path())) entries.push_back(entry->path());
  if (error) throw_error<DataError>("[image_folder] cannot read '{}': {}", folder.string(), error.message());
  for (const fs::path& path : entries) {
    base::PathKind kind = base::kind_of(path);
    if (kind == base::PathKind::folder && !each_file(path, visit, above)) return false;
    if (kind == base::PathKind::file && !visit(path)) return false;
  }
  return true;
}

std::vector<fs::path> folders_in(const fs::path& folder) {
  std::vector<fs::path> found;
  if (!base::is_folder(folder)) return found;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error); !error && entry != fs::directory_iterator(); entry.increment(error))
    if (!is_hidden(entry->path()) && base::is_folder(entry->path())) found.push_back(entry->path());
  if (error) throw_error<DataError>("[image_folder] cannot read '{}': {}", folder.string(), error.message());
  std::sort(found.begin(), found.end());
  return found;
}

using Classes = std::map<std::string, std::vector<fs::path>>;  // pictures below the folder, in order

Classes classes_in(const fs::path& folder, PassedOver& passed_over) {
  Classes classes;
  for (const fs::path& path : folders_in(folder)) {
    std::vector<fs::path>& pictures = classes[path.filename().string()];
    PassedOver others;
    auto sort_out = [&](const fs::path& file) {
      if (is_picture(file)) pictures.push_back(file.lexically_relative(folder));
      for (PassedOver* one : {&others, &passed_over})
        if (is_other_picture(file)) one->add(file.lexically_relative(folder));
      return true;
    };
    each_file(path, sort_out, {fs::canonical(folder)});
    if (pictures.empty())
      throw_error<DataError>("[image_folder] there is no .jpg, .jpeg or .png file in the class folder '{}'; {}",
                             path.string(), others.text().empty() ? "remove it" : "there are " + others.text());
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
    : folder_(std::move(folder)), files_(std::move(files)), names_(std::move(names)) {
  for (std::string& name : names_) name = unicode::readable(name);
}

fs::path ImageFolder::path(int64_t index) const {
  require_index(index);
  return folder_ / files_[static_cast<size_t>(index)].path;
}

int64_t ImageFolder::label(int64_t index) const {
  require_index(index);
  return files_[static_cast<size_t>(index)].label;
}

Sample ImageFolder::get(int64_t index) const {
  fs::path file = path(index);
  return encoded_image_sample(base::read_file(file), files_[static_cast<size_t>(index)].label, file.string());
}

bool is_image_folder(const fs::path& folder) {
  for (const fs::path& parent : {folder / "train", folder})
    for (const fs::path& one : folders_in(parent))
      if (!each_file(one, [](const fs::path& file) { return !is_picture(file); })) return true;
  return false;
}

ImageFolders load_image_folders(const fs::path& train, const fs::path& test) {
  PassedOver passed_over;
  Classes classes = classes_in(train, passed_over), others = classes_in(test, passed_over);
  for (const auto& [name, pictures] : others)
    if (!classes.contains(name))
      throw_error<DataError>("[image_folder] '{}' is a class of '{}', but not of '{}'; both must have the same names",
                             name, test.string(), train.string());
  std::vector<std::string> names = names_of(classes);
  return {.train = in_rounds(train, classes, names),
          .test = in_rounds(test, others, names),
          .passed_over = passed_over.text()};
}

ImageFolders load_image_folders(const fs::path& folder, double test_share) {
  bool has_train = base::is_folder(folder / "train");
  for (const char* name : {"val", "test"})
    if (has_train && base::is_folder(folder / name)) return load_image_folders(folder / "train", folder / name);
  fs::path both = has_train ? folder / "train" : folder;
  PassedOver passed_over;
  Classes train = classes_in(both, passed_over);
  std::vector<std::string> names = names_of(train);
  Classes test = take_share(train, test_share);
  return {.train = in_rounds(both, train, names),
          .test = in_rounds(both, test, names),
          .split_by_share = true,
          .passed_over = passed_over.text()};
}

}  // namespace bonfire::data
