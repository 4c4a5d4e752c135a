#include "bonfire/train/checkpoint/fingerprint.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "bonfire/train/report/describe.h"
#include "bonfire/train/trainer.h"
#include "tests/support/scratch_folder.h"
#include "tests/train/digits.h"

namespace bonfire::train::fingerprint_test {
namespace {

namespace fs = std::filesystem;
using bonfire::testing::ScratchFolder;
using Words = std::vector<std::string>;

Fingerprint of(const Words& settings) {
  const Config config = default_config(settings);
  return fingerprint_of(config, open_data(config));
}

TEST(Fingerprint, IsTheSameEachTimeAndThroughAFile) {
  ScratchFolder folder;
  const std::string data = data_of_digits(folder);
  const Fingerprint one = of({data, "lr=0.5"}), two = of({data, "lr=0.5"});
  EXPECT_EQ(hash_of(one), hash_of(two));
  EXPECT_EQ(hash_of(one), hash_of(fingerprint_from(nlohmann::json::parse(to_json(one).dump()))));
  EXPECT_EQ(one.train.samples, 480);
  EXPECT_EQ(one.test.samples, 41);
  EXPECT_TRUE(other_experiment(one, two).empty());
}

// All settings, the seed and the content are in it; where the run is kept is not.
TEST(Fingerprint, DiffersWithSettingsSeedAndContent) {
  ScratchFolder folder;
  const std::string data = data_of_digits(folder);
  const std::string before = hash_of(of({data}));
  for (const char* setting : {"lr=0.5", "seed=2", "strategy.use_amp=true", "flip=0.5"})
    EXPECT_NE(hash_of(of({data, setting})), before) << setting;
  EXPECT_EQ(hash_of(of({data, "output=elsewhere"})), before);
  for (const char* name : {"train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte"}) {
    const std::string file = std::string("digits/") + name, kept = folder.get(file);
    std::string changed = kept;
    changed[name[6] == 'l' ? 8 : 16 + 100] ^= 1;  // of the first sample
    folder.put(file, changed);
    EXPECT_NE(hash_of(of({data})), before) << name;
    EXPECT_EQ(other_experiment(of({data}), of({data})).size(), 0U);
    folder.put(file, kept);
  }
  EXPECT_EQ(hash_of(of({data})), before);
}

TEST(Fingerprint, OfAnotherExperimentSaysInWhichWay) {
  ScratchFolder folder;
  const std::string data = data_of_digits(folder);
  const Fingerprint before = of({data});
  EXPECT_EQ(other_experiment(before, of({data, "lr=0.5", "epochs=9", "batch_size=3", "num_workers=2"})), Words{});
  EXPECT_EQ(other_experiment(before, of({data, "seed=7", "limit=9"})),
            (Words{"seed was 1 and is 7", "limit was off and is 9"}));
  EXPECT_EQ(other_experiment(before, of({"data=generated"})).size(), 2U);
}

TEST(Fingerprint, IsInEveryCheckpointAndShownByInspect) {
  ScratchFolder folder;
  const Words settings{data_of_digits(folder),
                       "output=" + (folder / "runs").string(),
                       "model=mlp",
                       "place=cpu",
                       "limit=64",
                       "batch_size=16",
                       "epochs=2"};
  Trainer(default_config(settings)).run();
  int checkpoints = 0;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder / "runs/1/checkpoints")) {
    const std::optional<Fingerprint> print = fingerprint_in(entry.path());
    ASSERT_TRUE(print) << entry.path();
    EXPECT_EQ(hash_of(*print), hash_of(of(settings)));
    EXPECT_NE(describe(entry.path()).text.find("fingerprint " + hash_of(*print)), std::string::npos);
    ++checkpoints;
  }
  EXPECT_EQ(checkpoints, 2);
}

}  // namespace
}  // namespace bonfire::train::fingerprint_test
