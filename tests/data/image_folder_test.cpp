#include "bonfire/data/image_folder.h"

#include <gtest/gtest.h>

#include <set>

#include "bonfire/base/error.h"
#include "bonfire/data/loader.h"
#include "bonfire/data/transforms.h"
#include "tests/support/expect_error.h"
#include "tests/support/image_files.h"
#include "tests/support/scratch_folder.h"

namespace bonfire::data::image_folder_test {
namespace {

using namespace bonfire::testing;
namespace fs = std::filesystem;

void put(const ScratchFolder& folder, const std::string& name, const std::string& content = "picture") {
  fs::create_directories((folder / name).parent_path());
  folder.put(name, content);
}

std::vector<std::string> paths_of(const ImageFolder& set) {
  std::vector<std::string> paths;
  for (int64_t i = 0; i < set.size(); ++i) paths.push_back(set.path(i).filename().string());
  return paths;
}

TEST(ImageFolder, ClassesAreTheSortedFoldersAndSamplesGoRoundThem) {
  ScratchFolder folder;
  for (const char* name :
       {"train/dog/b.png", "train/dog/a.JPG", "train/cat/1.jpeg", "train/cat/deeper/0.jpg", "train/cat/notes.txt",
        "train/dog/c.jpg", "train/.hidden/x.jpg", "train/dog/.x.jpg", "val/dog/v.jpg"})
    put(folder, name, name);
  EXPECT_TRUE(is_image_folder(folder.path()));
  ImageFolders sets = load_image_folders(folder.path());
  EXPECT_EQ(sets.train->class_names(), (std::vector<std::string>{"cat", "dog"}));
  EXPECT_EQ(paths_of(*sets.train), (std::vector<std::string>{"1.jpeg", "a.JPG", "0.jpg", "b.png", "c.jpg"}));
  EXPECT_EQ(sets.test->size(), 1);
  EXPECT_EQ(label_of(sets.test->get(0)), 1);  // as in training, though val/ has no cat
  Sample sample = sets.train->get(0);
  EXPECT_EQ(label_of(sample), 0);
  EXPECT_EQ(sample.source, (folder / "train/cat/1.jpeg").string());
  EXPECT_EQ(sample.input.bytes.size(), std::string("train/cat/1.jpeg").size());
}

TEST(ImageFolder, OneFolderIsSplitByNamesAlone) {
  ScratchFolder folder;
  for (int i = 0; i < 40; ++i) put(folder, "cat/" + std::to_string(i) + ".jpg");
  put(folder, "dog/1.jpg");
  put(folder, "dog/2.jpg");
  ImageFolders sets = load_image_folders(folder.path(), 0.1);
  EXPECT_EQ(sets.test->size(), 4 + 1);
  EXPECT_EQ(sets.train->size(), 36 + 1);
  std::set<std::string> test, train;
  for (int64_t i = 0; i < sets.test->size(); ++i) test.insert(sets.test->path(i).string());
  for (int64_t i = 0; i < sets.train->size(); ++i) train.insert(sets.train->path(i).string());
  EXPECT_EQ(train.size() + test.size(), 42U);
  for (const std::string& path : test) EXPECT_FALSE(train.contains(path));
  EXPECT_EQ(paths_of(*load_image_folders(folder.path(), 0.1).test), paths_of(*sets.test));
}

TEST(ImageFolder, WhatIsMissingIsNamed) {
  ScratchFolder folder;
  EXPECT_FALSE(is_image_folder(folder.path()));
  EXPECT_FALSE(is_image_folder(folder / "absent"));
  EXPECT_ERROR(load_image_folders(folder.path()), DataError,
               "there is no folder of pictures in '" + folder.path().string());
  put(folder, "train/cat/a.jpg");
  put(folder, "val/zebra/a.jpg");
  EXPECT_ERROR(load_image_folders(folder.path()), DataError, "'zebra' is a class of");
  fs::create_directory(folder / "train/empty");
  EXPECT_ERROR(load_image_folders(folder.path()), DataError, "train/empty'; remove it");
}

// The set lies in a folder that holds nothing else, so that the link beyond the set finds only the set again.
TEST(ImageFolder, ALinkBackIsAnErrorAndOtherLinksAreFollowed) {
  ScratchFolder folder, other;
  for (const char* name : {"set/cat/a.jpg", "set/cat/b.jpg", "set/dog/a.jpg", "set/dog/b.jpg"}) put(folder, name);
  put(other, "more/c.jpg");
  const fs::path set = folder / "set", link = set / "dog/loop";
  fs::create_directory_symlink(other.path(), set / "cat/others");
  ImageFolders sets = load_image_folders(set);
  EXPECT_EQ(sets.train->size() + sets.test->size(), 5);
  for (const auto& [target, back] : {std::pair(".", link), {"..", link}, {"../../", link / "set"}}) {
    fs::create_directory_symlink(target, link);
    EXPECT_ERROR(load_image_folders(set), DataError, "'" + back.string() + "' is a link back to");
    fs::remove(link);
  }
  fs::create_directory_symlink("loop", link);  // to itself
  EXPECT_ERROR(load_image_folders(set), DataError, "Too many levels of symbolic links");
}

TEST(ImageFolder, ASampleThatIsNotThereIsAnError) {
  const ImageFolder set("photos", {{"cat/a.jpg", 0}, {"cat/b.jpg", 0}}, {"cat"});
  EXPECT_ERROR(set.get(-1), DataError, "there is no sample -1: the data set has 2, counted from 0");
  EXPECT_ERROR(set.get(2), DataError, "there is no sample 2");
  EXPECT_ERROR(set.label(2), DataError, "there is no sample 2");
  EXPECT_ERROR(set.path(2), DataError, "there is no sample 2");
}

TEST(ImageFolder, PicturesOfOtherFormatsAreCountedAndNamed) {
  ScratchFolder folder;
  for (const char* name : {"cat/a.jpg", "cat/b.jpg", "dog/a.png", "dog/b.png"}) put(folder, name);
  EXPECT_EQ(load_image_folders(folder.path()).passed_over, "");
  put(folder, "cat/c.webp");
  put(folder, "cat/readme.txt");
  put(folder, "cat/.hidden.webp");
  EXPECT_EQ(load_image_folders(folder.path()).passed_over,
            "1 picture that is neither JPEG nor PNG: 1 .webp (cat/c.webp)");
  for (const char* name : {"dog/1.WEBP", "dog/2.bmp", "dog/3.gif"}) put(folder, name);
  const std::string text = load_image_folders(folder.path()).passed_over;
  expect_mentions(text, {"4 pictures that are neither JPEG nor PNG: 1 .bmp, 1 .gif, 2 .webp (cat/c.webp, ", ", ...)"});
  put(folder, "eel/1.tiff");
  EXPECT_ERROR(load_image_folders(folder.path()), DataError,
               "eel'; there are 1 picture that is neither JPEG nor PNG: 1 .tiff");
}

TEST(ImageFolder, OfWhatMayNotBeReadItIsNotSaidThatItIsNotThere) {
  ScratchFolder folder;
  put(folder, "cat/a.jpg");
  put(folder, "cat/closed/b.jpg");
  fs::permissions(folder / "cat/closed", fs::perms::none);
  fs::permissions(folder.path(), fs::perms::all);
  {
    WithoutPrivileges nobody;
    EXPECT_ERROR(load_image_folders(folder.path()), DataError, "Permission denied");
    EXPECT_ERROR(load_image_folders(folder / "cat/closed"), DataError, "Permission denied");
  }
  fs::permissions(folder / "cat/closed", fs::perms::all);
}

TEST(ImageFolderThreads, ACorruptFileAmongGoodOnesReachesTheCallerByItsName) {
  ScratchFolder folder;
  std::string good = jpeg_file(test_picture(50, 60), 50, 60);
  for (int i = 0; i < 12; ++i) put(folder, "cat/" + std::to_string(10 + i) + ".jpg", good);
  put(folder, "cat/15.jpg", good.substr(0, good.size() / 3));
  std::vector<ImageFolder::File> files;
  for (int i = 0; i < 12; ++i) files.push_back({"cat/" + std::to_string(10 + i) + ".jpg", 0});
  DataLoader loader(std::make_shared<ImageFolder>(folder.path(), files, std::vector<std::string>{"cat"}),
                    {.batch_size = 4, .num_workers = 2, .transform = center_crop({.size = 32})});
  EXPECT_EQ(loader.next().input.shape(), (Shape{4, 32, 32, 3}));
  EXPECT_ERROR(loader.next(), DataError, (folder / "cat/15.jpg").string());
  EXPECT_EQ(loader.next().input.shape(), (Shape{4, 32, 32, 3}));
  fs::remove(folder / "cat/20.jpg");
  loader.seek({1, 8});
  EXPECT_ERROR(loader.next(), DataError, "cat/20.jpg");
}

}  // namespace
}  // namespace bonfire::data::image_folder_test
