// A run whose checkpoint several ranks have written as slices, as `bonfire` sees it: whatever reads weights makes the
// same of it as of the whole.

#include <gtest/gtest.h>

#include "bonfire/train/checkpoint/checkpoint.h"
#include "bonfire/train/checkpoint/manifest.h"
#include "tests/support/scratch_folder.h"
#include "tests/train/as_ranks.h"
#include "tests/train/digits.h"
#include "tests/train/program.h"

namespace bonfire::train::sliced_run_test {
namespace {

namespace fs = std::filesystem;
using bonfire::testing::Program;
using bonfire::testing::ScratchFolder;
using Words = std::vector<std::string>;

constexpr int kRanks = 3;

std::string printed(const ScratchFolder& folder, const Words& arguments) {
  Program program(arguments, folder / "output");
  EXPECT_EQ(program.wait(), 0) << program.output();
  return program.output();
}

// Tensors are cut by rows, by columns and into ranges of their elements in turn.
Slice cut(size_t number, const Shape& shape, int rank) {
  const int64_t count = shape.count();
  if (number % 3 == 0) return Slice::part(shape, 0, rank, kRanks);
  if (number % 3 == 1) return Slice::part(shape, -1, rank, kRanks);
  return Slice::range(shape, count * rank / kRanks, count * (rank + 1) / kRanks);
}

nn::StateCopy part_of(const nn::TensorFiles& files, int rank) {
  nn::StateDict state;
  for (const nn::TensorEntry& entry : files.entries()) {
    const Variable variable({entry.shape, entry.dtype, {}}, entry.name);
    if (entry.shape.rank() > 0) variable.keep_slice(cut(state.size(), entry.shape, rank));
    variable.load(files.read(entry.name, Slice(entry.shape)));
    state.push_back({entry.name, variable});
  }
  return nn::StateCopy(state);
}

// The checkpoint again, as ranks write it that have shared it out.
void write_as_slices(const fs::path& checkpoint, int64_t step) {
  const nn::TensorFiles weights = open_tensors(weights_file(checkpoint)),
                        optimizer = open_tensors(optimizer_file(checkpoint));
  for (const std::string& error : as_ranks(kRanks, [&](int rank) {
         CheckpointContent content{.weights = part_of(weights, rank),
                                   .optimizer = part_of(optimizer, rank),
                                   .state = read_checkpoint_state(checkpoint),
                                   .metadata = weights.metadata()};
         fleet::group().barrier();  // all have read it
         save_checkpoint_of_ranks(fleet::group(), checkpoint.parent_path(), step, content, 1);
       }))
    EXPECT_EQ(error, "");
}

std::map<std::string, std::vector<std::byte>> tensors_in(const fs::path& file) {
  std::map<std::string, std::vector<std::byte>> tensors;
  const nn::TensorFiles files = nn::TensorFiles::open(file);
  for (const nn::TensorEntry& entry : files.entries()) tensors[entry.name] = files.read(entry.name, Slice(entry.shape));
  return tensors;
}

// What the program makes of a run.
struct Answers {
  std::string evaluation;
  std::map<std::string, std::vector<std::byte>> exported, begun_with;

  explicit Answers(const ScratchFolder& folder) {
    const std::string run = (folder / "runs/1").string(), file = (folder / "all.safetensors").string();
    evaluation = printed(folder, {"eval", run, "--json"});
    printed(folder, {"export", run, file, "--replace"});
    exported = tensors_in(file);
    // At a rate that changes no number.
    const std::string more = (folder / "more").string();
    printed(folder, {"train", data_of_digits(folder), "place=cpu", "model=lenet", "limit=32", "epochs=1",
                     "batch_size=32", "lr=1e-30", "optimizer=sgd", "init_from=" + run, "output=" + more});
    printed(folder, {"export", more + "/1", file, "--replace"});
    begun_with = tensors_in(file);
    fs::remove_all(more);
  }
};

TEST(SlicedRun, IsEvaluatedExportedAndBegunWithLikeAnyOther) {
  ScratchFolder folder;
  printed(folder, {"train", data_of_digits(folder), "place=cpu", "model=lenet", "limit=96", "epochs=1", "batch_size=32",
                   "output=" + (folder / "runs").string()});
  const Answers whole(folder);
  EXPECT_EQ(whole.exported.size(), 10U);
  EXPECT_EQ(whole.begun_with, whole.exported);

  const fs::path run = folder / "runs/1", digits = folder / "digits/t10k-images-idx3-ubyte";
  const Words predict{"predict", run.string(), digits.string(), "--json"};
  const std::string predicted = printed(folder, predict);
  const fs::path checkpoint = run / "checkpoints" / checkpoint_name(3);
  write_as_slices(checkpoint, 3);
  EXPECT_EQ(read_manifest(checkpoint).format, 2);
  EXPECT_TRUE(fs::exists(checkpoint / "weights.rank-2.safetensors"));
  EXPECT_EQ(printed(folder, predict), predicted);
  EXPECT_NE(printed(folder, {"inspect", run.string()}).find("step-00000003: whole"), std::string::npos);

  fs::remove(run / "best.safetensors");  // what is read now is in the checkpoint alone
  const Answers slices(folder);
  EXPECT_EQ(slices.evaluation, whole.evaluation);
  EXPECT_EQ(slices.exported, whole.exported);
  EXPECT_EQ(slices.begun_with, whole.exported);
  EXPECT_EQ(printed(folder, predict), predicted);
}

}  // namespace
}  // namespace bonfire::train::sliced_run_test
