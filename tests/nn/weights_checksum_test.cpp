#include "bonfire/nn/weights_checksum.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "bonfire/base/error.h"
#include "bonfire/nn/state_dict.h"
#include "tests/support/expect_error.h"
#include "tests/support/numbers.h"
#include "tests/support/scratch_folder.h"

namespace bonfire::nn::weights_checksum_test {
namespace {

using bonfire::testing::numbers;
using bonfire::testing::ScratchFolder;

TEST(WeightsChecksum, SavedWeightsCarryOneAndAreCheckedAgainstIt) {
  ScratchFolder folder;
  save_state_dict({{"weight", numbers({1, 2, 3})}}, folder / "weights", {{"model", "lenet"}});
  EXPECT_TRUE(SafetensorsFile::open(folder / "weights").metadata().contains(kChecksumKey));
  std::string file = folder.get("weights");
  file.back() = static_cast<char>(file.back() ^ 1);
  EXPECT_ERROR(SafetensorsFile::open(folder.put("flipped", file)), DataError, "the file is damaged");
}

TEST(WeightsChecksum, CoversNamesTypesShapesAndMetadata) {
  const float values[] = {1, 2, 3, 4};
  const std::vector<TensorEntry> entries{{"w", DType::f32, {2, 2}, std::as_bytes(std::span(values))}};
  const SafetensorsMetadata metadata = with_checksum(entries, {{"mean", "[0.5]"}});
  auto accepted = [&](auto change) {
    std::vector<TensorEntry> other = entries;
    SafetensorsMetadata said = metadata;
    change(other[0], said);
    try {
      require_checksum(other, said, "file");
    } catch (const DataError&) {
      return false;
    }
    return true;
  };
  EXPECT_TRUE(accepted([](TensorEntry&, SafetensorsMetadata&) {}));
  EXPECT_FALSE(accepted([](TensorEntry& entry, SafetensorsMetadata&) { entry.name = "v"; }));
  EXPECT_FALSE(accepted([](TensorEntry& entry, SafetensorsMetadata&) { entry.dtype = DType::i32; }));
  EXPECT_FALSE(accepted([](TensorEntry& entry, SafetensorsMetadata&) { entry.shape = {4, 1}; }));
  EXPECT_FALSE(accepted([](TensorEntry&, SafetensorsMetadata& said) { said["mean"] = "[0.6]"; }));
  EXPECT_FALSE(accepted([](TensorEntry&, SafetensorsMetadata& said) { said[kChecksumKey] = ""; }));
  EXPECT_TRUE(accepted([](TensorEntry& entry, SafetensorsMetadata& said) {  // of other programs
    entry.name = "v";
    said.erase(kChecksumKey);
  }));
}

TEST(WeightsChecksum, DoesNotDependOnTheOrderOfEntries) {
  const float values[] = {1, 2};
  auto bytes = std::as_bytes(std::span(values));
  std::vector<TensorEntry> entries{{"a", DType::f32, {1}, bytes.subspan(0, 4)},
                                   {"b", DType::f32, {1}, bytes.subspan(4)}};
  SafetensorsMetadata one = with_checksum(entries, {});
  std::reverse(entries.begin(), entries.end());
  EXPECT_EQ(with_checksum(entries, {}), one);
}

}  // namespace
}  // namespace bonfire::nn::weights_checksum_test
