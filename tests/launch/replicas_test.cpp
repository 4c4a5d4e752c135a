// A bit flips in the memory of one rank of `bonfire train`: the rank and the parameter are named, and the job goes on
// from the last checkpoint.

#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <sstream>
#include <thread>

#include "bonfire/nn/safetensors.h"
#include "bonfire/train/checkpoint/checkpoint.h"
#include "tests/launch/launched.h"
#include "tests/launch/trained.h"
#include "tests/support/expect_error.h"

namespace bonfire::launch::replicas_test {
namespace {

namespace fs = std::filesystem;
using testing::ChildProcess;
using testing::clean;
using testing::expect_mentions;
using testing::joined;
using testing::ScratchFolder;
using testing::settings;
using testing::Words;

struct Range {
  uint64_t begin, end;  // addresses
};

std::vector<Range> writable_memory(int process) {
  constexpr uint64_t kLargest = uint64_t{4} << 30;  // a sanitizer reserves more for what it knows of the rest
  std::vector<Range> ranges;
  std::ifstream maps(fmt::format("/proc/{}/maps", process));
  for (std::string line; std::getline(maps, line);) {
    Range range{};
    char dash = 0;
    std::string rights;
    std::istringstream words(line);
    words >> std::hex >> range.begin >> dash >> range.end >> rights;
    if (rights.starts_with("rw") && range.end - range.begin < kLargest) ranges.push_back(range);
  }
  return ranges;
}

// Flips one bit of the value wherever it is in the process's memory; how often that was.
int flip_a_bit(int process, const std::string& value) {
  const int memory = open(fmt::format("/proc/{}/mem", process).c_str(), O_RDWR);
  if (memory < 0) return 0;
  int flipped = 0;
  for (const Range& range : writable_memory(process)) {
    std::string bytes(range.end - range.begin, '\0');
    const ssize_t count = pread(memory, bytes.data(), bytes.size(), static_cast<off_t>(range.begin));
    if (count <= 0) continue;
    bytes.resize(static_cast<size_t>(count));
    for (size_t at = bytes.find(value); at != std::string::npos; at = bytes.find(value, at + 1)) {
      const char other = static_cast<char>(value[0] ^ 1);
      if (pwrite(memory, &other, 1, static_cast<off_t>(range.begin + at)) == 1) ++flipped;
    }
  }
  close(memory);
  return flipped;
}

std::string bytes_of(const fs::path& file) {
  std::ifstream stream(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

// It is written beside the training; nothing after 30 s.
std::optional<fs::path> first_checkpoint(const fs::path& folder) {
  for (int looks = 0; looks < 300; ++looks) {
    if (std::optional<fs::path> found = train::newest_checkpoint(folder)) return found;
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  return {};
}

// At such a rate weights of usual size stay as they are: their first ones can be found in memory by their values.
TEST(LaunchReplicas, AFlippedBitIsNamedAndTheJobGoesBackToTheLastCheckpoint) {
  ScratchFolder folder, other;
  const Words slow{"lr=1e-30", "optimizer=sgd", "epochs=30", "check_replicas=2"};
  ChildProcess three(
      joined({BONFIRE_PROGRAM, "launch", "--nproc_per_node", "3", "--max_restarts", "1", "bonfire", "train"},
             settings(folder, 16, slow)),
      clean({{"BONFIRE_TEST", folder.path().string()}}));
  EXPECT_NE(three.read_line("epoch 2/30 done"), "") << three.output();
  const std::optional<fs::path> checkpoint = first_checkpoint(folder / "runs/1/checkpoints");
  ASSERT_TRUE(checkpoint) << three.output();
  const nn::SafetensorsFile saved = nn::SafetensorsFile::open(train::weights_file(*checkpoint));
  const nn::TensorEntry* weight = saved.find("fc1.weight");
  ASSERT_NE(weight, nullptr);
  const std::string value(reinterpret_cast<const char*>(weight->bytes.data()), 64);
  const int process = testing::process_of_rank(1, folder.path().string());
  const int flipped = flip_a_bit(process, value);
  if (flipped == 0) GTEST_SKIP() << "the memory of process " << process << " cannot be written";

  EXPECT_EQ(three.wait(), 0) << three.output();
  expect_mentions(three.output(), {"[replicas] after step", "rank 1 differs from ranks 0, 2 in fc1.weight",
                                   "bonfire launch: rank 1 (process", "restart 1 of 1"});
  const char* weights = "checkpoints/step-00000150/weights.safetensors";
  ChildProcess whole(joined({BONFIRE_PROGRAM, "train", "--nproc", "3"}, settings(other, 16, slow)), clean());
  ASSERT_EQ(whole.wait(), 0) << whole.output();
  EXPECT_FALSE(bytes_of(other / "runs/1" / weights).empty());
  EXPECT_TRUE(bytes_of(folder / "runs/1" / weights) == bytes_of(other / "runs/1" / weights)) << three.output();
}

}  // namespace
}  // namespace bonfire::launch::replicas_test
