#include "bonfire/nn/safetensors.h"

#include <gtest/gtest.h>

#include <cstring>

#include "bonfire/base/error.h"
#include "tests/nn/safetensors_mutator.h"
#include "tests/support/expect_error.h"
#include "tests/support/scratch_folder.h"

namespace bonfire::nn::safetensors_test {
namespace {

namespace fs = std::filesystem;
using bonfire::testing::data_error;
using bonfire::testing::expect_mentions;
using bonfire::testing::ScratchFolder;
using bonfire::testing::WithoutPrivileges;
using testing::parses;
using testing::safetensors_bytes;
using testing::SafetensorsMutator;

std::span<const std::byte> bytes(std::string_view text) { return std::as_bytes(std::span(text)); }

std::string text(std::span<const std::byte> data) { return {reinterpret_cast<const char*>(data.data()), data.size()}; }

void expect_refused(const std::string& file, const std::string& part) {
  expect_mentions(data_error([&] { SafetensorsFile::from_bytes(bytes(file), "some.safetensors"); }),
                  {"[safetensors] some.safetensors: ", part});
}

void expect_entry(const SafetensorsFile& file, const TensorEntry& expected) {
  const TensorEntry* found = file.find(expected.name);
  ASSERT_NE(found, nullptr) << expected.name;
  EXPECT_EQ(found->name, expected.name);
  EXPECT_EQ(found->dtype, expected.dtype);
  EXPECT_EQ(found->shape, expected.shape);
  EXPECT_EQ(text(found->bytes), text(expected.bytes));
}

// What Python's safetensors 0.4.5 wrote for kReferenceEntries and the metadata {"format": "pt"}.
const std::string kReferenceFile = safetensors_bytes(
    R"({"__metadata__":{"format":"pt"},"step":{"dtype":"I64","shape":[],"data_offsets":[0,8]},)"
    R"("layer.weight":{"dtype":"F32","shape":[2,2],"data_offsets":[8,24]},)"
    R"("nothing":{"dtype":"F32","shape":[0,4],"data_offsets":[24,24]},)"
    R"("half":{"dtype":"BF16","shape":[3],"data_offsets":[24,30]},"mask":{"dtype":"BOOL","shape":[3],"data_offsets":[30,33]}} )",
    std::string_view("\xF9\xFF\xFF\xFF\xFF\xFF\xFF\xFF"                                  // -7
                     "\x00\x00\x80\x3F\x00\x00\x20\xC0\x00\x00\x40\x40\x00\x00\x80\x3E"  // 1, -2.5, 3, 0.25
                     "\x80\x3F\x00\xC0\x40\x40"                                          // 1, -2, 3
                     "\x01\x00\x01",
                     33));
const float kWeight[] = {1, -2.5F, 3, 0.25F};
const bfloat16 kHalf[] = {1.0F, -2.0F, 3.0F};
const int64_t kStep[] = {-7};
const bool kMask[] = {true, false, true};
const std::vector<TensorEntry> kReferenceEntries = {
    {"layer.weight", DType::f32, {2, 2}, std::as_bytes(std::span(kWeight))},
    {"half", DType::bf16, {3}, std::as_bytes(std::span(kHalf))},
    {"step", DType::i64, {}, std::as_bytes(std::span(kStep))},
    {"mask", DType::boolean, {3}, std::as_bytes(std::span(kMask))},
    {"nothing", DType::f32, {0, 4}, {}}};

TEST(SafetensorsFile, ReadsWhatPythonWrote) {
  ScratchFolder folder;
  SafetensorsFile file = SafetensorsFile::open(folder.put("reference", kReferenceFile));
  EXPECT_EQ(file.entries().size(), kReferenceEntries.size());
  for (const TensorEntry& entry : kReferenceEntries) expect_entry(file, entry);
  EXPECT_EQ(file.metadata(), (SafetensorsMetadata{{"format", "pt"}}));
  EXPECT_EQ(file.find("layer"), nullptr);
  EXPECT_EQ(file.find(""), nullptr);
}

TEST(SafetensorsFile, ListsEntriesInTheOrderOfTheirData) {
  SafetensorsFile file = SafetensorsFile::from_bytes(bytes(kReferenceFile), "reference");
  std::vector<std::string> names;
  for (const TensorEntry& entry : file.entries()) names.push_back(entry.name);
  EXPECT_EQ(names, (std::vector<std::string>{"step", "layer.weight", "nothing", "half", "mask"}));
}

TEST(SafetensorsFile, TakesAnyOrderOfHeaderAndFieldsAndNoAlignment) {
  std::string whole = safetensors_bytes(
      R"({"wide":{"shape":[1],"data_offsets":[1,9],"dtype":"F64"},"byte":{"data_offsets":[0,1],"dtype":"U8","shape":[]}})",
      "abcdefghi");
  SafetensorsFile file = SafetensorsFile::from_bytes(bytes(whole), "x");
  EXPECT_EQ(text(file.find("byte")->bytes), "a");
  EXPECT_EQ(text(file.find("wide")->bytes), "bcdefghi");
}

TEST(SafetensorsFile, TakesAFileWithoutTensors) {
  EXPECT_TRUE(SafetensorsFile::from_bytes(bytes(safetensors_bytes("{}", "")), "x").entries().empty());
}

TEST(SafetensorsFile, KeepsItsEntriesWhenMoved) {
  ScratchFolder folder;
  SafetensorsFile first = SafetensorsFile::open(folder.put("reference", kReferenceFile));
  SafetensorsFile second = std::move(first);
  for (const TensorEntry& entry : kReferenceEntries) expect_entry(second, entry);
}

TEST(SafetensorsFile, NamesAFileThatCannotBeOpened) {
  ScratchFolder folder;
  auto message = [](const fs::path& path) { return data_error([&] { SafetensorsFile::open(path); }); };
  expect_mentions(message(folder / "absent"), {(folder / "absent").string(), "No such file"});
  expect_mentions(message(folder.path()), {folder.path().string(), "Is a directory"});
  expect_mentions(message(folder.put("empty", "")), {(folder / "empty").string(), "0 bytes", "truncated or empty"});
  fs::path secret = folder.put("secret", kReferenceFile);
  fs::permissions(secret, fs::perms::none);
  WithoutPrivileges nobody;
  expect_mentions(message(secret), {secret.string(), "Permission denied"});
}

TEST(SafetensorsFile, RefusesEveryPrefixOfAFile) {
  for (size_t length = 0; length < kReferenceFile.size(); ++length)
    expect_refused(kReferenceFile.substr(0, length), "truncated");
}

TEST(SafetensorsFile, RefusesHeaderLengthsThatCannotBe) {
  auto with_length = [](uint64_t length) {
    std::string file = kReferenceFile;
    std::memcpy(file.data(), &length, sizeof length);
    return file;
  };
  expect_refused(with_length(370), "a header of 370 bytes, but only 369 follow");
  expect_refused(with_length(100'000'001), "expected at most 100000000");
  expect_refused(with_length(UINT64_MAX), "expected at most 100000000");
  expect_refused(with_length(UINT64_MAX - 7), "expected at most 100000000");
  expect_refused(with_length(0), "does not begin with '{'");
  expect_refused(with_length(335), "34 bytes of data, the tensors account for 33");  // the last space becomes data
}

// However deep: nested data is refused at the first level too many, in no more stack than any other file.
TEST(SafetensorsFile, RefusesDeepNesting) {
  std::string objects;
  for (int i = 0; i < 1'000'000; ++i) objects += R"({"a":)";
  std::string arrays(10'000'000, '[');  // NOLINT(bugprone-string-constructor): large on purpose
  expect_refused(safetensors_bytes(objects, ""), "dtype");
  expect_refused(safetensors_bytes(R"({"a":)" + arrays, ""), "'a' is an array, expected an object");
  expect_refused(safetensors_bytes(R"({"a":{"shape":)" + arrays, ""), "shape has an array");
  expect_refused(safetensors_bytes(R"({"__metadata__":{"x":)" + arrays, ""), "'x' is an array, expected a string");
}

struct Malformed {
  const char* claim;
  std::string header;
  size_t data_bytes;
  const char* message;

