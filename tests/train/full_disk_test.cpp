// Logs on a disk that is full: they cost their lines, never the training.

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "bonfire/base/error.h"
#include "bonfire/train/checkpoint/checkpoint.h"
#include "bonfire/train/trainer.h"
#include "tests/support/expect_error.h"
#include "tests/support/scratch_folder.h"
#include "tests/support/small_disk.h"
#include "tests/train/course.h"
#include "tests/train/digits.h"
#include "tests/train/program.h"

namespace bonfire::train::full_disk_test {
namespace {

namespace fs = std::filesystem;
using bonfire::testing::Program;
using bonfire::testing::ScratchFolder;
using bonfire::testing::SmallDisk;

size_t count(const std::string& text, const std::string& part) {
  size_t times = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++times;
  return times;
}

std::string joined(const std::vector<std::string>& texts) {
  std::string all;
  for (const std::string& text : texts) all += text + "\n";
  return all;
}

Course train(const ScratchFolder& folder, const std::vector<std::string>& more) {
  std::vector<std::string> settings{data_of_digits(folder),
                                    "output=" + (folder / "runs").string(),
                                    "place=cpu",
                                    "model=mlp",
                                    "limit=96",
                                    "log_freq=1"};
  settings.insert(settings.end(), more.begin(), more.end());
  Course course;
  Trainer trainer(default_config(settings));
  trainer.add(std::make_unique<Witness>(course, -1));
  trainer.add(metrics_log());
  trainer.add(tensorboard_log());
  trainer.add(report_page());
  trainer.run();
  return course;
}

// /dev/full is a disk without room.
TEST(FullDisk, ALogThatCannotBeWrittenCostsItsLinesOnly) {
  ScratchFolder folder;
  Course first = train(folder, {"epochs=1", "batch_size=32"});
  const fs::path run = first.begin.folder;
  for (const char* name : {"metrics.jsonl", "report.html"}) fs::remove(run / name);
  fs::create_symlink("/dev/full", run / "metrics.jsonl");
  fs::create_directory(run / "report.html");  // a page cannot be put there
  Course second = train(folder, {"epochs=2", "batch_size=32", "resume=" + run.string()});
  EXPECT_EQ(second.end.checkpoint.filename(), checkpoint_name(6));
  const std::string notes = joined(second.notes);
  EXPECT_EQ(count(notes, "metrics.jsonl': the disk is full (No space left on device); what it will lack is said"), 1U)
      << notes;
  EXPECT_EQ(count(notes, "metrics.jsonl' lacks 6 of 6 entries: the disk is full"), 1U) << notes;
  EXPECT_EQ(count(notes, "report.html': it is not a regular file; the page is tried again"), 1U) << notes;
  EXPECT_EQ(count(notes, "there is no report of the whole run: "), 1U) << notes;
}

TEST(FullDisk, TrainingGoesOnAndSoDoTheLogsWhenThereIsRoomAgain) {
  SmallDisk disk("6m");
  if (!disk.is_there()) GTEST_SKIP() << "a file system cannot be mounted here";
  ScratchFolder folder;
  Program program({"train", data_of_digits(folder), "place=cpu", "model=lenet", "batch_size=32", "epochs=100000",
                   "eval_freq=100000", "save_freq=100000", "log_freq=1", "output=" + (disk / "runs").string()},
                  folder / "out");
  EXPECT_TRUE(program.prints("step 4/15")) << program.output();
  disk.fill();
  EXPECT_TRUE(program.prints("metrics.jsonl': the disk is full")) << program.output();
  EXPECT_TRUE(program.prints(".bonfire': the disk is full")) << program.output();
  disk.make_room();
  std::this_thread::sleep_for(std::chrono::milliseconds(300));  // some more steps
  program.signal(SIGINT);
  EXPECT_EQ(program.wait(), 130) << program.output();
  EXPECT_TRUE(newest_checkpoint(disk / "runs/1/checkpoints")) << program.output();
  for (const char* name : {"metrics.jsonl", ".bonfire"}) {
    EXPECT_EQ(count(program.output(), std::string(name) + "': the disk is full"), 1U) << program.output();
    EXPECT_EQ(count(program.output(), std::string(name) + "' lacks "), 1U) << program.output();
  }
  std::ifstream stream(disk / "runs/1/metrics.jsonl");
  std::string last;
  for (std::string line; std::getline(stream, line); last = line) EXPECT_TRUE(nlohmann::json::accept(line)) << line;
  EXPECT_EQ(nlohmann::json::parse(last).at("event"), "end");
}

TEST(FullDisk, AReadOnlyOutputIsCalledThat) {
  SmallDisk disk("64k");
  if (!disk.is_there()) GTEST_SKIP() << "a file system cannot be mounted here";
  ScratchFolder folder;
  disk.make_read_only();
  EXPECT_ERROR(
      train(folder, {"steps=1", "batch_size=32", "output=" + (disk / "runs").string()}), ConfigError,
      "/runs': it is on a file system that is mounted read-only (Read-only file system); choose another output");
}

}  // namespace
}  // namespace bonfire::train::full_disk_test
