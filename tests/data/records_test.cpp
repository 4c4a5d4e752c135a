#include "bonfire/data/records.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstring>

#include "bonfire/base/error.h"
#include "bonfire/data/glyphs.h"
#include "bonfire/data/loader.h"
#include "bonfire/data/record_writer.h"
#include "tests/support/expect_error.h"
#include "tests/support/scratch_folder.h"

namespace bonfire::data::records_test {
namespace {

namespace fs = std::filesystem;
using bonfire::testing::ScratchFolder;

std::vector<std::byte> bytes_of(std::string_view text) {
  auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

Sample file_sample(std::string_view content, int64_t label) {
  return image_sample(bytes_of(content), {static_cast<int64_t>(content.size())}, label);
}

// Ten files of different lengths and two images to train on, three per shard; one image to test.
fs::path pack(const ScratchFolder& folder, const char* name = "packed") {
  RecordWriter writer(folder / name, {.class_names = {"no", "yes"}, .shard_samples = 3});
  for (int i = 0; i < 10; ++i) writer.add(Split::train, file_sample(std::string(static_cast<size_t>(i), 'x'), i % 2));
  writer.add(Split::train, image_sample(bytes_of("123456"), {1, 2, 3}, 1));
  writer.add(Split::train, image_sample(bytes_of("1234"), {2, 2, 1}, 0));
  writer.add(Split::test, image_sample(bytes_of("9"), {1, 1, 1}, 1));
  writer.finish();
  return folder / name;
}

TEST(Records, ReadBackWhatWasWrittenInAnyOrder) {
  ScratchFolder folder;
  auto train = load_records(pack(folder), Split::train), test = load_records(folder / "packed", Split::test);
  ASSERT_EQ(train->size(), 12);
  EXPECT_EQ(test->size(), 1);
  EXPECT_EQ(train->shards().size(), 4U);
  EXPECT_EQ(train->class_names(), (std::vector<std::string>{"no", "yes"}));
  EXPECT_EQ(train->classes(), 2);
  for (int64_t i : {9, 0, 4, 3, 2}) {
    Sample sample = train->get(i);
    EXPECT_EQ(sample.input.shape, Shape{i});
    EXPECT_EQ(sample.input.bytes, bytes_of(std::string(static_cast<size_t>(i), 'x')));
    EXPECT_EQ(label_of(sample), i % 2);
    EXPECT_NE(sample.source.find("train-0000" + std::to_string(i / 3) + ".records: record " + std::to_string(i % 3)),
              std::string::npos)
        << sample.source;
  }
  EXPECT_EQ(train->get(10).input.shape, (Shape{1, 2, 3}));
  EXPECT_EQ(train->get(11).input.bytes, bytes_of("1234"));
}

TEST(Records, ASampleThatIsNotThereIsAnError) {
  ScratchFolder folder;
  const auto train = load_records(pack(folder), Split::train);
  EXPECT_ERROR(train->get(-1), DataError, "there is no sample -1: the data set has 12, counted from 0");
  EXPECT_ERROR(train->get(12), DataError, "there is no sample 12");
  EXPECT_ERROR(train->label(12), DataError, "there is no sample 12");
}

TEST(Records, ShardsEndAtTheirSize) {
  ScratchFolder folder;
  RecordWriter writer(folder / "packed", {.shard_bytes = 1000});
  for (int i = 0; i < 10; ++i) writer.add(Split::train, file_sample(std::string(400, 'x'), 0));
  writer.finish();
  EXPECT_EQ(writer.packed(Split::train).shards, 4);  // 3, 3, 3 and 1
  EXPECT_EQ(writer.packed(Split::train).samples, 10);
  EXPECT_EQ(load_records(folder / "packed", Split::train)->size(), 10);
  EXPECT_EQ(load_records(folder / "packed", Split::test)->size(), 0);
}

TEST(Records, ComeThroughTheLoaderWithTheBitsOfTheirSource) {
  ScratchFolder folder;
  auto glyphs = std::make_shared<Glyphs>(GlyphsOptions{.size = 60});
  RecordWriter writer(folder / "packed", {.class_names = glyphs->class_names(), .shard_samples = 16});
  for (int64_t i = 0; i < glyphs->size(); ++i) writer.add(Split::train, glyphs->get(i));
  writer.finish();
  LoaderOptions options{.batch_size = 8, .shuffle = true, .num_workers = 2};
  DataLoader plain(glyphs, options), packed(load_records(folder / "packed", Split::train), options);
  for (int64_t i = 0; i < 2 * plain.batches_per_epoch(); ++i) {
    Batch a = plain.next(), b = packed.next();
    EXPECT_EQ(a.input.to_vector<uint8_t>(), b.input.to_vector<uint8_t>());
    EXPECT_EQ(a.label.to_vector<int64_t>(), b.label.to_vector<int64_t>());
  }
}

std::string message(const fs::path& folder) {
  try {
    auto records = load_records(folder, Split::train);
    for (int64_t i = 0; i < records->size(); ++i) records->get(i);
  } catch (const DataError& error) {
    return error.what();
  }
  return "no DataError";
}

TEST(Records, AnyByteThatChangesIsNoticed) {
  ScratchFolder folder;
  fs::path shard = pack(folder) / "train-00001.records";
  std::string whole = folder.get("packed/train-00001.records");
  for (size_t at = 0; at < whole.size(); ++at) {
    if (at >= 8 && at < 16) continue;  // the shard's number, which nothing depends on
    std::string damaged = whole;
    damaged[at] = static_cast<char>(damaged[at] ^ 0x10);
    folder.put("packed/train-00001.records", damaged);
    EXPECT_NE(message(folder / "packed").find("train-00001.records"), std::string::npos) << at;
  }
}

TEST(Records, DamageIsNamedWithWhatToDo) {
  ScratchFolder folder;
  fs::path packed = pack(folder), shard = packed / "train-00002.records";
  auto expect = [&](const std::string& text) {
    EXPECT_NE(message(packed).find(text), std::string::npos) << message(packed);
    EXPECT_NE(message(packed).find("pack the source again"), std::string::npos) << message(packed);
  };
  std::string whole = folder.get("packed/train-00002.records"), damaged = whole;
  damaged[16 + 6 + 2] = 'y';  // after the record of six bytes
  folder.put("packed/train-00002.records", damaged);
  expect("train-00002.records: record 1 (sample 7): checksum 0x");
  folder.put("packed/train-00002.records", whole.substr(0, whole.size() - 1));
  expect("train-00002.records: " + std::to_string(whole.size() - 1) + " bytes, records.json says " +
         std::to_string(whole.size()) + "; it is cut short");
  folder.put("packed/train-00002.records", whole + "more");
  expect("it is not what was packed");
  fs::remove(shard);
  expect("train-00002.records is missing; records.json names it");
  folder.put("packed/train-00002.records", folder.get("packed/train-00001.records"));  // whole, but another one
  EXPECT_NE(message(packed).find("train-00002.records"), std::string::npos);
  EXPECT_NE(message(folder / "absent").find("records.json"), std::string::npos);
}

TEST(Records, ABadManifestIsNamed) {
  ScratchFolder folder;
  fs::path packed = pack(folder);
  auto expect = [&](const std::string& text, const std::string& manifest) {
    folder.put("packed/records.json", manifest);
    EXPECT_NE(message(packed).find(text), std::string::npos) << message(packed);
    EXPECT_NE(message(packed).find("records.json"), std::string::npos) << message(packed);
  };
  std::string whole = folder.get("packed/records.json");
  expect("parse error", whole.substr(0, 50));
  expect("key 'format' not found", "{}");
  expect("version 2; expected", R"({"format": "bonfire records", "version": 2})");
  expect("cannot use", R"({"format": "bonfire records", "version": 1, "class_names": [], "train":
                           [{"file": "../x", "samples": 1, "bytes": 1, "index_crc32c": 1}]})");
  std::string fewer = whole;
  fewer.replace(fewer.find("\"no\","), 5, "");
  expect("has the label 1, records.json names 1 classes", fewer);
}

TEST(RecordWriter, LeavesNothingUnlessItFinishes) {
  ScratchFolder folder;
  {
    RecordWriter writer(folder / "packed", {});
    writer.add(Split::train, file_sample("x", 0));
    EXPECT_EQ(folder.count(), 1U);
    EXPECT_FALSE(fs::exists(folder / "packed"));
  }
  EXPECT_EQ(folder.count(), 0U);
  pack(folder);
  EXPECT_EQ(folder.count(), 1U);
}

TEST(RecordWriter, RemovesWhatAKilledOneLeftAndNothingElse) {
  ScratchFolder folder;
  pid_t child = ::fork();
  if (child == 0) {
    RecordWriter writer(folder / "packed", {.shard_samples = 1});
    writer.add(Split::train, file_sample("x", 0));
    ::kill(::getpid(), SIGKILL);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status));
  EXPECT_EQ(folder.count(), 1U);
  EXPECT_FALSE(fs::exists(folder / "packed"));
  fs::create_directory(folder / "packed2.unfinished-1");
  pack(folder);
  EXPECT_TRUE(fs::exists(folder / "packed" / "records.json"));
  EXPECT_EQ(folder.count(), 2U);
}

TEST(RecordWriter, SaysWhatItCannotDo) {
  ScratchFolder folder;
  pack(folder);
  EXPECT_ERROR(pack(folder), ConfigError, "packed' is there already; remove it or choose another name");
  folder.put("file", "");
  EXPECT_ERROR(pack(folder, "file/packed"), ConfigError, "cannot make '");
  EXPECT_ERROR(RecordWriter(folder / "x", {.shard_bytes = 0}), ConfigError, "shards of 0 bytes");
  RecordWriter writer(folder / "other", {});
  EXPECT_ERROR(writer.add(Split::train, file_sample("x", -1)), DataError, "labels are classes from 0");
  EXPECT_ERROR(writer.add(Split::train, image_sample({}, {0, 3, 3}, 1)), DataError, "1 to 65535 rows");
  Sample text = file_sample("12345678", 1);
  text.input.dtype = DType::i64;
  text.source = "lines.txt";
  EXPECT_ERROR(writer.add(Split::train, text), DataError, "sample 0 (lines.txt) is i64 [8]");
}

TEST(RecordWriter, AFullDiskIsAnErrorThatLeavesNothing) {
  ScratchFolder folder;
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  rlimit small{.rlim_cur = 4096, .rlim_max = before.rlim_max};
  setrlimit(RLIMIT_FSIZE, &small);
  {
    RecordWriter writer(folder / "packed", {});
    writer.add(Split::train, file_sample(std::string(10000, 'x'), 0));
    EXPECT_ERROR(writer.finish(), DataError, "cannot write '");
  }
  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, SIG_DFL);
  EXPECT_EQ(folder.count(), 0U);
}

}  // namespace
}  // namespace bonfire::data::records_test
