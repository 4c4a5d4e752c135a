#include "bonfire/train/config/config.h"

#include <gtest/gtest.h>

#include <fstream>
#include <set>

#include "bonfire/base/error.h"
#include "bonfire/train/config/config_rules.h"
#include "bonfire/train/config/foreign_keys.h"
#include "tests/support/expect_error.h"
#include "tests/support/scratch_folder.h"

namespace bonfire::train::config_test {
namespace {

namespace fs = std::filesystem;
using bonfire::testing::ScratchFolder;

Config parsed(const std::string& yaml, const std::vector<std::string>& overrides = {}) {
  return parse_config(yaml, "a.yaml", overrides);
}

std::string message(const std::string& yaml, const std::vector<std::string>& overrides = {}) {
  try {
    parsed(yaml, overrides);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no ConfigError";
}

TEST(Config, NothingGivenIsTheDefault) {
  Config config = parsed("");
  EXPECT_EQ(config.model, "mnist_cnn");
  EXPECT_EQ(config.data, "generated");
  EXPECT_EQ(to_yaml(config), to_yaml(Config{}));
}

TEST(Config, ReadsEveryKindOfValue) {
  Config config = parsed(
      "seed: 18446744073709551615\n"
      "lr: 5e-2\n"
      "milestones: [30, 60.5]\n"
      "pin_memory: yes\n"
      "data: \"/a folder: with a colon\"\n"
      "num_classes: 7\n"
      "clip_grad_norm: off\n"
      "strategy:\n"
      "  use_amp: true\n"
      "  fuse_parameter_memory_size: 12.5\n");
  EXPECT_EQ(config.seed, UINT64_MAX);
  EXPECT_EQ(config.lr, 0.05);
  EXPECT_EQ(config.milestones, (std::vector<double>{30, 60.5}));
  EXPECT_TRUE(config.pin_memory);
  EXPECT_EQ(config.data, "/a folder: with a colon");
  EXPECT_EQ(config.num_classes, 7);
  EXPECT_FALSE(config.clip_grad_norm.has_value());
  EXPECT_TRUE(config.strategy.use_amp);
  EXPECT_EQ(config.strategy.fuse_parameter_memory_size, 12.5);
}

TEST(Config, OverridesWinOverTheFile) {
  Config config = parsed("lr: 1\nepochs: 5\n", {"lr=0.25", "strategy.use_amp=true", "milestones=[1, 2]", "data=a=b"});
  EXPECT_EQ(config.lr, 0.25);
  EXPECT_EQ(config.epochs, 5);
  EXPECT_TRUE(config.strategy.use_amp);
  EXPECT_EQ(config.milestones, (std::vector<double>{1, 2}));
  EXPECT_EQ(config.data, "a=b");
}

TEST(Config, IncludedFilesComeFirstAndLieBesideTheFile) {
  ScratchFolder folder;
  folder.put("base.yaml", "lr: 1\nepochs: 5\nstrategy:\n  use_amp: true\n");
  folder.put("more.yaml", "epochs: 6\n");
  folder.put("run.yaml", "include: [base.yaml, more.yaml]\nlr: 2\nstrategy:\n  accumulate_steps: 4\n");
  Config config = load_config(folder / "run.yaml");
  EXPECT_EQ(config.lr, 2);
  EXPECT_EQ(config.epochs, 6);
  EXPECT_TRUE(config.strategy.use_amp);
  EXPECT_EQ(config.strategy.accumulate_steps, 4);

  folder.put("circle.yaml", "include: circle.yaml\n");
  EXPECT_THROW(load_config(folder / "circle.yaml"), ConfigError);
  folder.put("lost.yaml", "include: absent.yaml\n");
  EXPECT_ERROR(load_config(folder / "lost.yaml"), ConfigError,
               "there is no file " + (folder / "absent.yaml").string() + "; " + (folder / "lost.yaml").string() +
                   ":1 includes it");
  folder.put("list.yaml", "lr: 1\ninclude:\n  - base.yaml\n  - gone.yaml\n");
  EXPECT_ERROR(load_config(folder / "list.yaml"), ConfigError, (folder / "list.yaml").string() + ":4 includes it");
  folder.put("map.yaml", "lr: 1\ninclude:\n  base: yaml\n");
  EXPECT_ERROR(load_config(folder / "map.yaml"), ConfigError, "include names no file");
}

TEST(Config, OfWhatMayNotBeReadItIsNotSaidThatItIsNotThere) {
  ScratchFolder folder;
  fs::create_directory(folder / "closed");
  folder.put("closed/run.yaml", "lr: 1\n");
  folder.put("own.yaml", "lr: 1\n");
  fs::permissions(folder / "closed", fs::perms::none);
  fs::permissions(folder / "own.yaml", fs::perms::none);
  fs::permissions(folder.path(), fs::perms::all);
  {
    testing::WithoutPrivileges nobody;
    EXPECT_ERROR(load_config(folder / "closed/run.yaml"), DataError, "Permission denied");
    EXPECT_ERROR(load_config(folder / "own.yaml"), DataError, "Permission denied");
    EXPECT_ERROR(load_config(folder / "absent.yaml"), ConfigError, "there is no file");
  }
  fs::permissions(folder / "closed", fs::perms::all);
}

TEST(Config, TheGuidesFileIsUnderstoodInUpperCase) {
  Config config = parsed(
      "BATCHSIZE: 32\nNUM_GPUS: 2\nEPOCHS: 90\nLR: 0.01\nWEIGHT_DECAY: 5e-4\nMOMENTUM: 0.9\nWD: 0.0005\nWORKERS: 8\n"
      "PIN_MEMORY: True\nSAVE_FREQUENCY: 5\nLOG_FREQUENCY: 100\nEVAL_FREQUENCY: 10\nDATA_PATH: /imagenet\n"
      "TRAIN_FILE: ./data/train\nTEST_FILE: ./data/val\n");
  EXPECT_EQ(config.batch_size, 32);
  EXPECT_EQ(config.num_gpus, 2);
  EXPECT_EQ(config.weight_decay, 5e-4);
  EXPECT_EQ(config.num_workers, 8);
  EXPECT_EQ(config.save_freq, Interval{5});
  EXPECT_EQ(config.log_freq, 100);
  EXPECT_EQ(config.eval_freq, Interval{10});
  EXPECT_EQ(config.data, "/imagenet");
  EXPECT_EQ(config.train_file, "./data/train");
  EXPECT_EQ(config.test_file, "./data/val");
}

TEST(Config, IsWrittenWholeAndReadBackTheSame) {
  Config config = parsed("", {"lr=0.1234567890123", "milestones=[1,2]", "data=with \"quotes\" and \\", "early_stop=3",
                              "strategy.fuse_parameter_memory_size=2"});
  std::string text = to_yaml(config);
  EXPECT_EQ(to_yaml(parsed(text)), text);
  EXPECT_EQ(parsed(text).data, config.data);
  EXPECT_EQ(parsed(text).lr, config.lr);
}

TEST(ConfigErrors, NameTheFileTheLineAndTheNearestKey) {
  EXPECT_EQ(message("lr: 1\n\nepoch: 3\n"), "[config] a.yaml:3: there is no key 'epoch'; here it is 'epochs'");
  EXPECT_EQ(message("learning_rate: 1\n"), "[config] a.yaml:1: there is no key 'learning_rate'; here it is 'lr'");
  EXPECT_EQ(
      message("strategy:\n  use_amb: true\n"),
      "[config] a.yaml:2: there is no key 'strategy.use_amb'; the nearest is 'strategy.use_amp' (`bonfire config` has "
      "them all)");
  EXPECT_EQ(
      message("", {"batchsize=3"}),
      "[config] command line: there is no key 'batchsize'; the nearest is 'batch_size' (`bonfire config` has them "
      "all)");
  EXPECT_EQ(
      message("", {"learnin_rate=3"}),
      "[config] command line: there is no key 'learnin_rate'; the nearest is 'lr' (`bonfire config` has them all)");
}

TEST(ConfigErrors, KnowWhatOtherProgramsCallAKey) {
  auto expect = [](const std::string& theirs, const std::string& ours) {
    EXPECT_EQ(message("", {theirs + "=1"}),
              "[config] command line: there is no key '" + theirs + "'; here it is '" + ours + "'");
  };
  expect("device", "place");
  expect("num_epochs", "epochs");
  expect("workers", "num_workers");
  expect("dataset", "data");
  expect("use_amp", "strategy.use_amp");
  std::set<std::string> keys;
  for (const auto& [key, values] : config_keys()) keys.insert(key);
  std::set<std::string_view> seen;
  for (const auto& [theirs, ours] : foreign_keys()) {
    EXPECT_FALSE(keys.contains(std::string(theirs))) << theirs << " is a key";
    EXPECT_TRUE(keys.contains(std::string(ours))) << ours << " is no key";
    EXPECT_TRUE(seen.insert(theirs).second) << theirs << " is there twice";
  }
}

TEST(ConfigErrors, SayWhatWasExpected) {
  EXPECT_EQ(message("epochs: three\n"), "[config] a.yaml:1: epochs is 'three', expected a whole number");
  EXPECT_EQ(message("epochs: 2.5\n"), "[config] a.yaml:1: epochs is '2.5', expected a whole number");
  EXPECT_EQ(message("lr: -1\n"), "[config] a.yaml:1: lr is -1, expected above 0");
  EXPECT_EQ(message("lr: nan\n"), "[config] a.yaml:1: lr is 'nan', expected a number");
  EXPECT_EQ(message("momentum: 1.5\n"), "[config] a.yaml:1: momentum is 1.5, expected from 0 to 1");
  EXPECT_EQ(message("batch_size: 0\n"), "[config] a.yaml:1: batch_size is 0, expected at least 1");
  EXPECT_EQ(message("num_classes: many\n"),
            "[config] a.yaml:1: num_classes is 'many', expected a whole number or auto");
  EXPECT_EQ(message("backend: smoke\n"),
            "[config] a.yaml:1: backend is 'smoke', expected one of auto, shm, gloo, mpi, nccl");
  EXPECT_EQ(message("balance: fair\n"), "[config] a.yaml:1: balance is 'fair', expected one of equal, auto");
  EXPECT_EQ(message("balance: [auto]\n"), "[config] a.yaml:1: balance is a list, expected one value");
  EXPECT_EQ(message("pin_memory: maybe\n"), "[config] a.yaml:1: pin_memory is 'maybe', expected true or false");
  EXPECT_EQ(message("lr: [1, 2]\n"), "[config] a.yaml:1: lr is a list, expected one value");
  EXPECT_EQ(message("seed: -1\n"), "[config] a.yaml:1: seed is '-1', expected a whole number from 0");
  EXPECT_NE(message("model: resnet19\n").find("resnet18"), std::string::npos);
}

TEST(ConfigErrors, SayWhatIsWrongWithTheText) {
  EXPECT_NE(message("lr: 1\n  epochs: 2\n").find("a.yaml:2"), std::string::npos) << message("lr: 1\n  epochs: 2\n");
  EXPECT_NE(message("lr:1").find("a.yaml:1: there is no space after the colon of `lr:1`; write `lr: 1`"),
            std::string::npos)
      << message("lr:1");
  EXPECT_NE(message("just words").find("(with a space after the colon)"), std::string::npos) << message("just words");
  for (const char* guides :  // the guide's file, as it stands there
       {"DATA_PATH: /path/to/data\nTRAIN_FILE:./data/train\nTEST_FILE:./data/val\n",
        "LR: 0.1\nTRAIN_FILE:./data/train"})
    EXPECT_NE(message(guides).find("a.yaml:2: there is no space after the colon of `TRAIN_FILE:./data/train`; write "
                                   "`TRAIN_FILE: ./data/train`"),
              std::string::npos)
        << message(guides);
  EXPECT_NE(message("", {"lr"}).find("expected key=value"), std::string::npos);
  EXPECT_NE(message("lr: 1\n---\nlr: 2\n").find("a.yaml:3: a second document begins here"), std::string::npos)
      << message("lr: 1\n---\nlr: 2\n");
  EXPECT_EQ(message("---\nlr: 1\n"), "no ConfigError");
  EXPECT_NE(message("", {"milestones=[[1], 2]"}).find("expected a list: [1, 2, 3]"), std::string::npos);
  EXPECT_NE(message("", {"milestones=[a: b: c]"}).find("expected a list: [1, 2, 3]"), std::string::npos);
  EXPECT_EQ(message("", {"strategy=3"}),
            "[config] command line: there is no key 'strategy'; it is a section, whose settings have values: "
            "strategy.num_threads=... (`bonfire config` has them all)");
  EXPECT_NE(message("strategy: 3\n").find("a.yaml:1: there is no key 'strategy'; it is a section"), std::string::npos);
  EXPECT_NE(message("lr: 1\nlr: 2\n").find("given twice"), std::string::npos) << message("lr: 1\nlr: 2\n");
  EXPECT_THROW(load_config("absent.yaml"), ConfigError);
}

TEST(Config, TheReferencePageIsUpToDate) {
  std::ifstream page(BONFIRE_SOURCE_DIR "/docs/configuration.md");
  std::string text{std::istreambuf_iterator<char>(page), {}};
  EXPECT_TRUE(text == config_reference()) << "write it anew: ./bonfire config > docs/configuration.md";
}

TEST(Config, EveryFileInConfigsIsUnderstood) {
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(BONFIRE_SOURCE_DIR "/configs")) {
    EXPECT_NO_THROW(load_config(entry.path())) << entry.path();
    ++files;
  }
  EXPECT_GT(files, 0);
}

TEST(Config, TheVggGuidesFileTrainsOnTwoRanksByMpi) {
  const Config config = load_config(BONFIRE_SOURCE_DIR "/configs/vgg16_dp.yaml");
  EXPECT_EQ(config.model, "vgg16");
  EXPECT_EQ(config.num_gpus, 2);
  EXPECT_EQ(config.backend, "mpi");
  EXPECT_EQ(config.batch_size, 32);
  EXPECT_EQ(config.weight_decay, 5e-4);
  EXPECT_EQ(config.milestones, (std::vector<double>{30, 60}));
}

TEST(Config, TheVggGuidesFileTrainsTheModelInTwoStages) {
  const Config config = load_config(BONFIRE_SOURCE_DIR "/configs/vgg16.yaml");
  EXPECT_EQ(config.model, "vgg16");
  EXPECT_EQ(config.num_gpus, 2);
  EXPECT_EQ(config.mesh.pipeline, 2);
  EXPECT_EQ(config.pipeline.micro_batches, 8);
  EXPECT_EQ(config.pipeline.schedule, "1f1b");
  EXPECT_EQ(config.pipeline.cut, std::vector<std::string>{"classifier"});
  EXPECT_NO_THROW(check_config(config));
}

TEST(Config, TheReferenceHasKeysDefaultsAndRanges) {
  EXPECT_NE(config_reference().find("| `batch_size` | `64` | a whole number, at least 1 |"), std::string::npos);
  EXPECT_NE(config_reference().find("| `strategy.loss_scaling` | `dynamic` |"), std::string::npos);
}

}  // namespace
}  // namespace bonfire::train::config_test
