// Checkpoints of ranks that hold slices, with processes as ranks: what any number of them has written any other reads.

#include <gtest/gtest.h>

#include "bonfire/train/checkpoint/checkpoint.h"
#include "tests/launch/launched.h"
#include "tests/support/scratch_folder.h"

namespace bonfire::launch::slices_test {
namespace {

namespace fs = std::filesystem;
using testing::ChildProcess;
using testing::program_beside;
using testing::ScratchFolder;

// Its exit status, 128 + a signal that ended it; what it has printed is in `output`.
int on_ranks(int ranks, const testing::Words& words, std::string* output = nullptr) {
  const testing::Words program = testing::joined({program_beside("slices_program")}, words);
  ChildProcess job(
      ranks == 1 ? program
                 : testing::joined({BONFIRE_PROGRAM, "launch", "--nproc_per_node", std::to_string(ranks)}, program),
      testing::clean());
  const int status = job.wait();
  if (output != nullptr) *output = job.output();
  return status;
}

TEST(CheckpointsOfSlices, WhatAnyNumberOfRanksHasWrittenAnyOtherReads) {
  ScratchFolder folder;
  std::string output;
  for (int ranks = 1; ranks <= 4; ++ranks) EXPECT_EQ(on_ranks(ranks, {"save", folder.path()}, &output), 0) << output;
  for (int ranks = 1; ranks <= 4; ++ranks) {
    EXPECT_EQ(on_ranks(ranks, {"load", folder.path()}, &output), 0) << output;
    EXPECT_EQ(testing::count(output, "compared 512, 0 wrong"), static_cast<size_t>(ranks)) << output;
  }
  // As one file, as `bonfire export` writes it.
  const fs::path file = folder / "whole.safetensors";
  ChildProcess exported({BONFIRE_PROGRAM, "export", folder / "flat-permuted-by-3/step-00000001", file});
  EXPECT_EQ(exported.wait(), 0) << exported.output();
  const nn::TensorFiles found = nn::TensorFiles::open(file),
                        expected = nn::TensorFiles::open(folder / "whole-by-1/step-00000001/weights.safetensors");
  EXPECT_EQ(found.entries().size(), expected.entries().size());
  for (const nn::TensorEntry& entry : expected.entries())
    EXPECT_EQ(found.read(entry.name, Slice(entry.shape)), expected.read(entry.name, Slice(entry.shape))) << entry.name;

  EXPECT_FALSE(fs::exists(folder / "whole-by-3/step-00000001/weights.rank-1.safetensors"));
  EXPECT_TRUE(fs::exists(folder / "flat-by-3/step-00000001/weights.rank-2.safetensors"));
}

TEST(CheckpointsOfSlices, ARankThatDiesWhileItWritesLeavesAWholeOne) {
  for (int micros : {0, 1'000, 3'000, 7'000, 15'000, 40'000}) {
    const int rank = micros / 1'000 % 3;
    SCOPED_TRACE("rank " + std::to_string(rank) + " after " + std::to_string(micros) + " microseconds");
    ScratchFolder folder;
    std::string output;
    EXPECT_NE(on_ranks(3, {"die", folder / "checkpoints", std::to_string(rank), std::to_string(micros)}, &output), 0);
    const std::optional<fs::path> found = train::newest_checkpoint(folder / "checkpoints");
    ASSERT_TRUE(found) << output;
    const nn::TensorFiles files = train::open_tensors(train::weights_file(*found));
    EXPECT_EQ(files.read("fc.weight", Slice({12, 10})).size(), 480U);
    train::sweep_leftovers(folder.path());
    for (const auto& entry : fs::directory_iterator(folder / "checkpoints"))
      EXPECT_TRUE(entry.path().filename().string().starts_with("step-")) << entry.path();
  }
}

}  // namespace
}  // namespace bonfire::launch::slices_test
