// Checkpoints of ranks that hold slices, with threads as ranks. tests/launch/slices_test.cpp has processes.

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <thread>

#include "bonfire/base/error.h"
#include "bonfire/comm/local/local_group.h"
#include "bonfire/train/checkpoint/checkpoint.h"
#include "bonfire/train/checkpoint/checkpoint_writer.h"
#include "bonfire/train/checkpoint/manifest.h"
#include "bonfire/train/report/describe.h"
#include "tests/support/expect_error.h"
#include "tests/support/scratch_folder.h"

namespace bonfire::train::checkpoint_slices_test {
namespace {

namespace fs = std::filesystem;
using bonfire::testing::ScratchFolder;

const Shape kShape{6, 4};

Variable counting(const Slice& slice, float first = 0) {
  Variable variable({slice.whole(), DType::f32, {}});
  variable.set_first_values(first_values([first](int64_t i) { return first + static_cast<float>(i); }));
  variable.keep_slice(slice);
  return variable;
}

// fc is shared out by rows, norm is the same on all ranks, and each rank has a tensor that no other has.
CheckpointContent content(int rank, int ranks, float first = 0) {
  const nn::StateDict weights{{"fc", counting(Slice::part(kShape, 0, rank, ranks), first)},
                              {"norm", counting(Slice({3}), first)},
                              {"own" + std::to_string(rank), counting(Slice({2}), first)}};
  const nn::StateDict state{
      {"fc.momentum", counting(Slice::range(kShape, 24 * rank / ranks, 24 * (rank + 1) / ranks))}};
  return {.weights = nn::StateCopy(weights),
          .optimizer = nn::StateCopy(state),
          .state = "{\"rank\": " + std::to_string(rank) + "}"};
}

// Saves on so many ranks; what each has thrown.
std::vector<std::string> save(const std::function<fs::path(int)>& folder, int64_t step, int ranks, float first = 0) {
  auto groups = comm::local_groups(ranks, {.timeout = std::chrono::seconds(60)});
  std::vector<std::string> errors(static_cast<size_t>(ranks));
  std::vector<std::thread> threads;
  for (int r = 0; r < ranks; ++r)
    threads.emplace_back([&, r] {
      try {
        CheckpointContent mine = content(r, ranks, first);
        save_checkpoint_of_ranks(*groups[static_cast<size_t>(r)], folder(r), step, mine, 2);
      } catch (const Error& error) {
        errors[static_cast<size_t>(r)] = error.what();
      }
    });
  for (std::thread& thread : threads) thread.join();
  return errors;
}

fs::path saved(const ScratchFolder& folder, int64_t step = 1, int ranks = 3) {
  for (const std::string& error : save([&](int) { return folder / "all"; }, step, ranks)) EXPECT_EQ(error, "");
  return folder / "all" / checkpoint_name(step);
}

std::vector<float> floats(const std::vector<std::byte>& bytes) {
  std::vector<float> values(bytes.size() / sizeof(float));
  std::copy(bytes.begin(), bytes.end(), reinterpret_cast<std::byte*>(values.data()));
  return values;
}

TEST(CheckpointOfSlices, EachRankWritesWhatItOwnsAndTheManifestSaysWhatThatIs) {
  ScratchFolder folder;
  const fs::path checkpoint = saved(folder);
  EXPECT_EQ(damage_of(checkpoint), std::nullopt);
  EXPECT_EQ(read_checkpoint_state(checkpoint), "{\"rank\": 0}");
  const Manifest manifest = read_manifest(checkpoint);
  EXPECT_EQ(manifest.format, 2);
  EXPECT_EQ(manifest.files.size(), 7U);
  EXPECT_EQ(manifest.files.at("weights.rank-2.safetensors").slices.at("fc"), Slice::part(kShape, 0, 2, 3));
  EXPECT_EQ(manifest.files.at("optimizer.rank-1.safetensors").slices.at("fc.momentum"), Slice::range(kShape, 8, 16));
  auto names = [&](const char* file) {
    std::vector<std::string> list;
    const auto opened = nn::SafetensorsFile::open(checkpoint / file);
    for (const nn::TensorEntry& entry : opened.entries()) list.push_back(entry.name);
    std::sort(list.begin(), list.end());
    return list;
  };
  EXPECT_EQ(names("weights.safetensors"), (std::vector<std::string>{"fc", "norm", "own0"}));
  EXPECT_EQ(names("weights.rank-1.safetensors"), (std::vector<std::string>{"fc", "own1"}));
}

TEST(CheckpointOfSlices, AnySliceOfAnyTensorIsRead) {
  ScratchFolder folder;
  const nn::TensorFiles files = open_tensors(weights_file(saved(folder)));
  EXPECT_EQ(floats(files.read("fc", Slice::range(kShape, 7, 9))), (std::vector<float>{7, 8}));
  EXPECT_EQ(floats(files.read("fc", Slice::box(kShape, {1, 1}, {3, 1}))), (std::vector<float>{5, 9, 13}));
  EXPECT_EQ(floats(files.read("own2", Slice({2}))), (std::vector<float>{0, 1}));
  EXPECT_ERROR(files.read("fc", Slice({6, 5})), DataError, "fc is f32 [6, 4] there");
  EXPECT_ERROR(files.read("bias", Slice({2})), DataError, "has no tensor called bias");

  Variable whole = counting(Slice(kShape), 100), column = counting(Slice::part(kShape, 1, 3, 4), 100);
  for (const Variable& fc : {whole, column})
    nn::load_state_dict({{"fc", fc}, {"norm", counting(Slice({3}))}}, files, {.strict = false});
  EXPECT_EQ(floats(whole.save()), floats(files.read("fc", Slice(kShape))));
  EXPECT_EQ(floats(column.save_stored()), (std::vector<float>{3, 7, 11, 15, 19, 23}));

  std::deque<std::vector<std::byte>> memory;
  const std::vector<nn::TensorEntry> all = nn::whole_entries(files, memory);
  EXPECT_EQ(all.size(), 5U);
  for (const nn::TensorEntry& entry : all) EXPECT_EQ(entry.slice, nullptr);
}

TEST(CheckpointOfSlices, ADamagedOrMissingFileOfAnyRankIsNamed) {
  for (const char* file : {"weights.safetensors", "weights.rank-2.safetensors", "optimizer.rank-1.safetensors"}) {
    ScratchFolder folder;
    saved(folder, 1);
    const fs::path newest = saved(folder, 2);
    std::fstream stream(newest / file, std::ios::in | std::ios::out | std::ios::binary);
    stream.seekp(-1, std::ios::end);
    stream.put('\x55');
    stream.close();
    EXPECT_NE(damage_of(newest).value_or("").find(std::string(file) + " is damaged"), std::string::npos);
    std::vector<std::string> skipped;
    EXPECT_EQ(newest_checkpoint(folder / "all", &skipped), folder / "all" / checkpoint_name(1));
    EXPECT_EQ(skipped.size(), 1U);
    fs::remove(newest / file);
    EXPECT_NE(damage_of(newest).value_or("").find(file), std::string::npos);
    if (std::string_view(file).starts_with("weights"))
      EXPECT_ERROR(open_tensors(weights_file(newest)), DataError, file);
  }
}

TEST(CheckpointOfSlices, APieceThatNoFileHasIsNamedAndNothingIsLoaded) {
  ScratchFolder folder;
  const fs::path checkpoint = saved(folder);
  Manifest manifest = read_manifest(checkpoint);
  manifest.files.erase("weights.rank-1.safetensors");
  write_manifest(checkpoint, manifest);
  const Variable norm = counting(Slice({3}), 50), fc = counting(Slice(kShape), 50);
  EXPECT_ERROR(
      nn::load_state_dict({{"norm", norm}, {"fc", fc}}, open_tensors(weights_file(checkpoint)), {.strict = false}),
      DataError, "of fc 8 elements of all of [6, 4] are in no file");
  EXPECT_EQ(floats(norm.save())[0], 50);
}

TEST(CheckpointOfSlices, RanksMustSeeOneFileSystem) {
  ScratchFolder folder;
  const std::vector<std::string> errors =
      save([&](int rank) { return folder / ("disk-of-" + std::to_string(rank)); }, 1, 2);
  for (const std::string& error : errors)
    EXPECT_NE(error.find("rank 1: '" + (folder / "disk-of-1").string()), std::string::npos) << error;
  EXPECT_NE(errors[0].find("need a file system that all of them see"), std::string::npos) << errors[0];
  EXPECT_FALSE(newest_checkpoint(folder / "disk-of-0"));

  // One that has such a folder too, from elsewhere.
  fs::create_directories(folder / "disk-of-1" / ("unfinished-" + checkpoint_name(1)));
  for (const std::string& error : save([&](int rank) { return folder / ("disk-of-" + std::to_string(rank)); }, 1, 2))
    EXPECT_NE(error.find("rank 0: rank 1 has written"), std::string::npos) << error;
  EXPECT_FALSE(newest_checkpoint(folder / "disk-of-0"));
}

TEST(CheckpointOfSlices, AnErrorOfOneRankIsOneOfAllAndLeavesTheLastOne) {
  ScratchFolder folder;
  const fs::path last = saved(folder, 1, 2);
  fs::create_directories(folder / "all");
  auto groups = comm::local_groups(2, {.timeout = std::chrono::seconds(60)});
  std::string errors[2];
  std::vector<std::thread> threads;
  for (int r = 0; r < 2; ++r)
    threads.emplace_back([&, r] {
      CheckpointContent mine = content(r, 2, 9);
      if (r == 1)  // a name that no file can have
        mine.weights.take({{"__metadata__", counting(Slice({2}))}});
      try {
        save_checkpoint_of_ranks(*groups[static_cast<size_t>(r)], folder / "all", 2, mine, 2);
      } catch (const DataError& error) {
        errors[r] = error.what();
      }
    });
  for (std::thread& thread : threads) thread.join();
  for (const std::string& error : errors) EXPECT_NE(error.find("rank 1: [safetensors]"), std::string::npos) << error;
  EXPECT_EQ(newest_checkpoint(folder / "all"), last);
  EXPECT_FALSE(fs::exists(folder / "all" / ("unfinished-" + checkpoint_name(2))));
}

TEST(CheckpointOfSlices, OneRankAloneDoesNotPretendToHaveAllOfIt) {
  ScratchFolder folder;
  CheckpointContent mine = content(0, 2);
  EXPECT_ERROR(save_checkpoint(folder / "all", 1, mine, 2), DataError, "ranks that hold slices save together");
}

TEST(CheckpointOfSlices, WritersWriteItTogetherWhileTrainingGoesOn) {
  ScratchFolder folder;
  auto groups = comm::local_groups(2, {.timeout = std::chrono::seconds(60)});
  std::vector<std::thread> threads;
  for (int r = 0; r < 2; ++r)
    threads.emplace_back([&, r] {
      CheckpointWriter writer(folder / "all", {.keep = 2, .ranks = groups[static_cast<size_t>(r)]});
      const Variable fc = counting(Slice::part(kShape, 1, r, 2));
      const CheckpointSource source{.weights = {{"fc", fc}}, .optimizer = {}, .state = "{}"};
      writer.prepare(source);
      for (int64_t step : {1, 2, 3}) {
        writer.save(step, source);
        fc.set_first_values(first_values([](int64_t) { return -1.0F; }));  // what was copied counts
        if (step < 3) fc.set_first_values(first_values([](int64_t i) { return static_cast<float>(i); }));
      }
      writer.finish();
    });
  for (std::thread& thread : threads) thread.join();
  const nn::TensorFiles files = open_tensors(weights_file(folder / "all" / checkpoint_name(3)));
  EXPECT_EQ(floats(files.read("fc", Slice::range(kShape, 5, 8))), (std::vector<float>{5, 6, 7}));
  EXPECT_FALSE(fs::exists(folder / "all" / checkpoint_name(1)));
}

TEST(CheckpointOfSlices, IsDescribedWithItsSlices) {
  ScratchFolder folder;
  const std::string text = describe(saved(folder)).text;
  EXPECT_NE(text.find("[2:4, 0:4] of [6, 4]"), std::string::npos) << text;
  EXPECT_NE(text.find("elements 8 to 16 of [6, 4]"), std::string::npos) << text;
}

}  // namespace
}  // namespace bonfire::train::checkpoint_slices_test
