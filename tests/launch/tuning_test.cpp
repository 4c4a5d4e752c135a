// The choice of kernels by several processes: one for all of them, kept in the checkpoint.

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "tests/launch/launched.h"
#include "tests/launch/trained.h"

namespace bonfire::launch::tuning_test {

namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::ChildProcess;
using testing::clean;
using testing::joined;
using testing::ScratchFolder;
using testing::settings;
using testing::Words;

constexpr const char* kFirst = "checkpoints/step-00000005";
constexpr const char* kLast = "checkpoints/step-00000010";

std::string bytes_of(const fs::path& file) {
  std::ifstream stream(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

json times_in(const fs::path& checkpoint) {
  return json::parse(bytes_of(checkpoint / "state.json")).at("kernels").at("times");
}

// Of epochs of 203 samples the last batch has 11, of which three ranks get 4, 4 and 3. The best kernels of this net are
// nearly as quick as others. As on hosts with disks of their own, ranks learn nothing from each other's cache: none can
// be written here.
void train(const ScratchFolder& folder, int ranks, int64_t batch_size, const Words& more) {
  const Words start =
      ranks == 1 ? Words{BONFIRE_PROGRAM, "train"} : Words{BONFIRE_PROGRAM, "train", "--nproc", std::to_string(ranks)};
  ChildProcess run(
      joined(start, settings(folder, batch_size, joined({"model=mnist_cnn"}, more))),
      clean({{"BONFIRE_TUNE", "full"}, {"BONFIRE_CACHE", "/proc/cannot/be"}, {"BONFIRE_CPU_THREADS", "1"}}));
  ASSERT_EQ(run.wait(), 0) << run.output();
}

// A run that has not gone beyond the first checkpoint.
fs::path copy_of(const fs::path& run, const ScratchFolder& to) {
  fs::create_directories(to / "runs");
  fs::copy(run, to / "runs/1", fs::copy_options::recursive);
  fs::remove_all(to / "runs/1" / kLast);
  return to / "runs/1";
}

TEST(LaunchTuning, RunsAreTakenUpToTheSameBitsWithoutTheKernelCache) {
  ScratchFolder folder;
  train(folder, 3, 16, {});
  const std::string expected = bytes_of(folder / "runs/1" / kLast / "weights.safetensors");
  ASSERT_FALSE(expected.empty());
  for (int trial = 0; trial < 3; ++trial) {
    ScratchFolder other;
    const fs::path run = copy_of(folder / "runs/1", other);
    train(other, 3, 16, {"resume=" + run.string()});
    EXPECT_TRUE(bytes_of(run / kLast / "weights.safetensors") == expected) << "trial " << trial;
  }
}

TEST(LaunchTuning, ACheckpointHasTheTimesOfAllRanksAndAnyNumberOfThemUsesThem) {
  ScratchFolder folder;
  train(folder, 3, 16, {});
  const json times = times_in(folder / "runs/1" / kFirst);
  auto known = [&](const std::string& shape) {
    for (const auto& [node, candidates] : times.items())
      if (node.find(shape) != std::string::npos && !candidates.empty()) return true;
    return false;
  };
  for (const char* shape : {"[16, 28, 28, 1]", "[4, 28, 28, 1]", "[3, 28, 28, 1]"}) EXPECT_TRUE(known(shape)) << shape;
  for (int ranks : {1, 2}) {
    ScratchFolder other;
    const fs::path run = copy_of(folder / "runs/1", other);
    train(other, ranks, 48 / ranks, {"resume=" + run.string(), "steps=10"});
    const json later = times_in(run / kLast);
    for (const auto& [node, candidates] : times.items())
      EXPECT_EQ(later.value(node, json()), candidates) << node << " by " << ranks << " ranks";
  }
}

}  // namespace
}  // namespace bonfire::launch::tuning_test
