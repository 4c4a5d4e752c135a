#include "bonfire/train/checkpoint/checkpoint_writer.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <mutex>

#include "bonfire/base/error.h"
#include "tests/support/numbers.h"
#include "tests/support/scratch_folder.h"

namespace {

// What fsync and rename were called with, in order, while someone wants to know.
std::mutex calls_mutex;
std::vector<std::string> calls;
std::atomic<bool> noting{false};

void note_call(const std::string& text) {
  if (!noting) return;
  std::lock_guard lock(calls_mutex);
  calls.push_back(text);
}

std::string last_part(const std::string& path) { return std::filesystem::path(path).filename(); }

}  // namespace

// In place of the C library's, for this program and the library under test.
extern "C" int fsync(int file) {
  char path[4096] = {};
  std::string link = "/proc/self/fd/" + std::to_string(file);
  if (readlink(link.c_str(), path, sizeof path - 1) > 0) note_call("sync " + last_part(path));
  return static_cast<int>(syscall(SYS_fsync, file));
}
extern "C" int rename(const char* from, const char* to) {
  note_call("rename " + last_part(to));
  return static_cast<int>(syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0));
}

namespace bonfire::train::checkpoint_writer_test {
namespace {

namespace fs = std::filesystem;
using bonfire::testing::numbers;
using bonfire::testing::ScratchFolder;

CheckpointSource source(const Variable& weight) {
  return {.weights = {{"weight", weight}}, .optimizer = {{"step", numbers({1})}}, .state = "{}"};
}

std::vector<float> saved_weight(const fs::path& checkpoint) {
  Variable weight = numbers({0, 0});
  nn::load_state_dict({{"weight", weight}}, weights_file(checkpoint));
  return weight.value().to_vector<float>();
}

std::string failure_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const DataError& error) {
    return error.what();
  }
  return "no DataError";
}

TEST(CheckpointWriter, SavesWhatTheValuesWereWhenItWasAsked) {
  ScratchFolder folder;
  CheckpointWriter writer(folder.path(), {.keep = 2});
  Variable weight = numbers({1, 2});
  fs::path saved = writer.save(7, source(weight));
  weight.assign(weight.value());  // training goes on
  weight.load(std::as_bytes(std::span<const float>(std::vector<float>{8, 9})));
  writer.finish();
  EXPECT_EQ(damage_of(saved), std::nullopt);
  EXPECT_EQ(saved_weight(saved), (std::vector<float>{1, 2}));
  saved = writer.save(8, source(weight));
  writer.finish();
  EXPECT_EQ(saved_weight(saved), (std::vector<float>{8, 9}));
}

TEST(CheckpointWriter, WritesTheWeightsThatAreEvaluatedBesides) {
  ScratchFolder folder;
  CheckpointWriter writer(folder / "checkpoints", {});
  CheckpointSource with_mean = source(numbers({1, 2}));
  with_mean.average = {{"weight", numbers({5, 6})}};
  fs::path saved = writer.save(1, with_mean, {}, {folder / "best.safetensors", {{"model", "lenet"}}});
  writer.finish();
  nn::SafetensorsFile best = nn::SafetensorsFile::open(folder / "best.safetensors");
  EXPECT_EQ(best.metadata().at("model"), "lenet");
  Variable weight = numbers({0, 0});
  nn::load_state_dict({{"weight", weight}}, best.entries(), "best");
  EXPECT_EQ(weight.value().to_vector<float>(), (std::vector<float>{5, 6}));
  EXPECT_EQ(saved_weight(saved), (std::vector<float>{1, 2}));
  EXPECT_TRUE(fs::exists(average_file(saved)));
}

// The header's length and its JSON are checked by the format itself: no flip of them gives other values either.
TEST(CheckpointWriter, NoFlippedBitOfTheWeightsFileGivesOtherWeights) {
  ScratchFolder folder;
  CheckpointWriter writer(folder / "checkpoints", {});
  writer.save(1, source(numbers({1, 2})), {}, {folder / "best.safetensors", {{"model", "lenet"}}});
  writer.finish();
  const std::string whole = folder.get("best.safetensors");
  size_t refused = 0;
  for (size_t bit = 0; bit < 8 * whole.size(); ++bit) {
    std::string damaged = whole;
    damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ (1 << bit % 8));
    Variable weight = numbers({0, 0});
    try {
      nn::SafetensorsFile file = nn::SafetensorsFile::from_bytes(std::as_bytes(std::span(damaged)), "best");
      nn::load_state_dict({{"weight", weight}}, file.entries(), "best");
      EXPECT_EQ(weight.value().to_vector<float>(), (std::vector<float>{1, 2})) << "bit " << bit;
    } catch (const DataError&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 7 * whole.size());
}

