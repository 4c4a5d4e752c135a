#include "bonfire/data/check.h"

#include <gtest/gtest.h>

#include "bonfire/base/error.h"
#include "bonfire/data/jpeg_tiles.h"
#include "bonfire/data/jpeg_writer.h"
#include "bonfire/data/pack.h"
#include "bonfire/data/records.h"
#include "bonfire/data/transforms.h"
#include "tests/support/expect_error.h"
#include "tests/support/image_files.h"
#include "tests/support/scratch_folder.h"

namespace bonfire::data::check_test {
namespace {

namespace fs = std::filesystem;
using bonfire::testing::bytes_of;
using bonfire::testing::ScratchFolder;

// A picture of one colour.
std::string jpeg(int64_t height, int64_t width, int grey) {
  Array image{DType::u8, {height, width, 3}, std::vector<std::byte>(static_cast<size_t>(3 * height * width))};
  std::fill(image.bytes.begin(), image.bytes.end(), static_cast<std::byte>(grey));
  std::vector<std::byte> file = encode_jpeg(image, 95);
  return {reinterpret_cast<const char*>(file.data()), file.size()};
}

// Two classes with three pictures to train on and one to test each.
void put_pictures(const ScratchFolder& folder, int64_t height = 20, int64_t width = 30) {
  for (const char* name : {"train/cat", "train/dog", "val/cat", "val/dog"}) fs::create_directories(folder / name);
  for (const char* name : {"cat", "dog"}) {
    for (int i = 0; i < 3; ++i)
      folder.put(fmt::format("train/{}/{}.jpg", name, i), jpeg(height, width, 40 * i + (name[0] == 'd' ? 9 : 0)));
    folder.put(fmt::format("val/{}/0.jpg", name), jpeg(height, width, 200));
  }
}

void put_mnist(const ScratchFolder& folder) {
  for (const char* part : {"train", "t10k"}) {
    folder.put(part + std::string("-images-idx3-ubyte"),
               std::string("\0\0\x08\x03\0\0\0\2\0\0\0\2\0\0\0\3", 16) + "twelve bytes");
    folder.put(part + std::string("-labels-idx1-ubyte"), std::string("\0\0\x08\x01\0\0\0\2\1\0", 10));
  }
}

void expect_faults(const CheckReport& report, const std::vector<std::string>& texts) {
  ASSERT_EQ(report.faults.size(), texts.size()) << (report.faults.empty() ? "" : report.faults[0]);
  for (size_t i = 0; i < texts.size(); ++i)
    EXPECT_NE(report.faults[i].find(texts[i]), std::string::npos) << report.faults[i];
}

TEST(CheckData, NamesEveryBadIdxFile) {
  ScratchFolder folder;
  put_mnist(folder);
  CheckReport whole = check_data(folder.path());
  expect_faults(whole, {});
  EXPECT_EQ(whole.kind, SourceKind::mnist);
  EXPECT_EQ(whole.train_samples, 2);
  folder.put("train-images-idx3-ubyte", "what");
  folder.put("train-labels-idx1-ubyte", std::string("\0\0\x08\x01\0\0\0\2\1", 9));
  folder.put("t10k-labels-idx1-ubyte", std::string("\0\0\x08\x01\0\0\0\1\1", 9));
  expect_faults(check_data(folder.path()),
                {"train-images-idx3-ubyte: magic number", "train-labels-idx1-ubyte: the header", "has 2 images, "});
  fs::remove(folder / "t10k-labels-idx1-ubyte");
  EXPECT_NE(check_data(folder.path()).faults.back().find("neither t10k-labels"), std::string::npos);
}

TEST(CheckData, NamesLabelsBeyondTheClassesAndClassesWithoutASample) {
  ScratchFolder folder;
  put_mnist(folder);
  folder.put("train-labels-idx1-ubyte", std::string("\0\0\x08\x01\0\0\0\2\xc8\0", 10));
  expect_faults(check_data(folder.path()), {"training sample 0 has the label 200, expected less than 10"});
  expect_faults(check_data(folder.path(), 201), {});
  folder.put("train-labels-idx1-ubyte", std::string("\0\0\x08\x01\0\0\0\2\3\0", 10));
  folder.put("t10k-labels-idx1-ubyte", std::string("\0\0\x08\x01\0\0\0\2\x0b\x0a", 10));
  expect_faults(check_data(folder.path()),
                {"test sample 0 has the label 11 (and 1 more are as large), expected less than 10"});
  folder.put("t10k-labels-idx1-ubyte", std::string("\0\0\x08\x01\0\0\0\2\1\2", 10));
  expect_faults(check_data(folder.path()), {"2 of 4 classes have no sample to train on: 1, 2"});
}

TEST(CheckData, NamesEveryBadCifarFile) {
  ScratchFolder folder;
  std::string record(3073, '\0');
  for (int i = 1; i <= 5; ++i) folder.put(fmt::format("data_batch_{}.bin", i), record);
  folder.put("test_batch.bin", record);
  EXPECT_EQ(check_data(folder.path()).train_samples, 5);
  folder.put("data_batch_2.bin", record + "x");
  folder.put("data_batch_5.bin", "\x0b" + record.substr(1));
  fs::remove(folder / "test_batch.bin");
  expect_faults(check_data(folder.path()),
                {"data_batch_2.bin: 3074 bytes", "data_batch_5.bin: record 0 has the label 11", "test_batch.bin"});
}

TEST(CheckData, NamesEveryBadPictureAndGoesOn) {
  ScratchFolder folder;
  put_pictures(folder);
  expect_faults(check_data(folder.path()), {});
  folder.put("train/cat/1.jpg", "no picture");
  folder.put("train/dog/2.jpg", jpeg(20, 30, 1).substr(0, 300));
  CheckReport report = check_data(folder.path());
  EXPECT_EQ(report.train_samples, 6);
  expect_faults(report, {"cat/1.jpg", "dog/2.jpg"});
}

TEST(CheckData, NamesEveryBadRecord) {
  ScratchFolder folder;
  put_pictures(folder);
  pack(folder.path(), folder / "packed");
  fs::path packed = folder / "packed";
  expect_faults(check_data(packed), {});
  std::string shard = folder.get("packed/train-00000.records");
  shard[16 + 20] ^= 1;
  shard[shard.size() - 32 - 6 * 32 - 10] ^= 1;  // in the last record
  folder.put("packed/train-00000.records", shard);
  expect_faults(check_data(packed), {"record 0 (sample 0): checksum", "record 5 (sample 5): checksum"});
  fs::remove(packed / "train-00000.records");
  expect_faults(check_data(packed), {"train-00000.records is missing"});
}

TEST(CheckData, NamesEveryBadLine) {
  ScratchFolder folder;
  folder.put("vocab.txt", "[UNK]\n[CLS]\n[SEP]\n");
  folder.put("train.txt", "one\n\xff\ntwo\n\xc3(");
  expect_faults(check_data(folder.path()),
                {"[MASK] is not among", "train.txt: line 2 is not UTF-8", "train.txt: line 4", "test.txt"});
}

TEST(CheckData, SaysWhatItLookedFor) {
  ScratchFolder folder;
  EXPECT_ERROR(check_data(folder.path()), DataError, "there is no data set in the folder '");
  EXPECT_ERROR(check_data(folder / "absent"), DataError, "there is no folder '");
  EXPECT_ERROR(check_data(folder / "absent"), DataError, "records.json (packed)");
}

TEST(Pack, KeepsThePixelsOfPictures) {
  ScratchFolder folder;
  put_pictures(folder);
  PackReport report = pack(folder.path(), folder / "packed", {.shards = 2});
  EXPECT_EQ(report.train.samples, 6);
  EXPECT_EQ(report.train.shards, 2);
  EXPECT_EQ(report.test.samples, 2);
  ImageSource before = open_images(folder.path()), after = open_images(folder / "packed");
  EXPECT_EQ(after.class_names, (std::vector<std::string>{"cat", "dog"}));
  EXPECT_EQ(after.classes, 2);
  for (int64_t i = 0; i < 6; ++i) {
    Sample a = before.train->get(i), b = after.train->get(i);
    EXPECT_EQ(b.input.bytes, tile_jpeg(a.input.bytes));
    EXPECT_EQ(label_of(a), label_of(b));
    random_resized_crop({.size = 8, .flip = 0.5})(a, {3, 1, i});
    random_resized_crop({.size = 8, .flip = 0.5})(b, {3, 1, i});
    EXPECT_EQ(a.input.bytes, b.input.bytes);
  }
}

TEST(Pack, KeepsWhatIsNoJpegOfAUsualKindByteByByte) {
  ScratchFolder folder;
  put_pictures(folder);
  const std::string damaged = jpeg(20, 30, 1).substr(0, 300),
                    png = bonfire::testing::png_file(bonfire::testing::test_picture(9, 14), 9, 14);
  folder.put("train/cat/0.jpg", damaged);
  folder.put("train/cat/1.jpg", png);
  pack(folder.path(), folder / "packed");
  ImageSource packed = open_images(folder / "packed");
  EXPECT_TRUE(std::ranges::equal(packed.train->get(0).input.bytes, bytes_of(damaged)));
  EXPECT_TRUE(std::ranges::equal(packed.train->get(2).input.bytes, bytes_of(png)));
  expect_faults(check_data(folder / "packed"), {"train-00000.records: record 0: "});
}

TEST(Pack, KeepsTheBytesOfJpegFilesWhenToldTo) {
  ScratchFolder folder;
  put_pictures(folder, 60, 90);
  std::string small = jpeg(16, 40, 77);
  folder.put("train/cat/0.jpg", small);
  pack(folder.path(), folder / "packed", {.keep_bytes = true});
  ImageSource before = open_images(folder.path()), packed = open_images(folder / "packed");
  for (int64_t i = 0; i < before.train->size(); ++i)
    EXPECT_EQ(packed.train->get(i).input.bytes, before.train->get(i).input.bytes);
  // What is encoded anew has no bytes to keep.
  pack(folder.path(), folder / "smaller", {.resize = 20, .keep_bytes = true});
  ImageSource smaller = open_images(folder / "smaller");
  EXPECT_TRUE(std::ranges::equal(smaller.train->get(0).input.bytes, bytes_of(small)));
  for (int64_t i = 1; i < smaller.train->size(); ++i)
    EXPECT_EQ(smaller.train->get(i).input.bytes, tile_jpeg(smaller.train->get(i).input.bytes));
}

TEST(Pack, TilesMakeShardsNoLarger) {
  ScratchFolder folder;
  for (const char* name : {"train/cat", "val/cat"}) {
    fs::create_directories(folder / name);
    folder.put(name + std::string("/0.jpg"),
               bonfire::testing::jpeg_file(bonfire::testing::test_picture(375, 500), 375, 500));
  }
  PackReport tiles = pack(folder.path(), folder / "tiles"),
             files = pack(folder.path(), folder / "files", {.keep_bytes = true});
  EXPECT_LT(tiles.train.bytes, files.train.bytes);
}

TEST(Pack, BringsLargePicturesDownAndKeepsSmallOnes) {
  ScratchFolder folder;
  put_pictures(folder, 60, 90);
  std::string small = jpeg(16, 40, 77);
  folder.put("train/cat/0.jpg", small);
  pack(folder.path(), folder / "packed", {.resize = 20});
  ImageSource packed = open_images(folder / "packed");
  for (int64_t i = 0; i < packed.train->size(); ++i) {
    Sample sample = packed.train->get(i);
    decode(sample);
    EXPECT_EQ(sample.input.shape, i == 0 ? (Shape{16, 40, 3}) : (Shape{20, 30, 3}));
  }
  EXPECT_EQ(packed.train->get(0).input.bytes, tile_jpeg(bytes_of(small)));
}

TEST(Pack, TakesPixelsAndPackedRecordsToo) {
  ScratchFolder folder;
  put_mnist(folder);
  pack(folder.path(), folder / "packed");
  pack(folder / "packed", folder / "again", {.resize = 1});
  EXPECT_EQ(open_images(folder / "packed").train->get(0).input.shape, (Shape{2, 3, 1}));
  EXPECT_EQ(open_images(folder / "again").train->get(0).input.shape, (Shape{1, 2, 1}));
  EXPECT_EQ(open_images(folder / "again").classes, 2);
}

TEST(Pack, ABadSourceLeavesNothing) {
  ScratchFolder folder, target;
  put_pictures(folder);
  folder.put("train/cat/1.jpg", "no picture");
  EXPECT_ERROR(pack(folder.path(), target / "packed", {.resize = 10}), DataError, "cat/1.jpg");
  EXPECT_ERROR(pack(folder.path(), target / "packed", {.shards = -1}), ConfigError, "--shards is -1");
  EXPECT_ERROR(pack(folder / "absent", target / "packed"), DataError, "there is no folder");
  folder.put("vocab.txt", "");
  EXPECT_ERROR(pack(folder.path(), target / "packed"), DataError, "holds text, expected images");
  EXPECT_EQ(target.count(), 0U);
}

}  // namespace
}  // namespace bonfire::data::check_test