  friend std::ostream& operator<<(std::ostream& out, const Malformed& malformed) { return out << malformed.header; }
};

std::string tensor(const std::string& name, const std::string& dtype, const std::string& shape,
                   const std::string& offsets) {
  return "\"" + name + R"(":{"dtype":")" + dtype + R"(","shape":[)" + shape + R"(],"data_offsets":[)" + offsets + "]}";
}
std::string f32(const std::string& shape, const std::string& offsets) {
  return "{" + tensor("t", "F32", shape, offsets) + "}";
}

class MalformedHeader : public ::testing::TestWithParam<Malformed> {};

TEST_P(MalformedHeader, IsRefusedWithAClearMessage) {
  expect_refused(safetensors_bytes(GetParam().header, std::string(GetParam().data_bytes, '\0')), GetParam().message);
}

const Malformed kMalformed[] = {
    {"NotJson", "{nonsense}", 0, "not valid JSON: 'parse error at line 1, column 3"},
    {"Unfinished", R"({"t":{"dtype":)", 0, "not valid JSON"},
    {"TextAfterIt", "{} {}", 0, "not valid JSON"},
    {"Comment", "{/* */}", 0, "not valid JSON"},
    {"InvalidUtf8", "{\"\xFF\":{}}", 0, "ill-formed UTF-8"},
    {"HalfASurrogate", R"({"\ud800":{}})", 0, "not valid JSON"},
    {"ZeroByte", std::string("{}\0{", 4), 0, "a zero byte at its byte 2"},
    {"ByteOrderMark", "\xEF\xBB\xBF{}", 0, "does not begin with '{'"},
    {"AnArray", "[]", 0, "does not begin with '{'"},
    {"TensorIsANumber", R"({"t":1})", 0, "'t' is the number 1, expected an object"},
    {"TensorIsNull", R"({"t":null})", 0, "'t' is null, expected an object"},
    {"SameNameTwice", "{" + tensor("t", "U8", "1", "0,1") + "," + tensor("t", "U8", "1", "1,2") + "}", 2,
     "'t' appears twice"},
    {"SameNameTwiceEscaped", "{" + tensor("t", "U8", "1", "0,1") + "," + tensor("\\u0074", "U8", "1", "1,2") + "}", 2,
     "'t' appears twice"},
    {"SameFieldTwice", R"({"t":{"dtype":"U8","dtype":"U8"}})", 0, "'dtype' appears twice"},
    {"UnknownField", R"({"t":{"strides":[1]}})", 0, "unknown field 'strides'"},
    {"NoDtype", R"({"t":{"shape":[],"data_offsets":[0,1]}})", 1, "tensor 't': dtype is missing"},
    {"NoShape", R"({"t":{"dtype":"U8","data_offsets":[0,1]}})", 1, "tensor 't': shape is missing"},
    {"NoOffsets", R"({"t":{"dtype":"U8","shape":[]}})", 1, "tensor 't': data_offsets is missing"},
    {"UnknownDtype", "{" + tensor("t", "F8_E4M3", "1", "0,1") + "}", 1, "unknown dtype 'F8_E4M3'"},
    {"DtypeInLowerCase", "{" + tensor("t", "f32", "1", "0,4") + "}", 4, "unknown dtype 'f32'"},
    {"DtypeIsANumber", R"({"t":{"dtype":32}})", 0, "dtype is the number 32, expected a string"},
    {"ShapeIsANumber", R"({"t":{"shape":3}})", 0, "shape is the number 3, expected an array"},
    {"NegativeExtent", f32("-1", "0,4"), 4, "shape has the negative number -1"},
    {"NegativeZero", f32("-0", "0,0"), 0, "shape has the negative number 0"},
    {"FractionalExtent", f32("1.0", "0,4"), 4, "shape has the number '1.0'"},
    {"ExtentBeyond64Bits", f32("18446744073709551616", "0,4"), 4, "shape has the number '18446744073709551616'"},
    {"ExtentBeyondSigned64Bits", f32("9223372036854775808", "0,4"), 4, "extent 9223372036854775808 is too large"},
    {"ProductOverflows", f32("4294967296,4294967296", "0,0"), 0, "larger than any memory"},
    {"ProductOverflowsToItsSize", f32("4611686018427387905", "0,4"), 4, "larger than any memory"},
    {"ProductOverflowsBesideAZero", f32("0,4611686018427387904,4", "0,0"), 0, "larger than any memory"},
    {"ProductOverflowsBeforeAZero", f32("4611686018427387904,4,0", "0,0"), 0, "larger than any memory"},
    {"NineDimensions", f32("1,1,1,1,1,1,1,1,1", "0,4"), 4, "more than 8 dimensions"},
    {"OneOffset", f32("1", "4"), 4, "data_offsets has 1 numbers, expected 2"},
    {"ThreeOffsets", f32("1", "0,4,8"), 4, "more than 2 numbers"},
    {"NegativeOffset", f32("1", "-4,0"), 4, "data_offsets has the negative number -4"},
    {"OffsetsBackwards", f32("1", "4,0"), 4, "[4, 0] run backwards"},
    {"OffsetsBeyondTheEnd", f32("2", "0,8"), 7, "end beyond the 7 bytes of data; the file is truncated"},
    {"OffsetsFarBeyondTheEnd", f32("1", "18446744073709551611,18446744073709551615"), 4, "end beyond"},
    {"TooManyBytesForTheShape", f32("1", "0,8"), 8, "hold 8 bytes, shape [1] of F32 needs 4"},
    {"TooFewBytesForTheShape", f32("2", "0,4"), 4, "hold 4 bytes, shape [2] of F32 needs 8"},
    {"BytesForAnEmptyShape", f32("0", "0,4"), 4, "hold 4 bytes, shape [0] of F32 needs 0"},
    {"Overlap", "{" + tensor("a", "U8", "4", "0,4") + "," + tensor("b", "U8", "4", "2,6") + "}", 6,
     "tensor 'b': data_offsets [2, 6] overlap"},
    {"SameBytesTwice", "{" + tensor("a", "U8", "4", "0,4") + "," + tensor("b", "U8", "4", "0,4") + "}", 4, "overlap"},
    {"EmptyTensorInsideAnother", "{" + tensor("a", "U8", "4", "0,4") + "," + tensor("b", "U8", "0", "2,2") + "}", 4,
     "overlap"},
    {"HoleAtTheStart", f32("1", "4,8"), 8, "leave a hole"},
    {"HoleBetween", "{" + tensor("a", "U8", "1", "0,1") + "," + tensor("b", "U8", "1", "2,3") + "}", 3, "leave a hole"},
    {"BytesAfterTheLast", f32("1", "0,4"), 5, "5 bytes of data, the tensors account for 4"},
    {"BytesOfNoTensor", "{}", 1, "1 bytes of data, the tensors account for 0"},
    {"MetadataIsAString", R"({"__metadata__":"x"})", 0, "'__metadata__' is the string 'x', expected an object"},
    {"MetadataHasANumber", R"({"__metadata__":{"x":1}})", 0, "__metadata__: 'x' is the number 1, expected a string"},
    {"MetadataKeyTwice", R"({"__metadata__":{"x":"1","x":"2"}})", 0, "__metadata__: the key 'x' appears twice"},
    {"MetadataTwice", R"({"__metadata__":{},"__metadata__":{}})", 0, "two __metadata__ objects"},
};

INSTANTIATE_TEST_SUITE_P(Safetensors, MalformedHeader, ::testing::ValuesIn(kMalformed),
                         [](const auto& info) { return info.param.claim; });

TEST(SafetensorsFile, RefusesBooleansThatAreNeitherZeroNorOne) {
  std::string file = safetensors_bytes("{" + tensor("mask", "BOOL", "3", "0,3") + "}", std::string_view("\0\1\2", 3));
  expect_refused(file, "tensor 'mask': element 2 of a BOOL tensor is 2, expected 0 or 1");
}

TEST(SafetensorsFile, MessagesStayShortAndPrintable) {
  std::string name(1'000'000, 'n');
  std::string message = data_error([&] {
    SafetensorsFile::from_bytes(bytes(safetensors_bytes("{" + tensor("\\n\\u0007" + name, "F8", "", "") + "}", "")),
                                "x");
  });
  EXPECT_LT(message.size(), 400U);
  EXPECT_EQ(message.find_first_of("\n\a"), std::string::npos);
}

TEST(SafetensorsFile, ThrowsNothingButDataErrorsForDamagedFiles) {
  int taken = 0, refused = 0;
  for (uint64_t number = 0; number < 20'000; ++number) {
    std::string file = SafetensorsMutator(7, number).file();
    EXPECT_NO_THROW((parses(file) ? taken : refused) += 1) << "seed 7, number " << number;
  }
  // Both sides are reached: damage that does not matter, and damage after the first check.
  EXPECT_GT(taken, 500);
  EXPECT_GT(refused, 10'000);
}

TEST(WriteSafetensors, WritesTheBytesThatPythonWrites) {
  ScratchFolder folder;
  write_safetensors(folder / "file", kReferenceEntries, {{"format", "pt"}});
  EXPECT_EQ(folder.get("file"), kReferenceFile);
}

TEST(WriteSafetensors, DoesNotDependOnTheOrderOfEntries) {
  ScratchFolder folder;
  std::vector<TensorEntry> reversed(kReferenceEntries.rbegin(), kReferenceEntries.rend());
  write_safetensors(folder / "file", reversed, {{"format", "pt"}});
  EXPECT_EQ(folder.get("file"), kReferenceFile);
}

TEST(WriteSafetensors, ComesBackForEveryTypeAndRank) {
  ScratchFolder folder;
  std::string ones(4096, '\1');
  std::vector<TensorEntry> entries;
  for (DType dtype :
       {DType::f32, DType::f64, DType::bf16, DType::f16, DType::i32, DType::i64, DType::u8, DType::boolean})
    for (const Shape& shape :
         {Shape{}, Shape{0}, Shape{5}, Shape{2, 0, 3}, Shape{3, 5, 7}, Shape{1, 2, 1, 2, 1, 2, 1, 2}}) {
      size_t size = static_cast<size_t>(shape.count()) * size_of(dtype);
      entries.push_back({std::string(name_of(dtype)) + to_string(shape), dtype, shape, bytes(ones).first(size)});
    }
  write_safetensors(folder / "file", entries);
  SafetensorsFile file = SafetensorsFile::open(folder / "file");
  EXPECT_EQ(file.entries().size(), entries.size());
  EXPECT_TRUE(file.metadata().empty());
  for (const TensorEntry& entry : entries) expect_entry(file, entry);
  for (const TensorEntry& entry : file.entries())
    EXPECT_EQ(reinterpret_cast<uintptr_t>(entry.bytes.data()) % size_of(entry.dtype), 0U) << entry.name;
}

TEST(WriteSafetensors, KeepsNamesAndMetadataOfAnyText) {
  ScratchFolder folder;
  std::vector<TensorEntry> entries;
  for (const std::string& name :
       {std::string(""), std::string("层.0/\"weight\"\\"), std::string("tab\t line\n nul\0", 15)})
    entries.push_back({name, DType::u8, {1}, bytes("x")});
  SafetensorsMetadata metadata{{"", ""}, {"说明", "众人拾柴\n\"火焰高\""}, {"__metadata__", "{}"}};
  write_safetensors(folder / "file", entries, metadata);
  SafetensorsFile file = SafetensorsFile::open(folder / "file");
  for (const TensorEntry& entry : entries) expect_entry(file, entry);
  EXPECT_EQ(file.metadata(), metadata);
}

TEST(WriteSafetensors, WritesNoTensors) {
  ScratchFolder folder;
  write_safetensors(folder / "file", {});
  EXPECT_EQ(folder.get("file"), safetensors_bytes("{}      ", ""));
  EXPECT_TRUE(SafetensorsFile::open(folder / "file").entries().empty());
}

TEST(WriteSafetensors, RefusesEntriesThatCouldNotBeReadBackAndKeepsTheOldFile) {
  ScratchFolder folder;
  folder.put("file", "old");
  auto expect = [&](std::vector<TensorEntry> entries, const SafetensorsMetadata& metadata, const std::string& part) {
    expect_mentions(data_error([&] { write_safetensors(folder / "file", entries, metadata); }),
                    {(folder / "file").string(), part});
  };
  TensorEntry one{"one", DType::u8, {1}, bytes("x")};
  expect({one, one}, {}, "two tensors are named 'one'");
  expect({one, {"one", DType::f32, {0}, {}}}, {}, "two tensors are named 'one'");
  expect({{"__metadata__", DType::u8, {1}, bytes("x")}}, {}, "cannot be named __metadata__");
  expect({{"t", DType::f32, {2}, bytes("1234")}}, {}, "tensor 't' has 4 bytes, which does not fit shape [2] of f32");
  expect({{"t", DType::u8, {-1, -1}, bytes("x")}}, {}, "does not fit shape [-1, -1]");
  expect({{"t", DType::u8, {int64_t{1} << 32, int64_t{1} << 32}, {}}}, {}, "does not fit shape");
  expect({{"\xFF", DType::u8, {1}, bytes("x")}}, {}, "not valid UTF-8");
  expect({one}, {{"key", "\xC3"}}, "not valid UTF-8");
  expect({one}, {{"\xC3", "text"}}, "not valid UTF-8");
  EXPECT_EQ(folder.get("file"), "old");
  EXPECT_EQ(folder.count(), 1U);
}

}  // namespace
}  // namespace bonfire::nn::safetensors_test