TEST(CheckpointWriter, SyncsFilesThenTheManifestThenRenamesAndSyncsTheParent) {
  ScratchFolder folder;
  CheckpointWriter writer(folder / "all", {});
  calls.clear();
  noting = true;
  writer.save(3, source(numbers({1, 2})));
  writer.finish();
  noting = false;
  auto at = [](const std::string& call) {
    auto found = std::find(calls.begin(), calls.end(), call);
    EXPECT_NE(found, calls.end()) << call;
    return found - calls.begin();
  };
  auto manifest = at("rename manifest.json"), whole = at("rename step-00000003");
  for (const char* file : {"weights.safetensors", "optimizer.safetensors", "state.json"})
    EXPECT_LT(at(std::string("rename ") + file), manifest) << file;
  EXPECT_LT(manifest, whole);
  // Each file is synced before it gets its name, its folder after; then the parent, last of all.
  for (size_t i = 0; i < calls.size(); ++i)
    if (calls[i].starts_with("rename ") && calls[i] != "rename step-00000003") {
      ASSERT_GT(i, 0U);
      EXPECT_TRUE(calls[i - 1].starts_with("sync .bonfire-")) << calls[i - 1];
    }
  EXPECT_EQ(calls[static_cast<size_t>(whole) - 1], "sync unfinished-step-00000003");
  EXPECT_EQ(calls.back(), "sync all");
  EXPECT_EQ(static_cast<size_t>(whole), calls.size() - 2);
}

TEST(CheckpointWriter, AFailureSurfacesAtTheNextCheckAndLeavesTheCheckpointsBefore) {
  ScratchFolder folder;
  CheckpointWriter writer(folder / "all", {});
  fs::path before = writer.save(1, source(numbers({1, 2})));
  writer.finish();
  folder.put("all/unfinished-step-00000002", "a file where a folder must be");
  fs::create_directories(folder / "elsewhere");
  writer.save(2, source(numbers({3, 4})), {}, {folder / "absent" / "best.safetensors", {}});
  std::string failure;
  while (failure.empty() || failure == "no DataError") failure = failure_of([&] { writer.check(); });
  EXPECT_NE(failure.find("step-00000002 could not be saved"), std::string::npos) << failure;
  EXPECT_NE(failure.find("No such file or directory"), std::string::npos) << failure;
  EXPECT_NE(failure.find("go on with resume"), std::string::npos) << failure;
  EXPECT_EQ(newest_checkpoint(folder / "all"), before);
  EXPECT_NO_THROW(writer.check());  // once
}

// A file system of 64 KiB, where this process may mount one.
TEST(CheckpointWriter, AFullDiskIsNamedAndNothingOfTheCheckpointIsLeft) {
  ScratchFolder folder;
  fs::path disk = folder / "disk";
  fs::create_directories(disk);
  if (mount("tmpfs", disk.c_str(), "tmpfs", 0, "size=64k") != 0)
    GTEST_SKIP() << "needs a small file system, and may not mount one: " << std::strerror(errno);
  {
    CheckpointWriter writer(disk / "all", {});
    fs::path before = writer.save(1, source(numbers({1, 2})));
    writer.finish();
    writer.save(2, source(numbers(std::vector<float>(100'000))));
    std::string failure = failure_of([&] { writer.finish(); });
    EXPECT_NE(failure.find("No space left on device"), std::string::npos) << failure;
    EXPECT_NE(failure.find("Make room or choose another output"), std::string::npos) << failure;
    EXPECT_EQ(newest_checkpoint(disk / "all"), before);
    int entries = 0;
    for (const auto& entry : fs::directory_iterator(disk / "all")) entries += entry.exists() ? 1 : 0;
    EXPECT_EQ(entries, 1);
  }
  EXPECT_EQ(umount2(disk.c_str(), MNT_DETACH), 0);
}

}  // namespace
}  // namespace bonfire::train::checkpoint_writer_test
