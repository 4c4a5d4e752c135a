#include "bonfire/train/checkpoint/run_lock.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "bonfire/base/error.h"
#include "bonfire/train/checkpoint/checkpoint.h"
#include "tests/support/expect_error.h"
#include "tests/support/scratch_folder.h"
#include "tests/train/digits.h"
#include "tests/train/program.h"

namespace bonfire::train::run_lock_test {
namespace {

namespace fs = std::filesystem;
using bonfire::testing::Program;
using bonfire::testing::ScratchFolder;
using Words = std::vector<std::string>;

nlohmann::json owner_in(const fs::path& file) { return nlohmann::json::parse(std::ifstream(file)); }

// As if it had been written by another owner: into the same file.
void put_owner(const fs::path& file, nlohmann::json owner) {
  std::ofstream(file, std::ios::trunc).flush();
  struct stat about {};
  ASSERT_EQ(::stat(file.c_str(), &about), 0);
  owner["file"] = about.st_ino;
  std::ofstream(file) << owner.dump();
}

TEST(RunLock, SaysWhoHasTheRunAndGoesWithIt) {
  ScratchFolder folder;
  nlohmann::json owner;
  {
    RunLock lock(folder.path());
    EXPECT_EQ(lock.taken_over_from(), "");
    owner = owner_in(folder / "lock");
    EXPECT_EQ(owner.at("process"), ::getpid());
    EXPECT_ERROR(RunLock(folder.path()), ConfigError,
                 folder.path().string() + " is being trained by process " + std::to_string(::getpid()));
    EXPECT_ERROR(RunLock(folder.path()), ConfigError, owner.at("since").get<std::string>());
  }
  EXPECT_FALSE(fs::exists(folder / "lock"));
  RunLock again(folder.path());
}

TEST(RunLock, ADeadOwnersIsTakenOver) {
  ScratchFolder folder;
  nlohmann::json owner;
  {
    RunLock lock(folder.path());
    owner = owner_in(folder / "lock");
  }
  owner["began"] = owner["began"].get<int64_t>() - 1;  // the number is in use again, by a process that began later
  put_owner(folder / "lock", owner);
  EXPECT_NE(RunLock(folder.path()).taken_over_from().find("process " + std::to_string(::getpid())), std::string::npos);
  owner["boot"] = "another boot of this machine";
  put_owner(folder / "lock", owner);
  EXPECT_NE(RunLock(folder.path()).taken_over_from(), "");
  folder.put("lock", "{\"host\": \"hal");  // it died while it wrote
  EXPECT_EQ(RunLock(folder.path()).taken_over_from(), "");
}

// Where the file system knows no locks, the process that is named is looked for.
TEST(RunLock, AnOwnerThatLivesKeepsIt) {
  ScratchFolder folder;
  nlohmann::json owner;
  {
    RunLock lock(folder.path());
    owner = owner_in(folder / "lock");
  }
  put_owner(folder / "lock", owner);
  EXPECT_ERROR(RunLock(folder.path()), ConfigError, "is being trained by");
  EXPECT_TRUE(fs::exists(folder / "lock"));
  // In a copy of the folder nobody holds anything.
  fs::create_directory(folder / "copy");
  fs::copy_file(folder / "lock", folder / "copy/lock");
  RunLock(folder / "copy");
}

TEST(RunLock, OfAnotherHostItSaysWhoAndWhatToDo) {
  ScratchFolder folder;
  nlohmann::json owner;
  {
    RunLock lock(folder.path());
    owner = owner_in(folder / "lock");
  }
  owner["host"] = "node7";
  owner["boot"] = "of node7";
  put_owner(folder / "lock", owner);
  EXPECT_ERROR(RunLock(folder.path()), ConfigError, "on node7, since");
  EXPECT_ERROR(RunLock(folder.path()), ConfigError, "If it is gone, remove " + (folder / "lock").string());
}

Words training(const ScratchFolder& folder, const Words& more) {
  Words words{"train",     data_of_digits(folder), "place=cpu",  "output=" + (folder / "runs").string(),
              "limit=320", "batch_size=32",        "log_freq=1", "model=lenet"};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

bool begins(const Program& program, const fs::path& checkpoint) {
  for (int i = 0; i < 6000 && !fs::exists(checkpoint); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  return fs::exists(checkpoint) && program.prints("step 1/10");
}

TEST(RunLock, TwoJobsCannotTrainOneRunAndAKilledOneLeavesItToTheNext) {
  ScratchFolder folder;
  const fs::path run = folder / "runs/1";
  Program first(training(folder, {"epochs=100000"}), folder / "first");
  ASSERT_TRUE(begins(first, run / "checkpoints/step-00000010/manifest.json")) << first.output();
  for (const std::string& resume : {"resume=" + run.string(), std::string("resume=auto")}) {
    Program second(training(folder, {resume, "epochs=100000"}), folder / "second");
    EXPECT_EQ(second.wait(), 1);
    EXPECT_NE(second.output().find("is being trained by process "), std::string::npos) << second.output();
  }
  first.signal(SIGKILL);
  first.wait();
  EXPECT_TRUE(fs::exists(run / "lock"));
  Program third({"train", "resume=" + run.string(), "epochs=100000"}, folder / "third");
  EXPECT_TRUE(third.prints("which is gone: taken over")) << third.output();
  EXPECT_TRUE(third.prints("step 10/10")) << third.output();
  third.signal(SIGINT);
  EXPECT_EQ(third.wait(), 130) << third.output();
  EXPECT_FALSE(fs::exists(run / "lock"));
}

}  // namespace
}  // namespace bonfire::train::run_lock_test
