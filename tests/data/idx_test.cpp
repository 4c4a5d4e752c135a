#include "bonfire/data/idx.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <zlib.h>

#include "bonfire/base/error.h"
#include "bonfire/base/random.h"
#include "tests/support/expect_error.h"
#include "tests/support/scratch_folder.h"

namespace bonfire::data::idx_test {
namespace {

namespace fs = std::filesystem;
using bonfire::testing::data_error;
using bonfire::testing::ScratchFolder;

constexpr uint32_t kVector = 0x0801, kImages = 0x0803;

std::string idx(uint32_t magic, std::initializer_list<uint32_t> extents, std::string_view data) {
  std::string file;
  auto put = [&file](uint32_t word) {
    for (int shift = 24; shift >= 0; shift -= 8) file += static_cast<char>(word >> shift);
  };
  put(magic);
  for (uint32_t extent : extents) put(extent);
  return file.append(data);
}

std::string gzip(std::string text) {
  z_stream stream{};
  EXPECT_EQ(deflateInit2(&stream, 9, Z_DEFLATED, MAX_WBITS + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
  std::string packed(deflateBound(&stream, text.size()), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(text.data());
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(packed.data());
  stream.avail_out = static_cast<uInt>(packed.size());
  EXPECT_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
  packed.resize(stream.total_out);
  deflateEnd(&stream);
  return packed;
}

std::string counting(size_t count) {
  std::string bytes(count, '\0');
  for (size_t i = 0; i < count; ++i) bytes[i] = static_cast<char>(i * 7);
  return bytes;
}

std::string text_of(const Array& array) {
  return {reinterpret_cast<const char*>(array.bytes.data()), array.bytes.size()};
}

// The message has the file's name and `part`.
void expect_refused(const ScratchFolder& folder, const std::string& content, const std::string& part) {
  fs::path path = folder.put("file", content);
  std::string message = data_error([&] { read_idx(path); });
  EXPECT_NE(message.find(path.string()), std::string::npos) << message;
  EXPECT_NE(message.find(part), std::string::npos) << "'" << part << "' is not in: " << message;
}

void expect_holds(const IdxArray& array, const Shape& shape, const std::string& data) {
  EXPECT_EQ(array.shape, shape);
  EXPECT_EQ(std::string(array.data.begin(), array.data.end()), data);
}

TEST(ReadIdx, ReadsLabelsAndImagesPlainAndGzipped) {
  ScratchFolder folder;
  std::string labels = idx(kVector, {5}, counting(5)), images = idx(kImages, {3, 4, 2}, counting(24));
  expect_holds(read_idx(folder.put("a", labels)), {5}, counting(5));
  expect_holds(read_idx(folder.put("b", images)), {3, 4, 2}, counting(24));
  expect_holds(read_idx(folder.put("c", gzip(labels))), {5}, counting(5));
  expect_holds(read_idx(folder.put("d", gzip(images))), {3, 4, 2}, counting(24));
}

TEST(ReadIdx, ReadsMoreThanOnePieceOfMemory) {
  ScratchFolder folder;
  std::string data = counting(1'000'003);
  expect_holds(read_idx(folder.put("a", idx(kVector, {1'000'003}, data))), {1'000'003}, data);
  expect_holds(read_idx(folder.put("b", gzip(idx(kVector, {1'000'003}, data)))), {1'000'003}, data);
}

TEST(ReadIdx, ReadsNoItems) {
  ScratchFolder folder;
  expect_holds(read_idx(folder.put("a", idx(kVector, {0}, ""))), {0}, "");
  expect_holds(read_idx(folder.put("b", gzip(idx(kImages, {0, 28, 28}, "")))), {0, 28, 28}, "");
}

TEST(ReadIdx, ReadsAGzipFileOfSeveralMembers) {
  ScratchFolder folder;
  std::string labels = idx(kVector, {5}, counting(5));
  expect_holds(read_idx(folder.put("a", gzip(labels.substr(0, 6)) + gzip(labels.substr(6)))), {5}, counting(5));
}

TEST(ReadIdx, RefusesOtherMagicNumbers) {
  ScratchFolder folder;
  expect_refused(folder, idx(0x0D03, {1, 1, 1}, counting(4)), "0x00000d03");  // floats
  expect_refused(folder, idx(0x0802, {2, 2}, counting(4)), "0x00000802");     // rank 2
  expect_refused(folder, idx(0x0108'0000, {2}, counting(2)), "magic number");
  expect_refused(folder, gzip("this is not an IDX file"), "magic number");
}

TEST(ReadIdx, RefusesEveryPrefixOfAFile) {
  ScratchFolder folder;
  std::string plain = idx(kImages, {2, 3, 3}, counting(18)), packed = gzip(plain);
  for (size_t length = 0; length < plain.size(); ++length) expect_refused(folder, plain.substr(0, length), "truncated");
  for (size_t length = 0; length < packed.size(); ++length)
    expect_refused(folder, packed.substr(0, length), length < 2 ? "truncated" : "gzip stream ends too early");
}

TEST(ReadIdx, RefusesMoreDataThanTheHeaderSays) {
  ScratchFolder folder;
  expect_refused(folder, idx(kVector, {5}, counting(6)), "more data");
  expect_refused(folder, gzip(idx(kVector, {5}, counting(6))), "more data");
  expect_refused(folder, gzip(idx(kVector, {5}, counting(5))) + "more", "not gzip");
}

TEST(ReadIdx, RefusesDamagedGzip) {
  ScratchFolder folder;
  std::string packed = gzip(idx(kVector, {1000}, counting(1000)));
  std::string checksum = packed, method = packed, middle = packed;
  checksum[packed.size() - 8] ^= 1;
  method[2] = 7;
  middle[packed.size() / 2] ^= 0x55;
  expect_refused(folder, checksum, "incorrect data check");
  expect_refused(folder, method, "unknown compression method");
  expect_refused(folder, middle, "");
}

TEST(ReadIdx, AllocatesNoMoreThanIsThere) {
  ScratchFolder folder;
  auto peak = [] {  // KiB
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_maxrss;
  };
  long before = peak();
  for (bool packed : {false, true})
    for (const std::string& lie : {idx(kVector, {0xFFFF'FFFF}, counting(100)), idx(kImages, {60'000, 2800, 2800}, "")})
      expect_refused(folder, packed ? gzip(lie) : lie, "it is truncated or damaged");
  EXPECT_LT(peak() - before, 100 * 1024);
}

TEST(ReadIdx, RefusesShapesThatOverflow) {
  ScratchFolder folder;
  constexpr uint32_t kMost = 0xFFFF'FFFF;
  expect_refused(folder, idx(kImages, {kMost, kMost, kMost}, "x"), "larger than any memory");
  expect_refused(folder, idx(kImages, {0, kMost, kMost}, ""), "larger than any memory");
}

TEST(ReadIdx, NamesAFileThatIsMissingOrAFolder) {
  ScratchFolder folder;
  EXPECT_NE(data_error([&] { read_idx(folder / "absent"); }).find("absent"), std::string::npos);
  EXPECT_NE(data_error([&] { read_idx(folder.path()); }).find("directory"), std::string::npos);
}

TEST(ReadIdx, ThrowsNothingButDataErrorsForDamagedFiles) {
  ScratchFolder folder;
  std::string plain = idx(kImages, {7, 5, 3}, counting(105)), packed = gzip(plain);
  for (uint32_t i = 0; i < 2000; ++i) {
    std::string damaged = i % 2 == 0 ? plain : packed;
    RandomBlock random = philox(1, 0, i);
    for (uint32_t change = 0; change <= random.word[0] % 3; ++change)
      damaged[random.word[1 + change] % std::min<size_t>(damaged.size(), 64)] ^=
          static_cast<char>(random.word[3 - change] >> 24);
    try {
      IdxArray array = read_idx(folder.put("file", damaged));
      EXPECT_EQ(static_cast<size_t>(array.shape.count()), array.data.size());
    } catch (const DataError&) {
    }
  }
}

TEST(LoadMnist, ReadsEitherSplitPlainOrGzipped) {
  ScratchFolder folder;
  folder.put("train-images-idx3-ubyte.gz", gzip(idx(kImages, {2, 3, 4}, counting(24))));
  folder.put("train-labels-idx1-ubyte", idx(kVector, {2}, "\x07\x02"));
  folder.put("t10k-images-idx3-ubyte", idx(kImages, {1, 2, 2}, "abcd"));
  folder.put("t10k-labels-idx1-ubyte.gz", gzip(idx(kVector, {1}, "\x09")));
  auto train = load_mnist(folder.path(), Split::train), test = load_mnist(folder.path(), Split::test);
  EXPECT_EQ(train->size(), 2);
  EXPECT_EQ(train->image_shape(), (Shape{3, 4, 1}));
  EXPECT_EQ(text_of(train->get(0).input) + text_of(train->get(1).input), counting(24));
  EXPECT_EQ(label_of(train->get(0)), 7);
  EXPECT_EQ(label_of(train->get(1)), 2);
  EXPECT_EQ(test->image_shape(), (Shape{2, 2, 1}));
  EXPECT_EQ(label_of(test->get(0)), 9);
}

TEST(LoadMnist, SaysWhichFilesWereLookedFor) {
  ScratchFolder folder;
  folder.put("t10k-images-idx3-ubyte", idx(kImages, {1, 1, 1}, "x"));
  std::string message = data_error([&] { load_mnist(folder.path(), Split::test); });
  EXPECT_NE(message.find("neither t10k-labels-idx1-ubyte nor t10k-labels-idx1-ubyte.gz"), std::string::npos) << message;
  EXPECT_NE(message.find(folder.path().string()), std::string::npos) << message;
  message = data_error([&] { load_mnist(folder / "absent", Split::train); });
  EXPECT_NE(message.find("train-images-idx3-ubyte.gz"), std::string::npos) << message;
  EXPECT_NE(message.find("is not a folder"), std::string::npos) << message;
}

TEST(LoadMnist, RefusesMoreLabelsThanImages) {
  ScratchFolder folder;
  folder.put("train-images-idx3-ubyte", idx(kImages, {2, 1, 1}, "xy"));
  folder.put("train-labels-idx1-ubyte", idx(kVector, {3}, "xyz"));
  std::string message = data_error([&] { load_mnist(folder.path(), Split::train); });
  for (const char* part : {"train-images-idx3-ubyte has 2 images", "train-labels-idx1-ubyte has 3 labels"})
    EXPECT_NE(message.find(part), std::string::npos) << message;
}

TEST(LoadMnist, RefusesImagesInTheFileOfLabels) {
  ScratchFolder folder;
  folder.put("train-images-idx3-ubyte", idx(kImages, {2, 1, 1}, "xy"));
  folder.put("train-labels-idx1-ubyte", idx(kImages, {2, 1, 1}, "xy"));
  std::string message = data_error([&] { load_mnist(folder.path(), Split::train); });
  EXPECT_NE(message.find("train-labels-idx1-ubyte: shape [2, 1, 1], expected 1 dimension"), std::string::npos)
      << message;
}

}  // namespace
}  // namespace bonfire::data::idx_test
