#include "bonfire/train/checkpoint/checkpoint.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>

#include "bonfire/base/error.h"
#include "bonfire/train/checkpoint/manifest.h"
#include "tests/support/expect_error.h"
#include "tests/support/numbers.h"
#include "tests/support/scratch_folder.h"

namespace bonfire::train::checkpoint_test {
namespace {

namespace fs = std::filesystem;
using bonfire::testing::numbers;
using bonfire::testing::ScratchFolder;

CheckpointContent content(float value) {
  return {.weights = nn::StateCopy({{"weight", numbers({value, 2})}}),
          .optimizer = nn::StateCopy({{"step", numbers({value})}}),
          .state = "{\"step\": 1}"};
}

fs::path save(const fs::path& folder, int64_t step, float value, int64_t keep, const fs::path& spare = {}) {
  CheckpointContent copies = content(value);
  return save_checkpoint(folder, step, copies, keep, spare);
}

std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

TEST(Checkpoint, HoldsWhatWasSaved) {
  ScratchFolder folder;
  fs::path saved = save(folder / "all", 7, 5, 3);
  EXPECT_EQ(saved.filename(), "step-00000007");
  EXPECT_EQ(names_in(folder / "all"), (std::vector<std::string>{"step-00000007"}));
  EXPECT_EQ(damage_of(saved), std::nullopt);
  EXPECT_EQ(read_checkpoint_state(saved), "{\"step\": 1}");
  Variable weight = numbers({0, 0});
  nn::load_state_dict({{"weight", weight}}, weights_file(saved));
  EXPECT_EQ(weight.value().to_vector<float>(), (std::vector<float>{5, 2}));
}

TEST(Checkpoint, KeepsTheNewestAndTheSpareOne) {
  ScratchFolder folder;
  for (int64_t step : {1, 2, 10, 100, 1000}) save(folder.path(), step, 1, 2, "step-00000002");
  EXPECT_EQ(names_in(folder.path()), (std::vector<std::string>{"step-00000002", "step-00000100", "step-00001000"}));
}

TEST(Checkpoint, DamageIsFoundNamedAndSkipped) {
  auto damaged = [](const char* file, const auto& harm) {
    ScratchFolder folder;
    save(folder.path(), 1, 1, 5);
    fs::path newest = save(folder.path(), 2, 2, 5);
    harm(newest / file);
    std::vector<std::string> skipped;
    std::optional<fs::path> found = newest_checkpoint(folder.path(), &skipped);
    EXPECT_TRUE(found && found->filename() == "step-00000001") << file;
    EXPECT_TRUE(skipped.size() == 1 && skipped[0].find("step-00000002") != std::string::npos) << file;
    return skipped.empty() ? std::string() : skipped[0];
  };
  auto cut = [](const fs::path& file) { fs::resize_file(file, fs::file_size(file) - 3); };
  auto remove = [](const fs::path& file) { fs::remove(file); };
  auto flip = [](const fs::path& file) {
    std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
    stream.seekp(-1, std::ios::end);
    stream.put('\x7e');
  };
  EXPECT_NE(damaged("weights.safetensors", flip).find("weights.safetensors is damaged"), std::string::npos);
  EXPECT_NE(damaged("optimizer.safetensors", cut).find("bytes, expected"), std::string::npos);
  EXPECT_NE(damaged("state.json", remove).find("state.json"), std::string::npos);
  EXPECT_NE(damaged("manifest.json", cut).find("step-00000002"), std::string::npos);
  EXPECT_NE(damaged("manifest.json", remove).find("manifest.json"), std::string::npos);
}

TEST(Checkpoint, AnUnfinishedOneIsNoneAndDoesNotDisturbTheNext) {
  ScratchFolder folder;
  fs::create_directories(folder / "unfinished-step-00000003");
  folder.put("unfinished-step-00000003/weights.safetensors", "half");
  EXPECT_EQ(newest_checkpoint(folder.path()), std::nullopt);
  fs::path saved = save(folder.path(), 3, 3, 1);
  EXPECT_EQ(damage_of(saved), std::nullopt);
  EXPECT_EQ(names_in(folder.path()), (std::vector<std::string>{"step-00000003"}));
}

void flip_a_bit(const fs::path& file, std::streamoff at) {
  std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
  stream.seekg(at);
  const int byte = stream.get();
  stream.seekp(at);
  stream.put(static_cast<char>(byte ^ 0x40));
}

TEST(Checkpoint, OneOfANewerFormatIsRefusedAndNoOlderOneTakenInItsPlace) {
  ScratchFolder folder;
  save(folder.path(), 1, 1, 5);
  fs::path newest = save(folder.path(), 2, 2, 5);
  std::string manifest = folder.get("step-00000002/manifest.json");
  manifest.replace(manifest.find("\"format\": 1"), 11, "\"format\": 3");
  folder.put("step-00000002/manifest.json", manifest);
  EXPECT_ERROR(damage_of(newest), DataError, "has format 3, this build reads formats up to 2");
  EXPECT_ERROR(newest_checkpoint(folder.path()), DataError, "a newer Bonfire has written it");
}

// As versions wrote them that knew no slices: it is kept as a file, so that what is written today cannot change it.
TEST(Checkpoint, OneOfTheFirstFormatStillLoads) {
  const fs::path old = BONFIRE_SOURCE_DIR "/tests/train/format_1";
  ASSERT_EQ(newest_checkpoint(old), old / checkpoint_name(12));
  const fs::path checkpoint = old / checkpoint_name(12);
  EXPECT_EQ(damage_of(checkpoint), std::nullopt);
  const Manifest manifest = read_manifest(checkpoint);
  EXPECT_EQ(manifest.format, 1);
  EXPECT_EQ(manifest.step, 12);
  EXPECT_EQ(manifest.files.size(), 3U);
  EXPECT_EQ(read_checkpoint_state(checkpoint).substr(0, 13), "{\"best_top1\":");

  Variable weight({{2, 3}, DType::f32, {}}), bias = numbers({0, 0}), momentum({{2, 3}, DType::f32, {}});
  nn::load_state_dict({{"fc.weight", weight}, {"fc.bias", bias}}, open_tensors(weights_in(checkpoint)));
  EXPECT_EQ(weight.value().to_vector<float>(), (std::vector<float>{0.5, 1, 1.5, 2, 2.5, 3}));
  EXPECT_EQ(bias.value().to_vector<float>(), (std::vector<float>{-1, -2}));
  momentum.keep_slice(Slice::part({2, 3}, 1, 1, 3));  // a rank of today
  nn::load_state_dict({{"fc.weight.momentum_buffer", momentum}}, open_tensors(optimizer_file(checkpoint)),
                      {.strict = false});
  EXPECT_EQ(momentum.stored().to_vector<float>(), (std::vector<float>{20, 50}));
}

TEST(Checkpoint, WeightsOfADamagedOneAreNotHandedOut) {
  ScratchFolder folder;
  fs::path saved = save(folder.path(), 1, 1, 5);
  EXPECT_EQ(weights_in(saved), weights_file(saved));
  flip_a_bit(weights_file(saved), static_cast<std::streamoff>(fs::file_size(weights_file(saved))) - 2);
  EXPECT_ERROR(weights_in(saved), DataError, "weights.safetensors is damaged");
  Variable weight = numbers({0, 0});
  EXPECT_ERROR(nn::load_state_dict({{"weight", weight}}, weights_file(saved)), DataError, "the file is damaged");
}

TEST(Checkpoint, IsTheUsersAlone) {
  ScratchFolder folder;
  fs::path saved = save(folder / "checkpoints", 1, 1, 5);
  constexpr fs::perms others = fs::perms::group_all | fs::perms::others_all;
  for (const fs::path& path : {folder / "checkpoints", saved, weights_file(saved), saved / "state.json"})
    EXPECT_EQ(fs::status(path).permissions() & others, fs::perms::none) << path;
}

TEST(Checkpoint, NumbersOfMoreDigitsAreNewer) {
  ScratchFolder folder;
  for (int64_t step : {9, 99'999'999, 100'000'000}) save(folder.path(), step, 1, 2);
  EXPECT_EQ(newest_checkpoint(folder.path()), folder / "step-100000000");
  EXPECT_EQ(names_in(folder.path()), (std::vector<std::string>{"step-100000000", "step-99999999"}));
}

// A run that goes on from an earlier checkpoint than its newest.
TEST(Checkpoint, TheOneJustSavedStaysHoweverManyLaterOnesThereAre) {
  ScratchFolder folder;
  for (int64_t step : {10, 20, 30}) save(folder.path(), step, 1, 3);
  EXPECT_EQ(damage_of(save(folder.path(), 5, 1, 2)), std::nullopt);
}

TEST(Checkpoint, AWholeOneThatWasNotRenamedYetIsTakenUp) {
  ScratchFolder folder;
  save(folder / "checkpoints", 1, 1, 5);
  fs::rename(save(folder / "checkpoints", 2, 7, 5), folder / "checkpoints/unfinished-step-00000002");
  std::optional<fs::path> found = newest_checkpoint(folder / "checkpoints");
  ASSERT_EQ(found, folder / "checkpoints/unfinished-step-00000002");
  EXPECT_EQ(take_up(folder.path(), *found), folder / "checkpoints/step-00000002");
  EXPECT_EQ(newest_checkpoint(folder / "checkpoints"), folder / "checkpoints/step-00000002");
  EXPECT_EQ(names_in(folder / "checkpoints"), (std::vector<std::string>{"step-00000001", "step-00000002"}));
}

TEST(Checkpoint, LeftoversOfProcessesThatAreGoneAreSwept) {
  ScratchFolder folder;
  save(folder / "checkpoints", 1, 1, 5);
  for (const char* half : {"unfinished-step-00000002", "discarded-step-00000003"})
    fs::create_directories(folder / "checkpoints" / half / "");
  folder.put("checkpoints/unfinished-step-00000002/weights.safetensors", "half");
  folder.put("checkpoints/discarded-step-00000003/weights.safetensors", "half");
  folder.put("checkpoints/notes.txt", "the user's own");
  folder.put(".bonfire-4194305-0.tmp", "a process that cannot be");
  const std::string living = ".bonfire-" + std::to_string(getppid()) + "-0.tmp";
  folder.put(living, "somebody still writes this");
  sweep_leftovers(folder.path());
  EXPECT_EQ(names_in(folder / "checkpoints"), (std::vector<std::string>{"notes.txt", "step-00000001"}));
  EXPECT_EQ(names_in(folder.path()), (std::vector<std::string>{living, "checkpoints"}));
}

TEST(Checkpoint, WhatCannotBeWrittenIsAnErrorWithTheName) {
  ScratchFolder folder;
  folder.put("file", "");
  EXPECT_THROW(save(folder / "file", 1, 1, 1), DataError);
}

}  // namespace
}  // namespace bonfire::train::checkpoint_test
