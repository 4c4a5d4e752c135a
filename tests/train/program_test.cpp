// The program itself, in processes of its own.

#include <fcntl.h>
#include <fmt/core.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <thread>

#include "bonfire/base/random.h"
#include "bonfire/train/checkpoint.h"
#include "tests/support/scratch_folder.h"

extern char** environ;

namespace bonfire::train {
namespace {

namespace fs = std::filesystem;
using bonfire::testing::ScratchFolder;

// A process that was started, with its output in a file.
class Program {
 public:
  Program(std::vector<std::string> arguments, const fs::path& output) : output_(output) {
    arguments.insert(arguments.begin(), BONFIRE_PROGRAM);
    std::vector<char*> pointers;
    for (std::string& argument : arguments) pointers.push_back(argument.data());
    pointers.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 1, output.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
    posix_spawn_file_actions_adddup2(&actions, 1, 2);
    EXPECT_EQ(posix_spawn(&pid_, BONFIRE_PROGRAM, &actions, nullptr, pointers.data(), environ), 0);
    posix_spawn_file_actions_destroy(&actions);
  }

  void signal(int number) const { kill(pid_, number); }
  int wait() const {  // its exit status, or 128 + the signal that ended it
    int status = 0;
    EXPECT_EQ(waitpid(pid_, &status, 0), pid_);
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  }
  std::string output() const {
    std::ifstream stream(output_, std::ios::binary);
    return {std::istreambuf_iterator<char>(stream), {}};
  }
  // Until the text is in the output; false when that takes too long.
  bool prints(const std::string& text) const {
    for (int i = 0; i < 6000; ++i) {
      if (output().find(text) != std::string::npos) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return false;
  }

 private:
  fs::path output_;
  pid_t pid_ = 0;
};

std::vector<std::string> training(const ScratchFolder& folder, std::vector<std::string> more = {}) {
  std::vector<std::string> arguments{"train",      "place=cpu",  "output=" + (folder / "runs").string(),
                                     "limit=320",  "epochs=3",   "batch_size=32",
                                     "log_freq=1", "model=lenet"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

// Of the last run: one that is killed before it has saved anything is begun anew, in a folder of its own.
std::string newest_weights(const ScratchFolder& folder) {
  int last = 1;
  while (fs::exists(folder / fmt::format("runs/{}", last + 1))) ++last;
  std::optional<fs::path> checkpoint = newest_checkpoint(folder / fmt::format("runs/{}/checkpoints", last));
  if (!checkpoint) return "no checkpoint";
  std::ifstream stream(weights_file(*checkpoint), std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

std::string uninterrupted_weights() {
  ScratchFolder folder;
  Program program(training(folder), folder / "out");
  EXPECT_EQ(program.wait(), 0) << program.output();
  return newest_weights(folder);
}

TEST(Program, KilledAtAnyMomentItResumesToTheSameBits) {
  std::string expected = uninterrupted_weights();
  constexpr uint64_t kKills = 6;
  ScratchFolder folder;
  for (uint64_t i = 0; i < kKills; ++i) {
    Program program(training(folder, {"resume=auto"}), folder / "out");
    auto pause = std::chrono::microseconds(static_cast<int64_t>(uniform_at(3, 1, i) * 700'000));
    std::this_thread::sleep_for(pause);
    program.signal(SIGKILL);
    program.wait();
  }
  Program last(training(folder, {"resume=auto"}), folder / "out");
  EXPECT_EQ(last.wait(), 0) << last.output();
  EXPECT_TRUE(newest_weights(folder) == expected) << last.output();
}

TEST(Program, AnInterruptSavesAndSaysHowToGoOn) {
  ScratchFolder folder;
  Program program(training(folder, {"epochs=1000"}), folder / "out");
  EXPECT_TRUE(program.prints("step 4/10")) << program.output();
  program.signal(SIGINT);
  EXPECT_EQ(program.wait(), 130);
  EXPECT_TRUE(program.prints("resume=" + (folder / "runs/1").string())) << program.output();
  EXPECT_NE(newest_weights(folder), "no checkpoint");
}

TEST(Program, EvaluatesAndInspectsWhatItTrained) {
  ScratchFolder folder;
  Program trained(training(folder, {"epochs=1"}), folder / "out");
  ASSERT_EQ(trained.wait(), 0) << trained.output();
  std::string top1 = trained.output().substr(trained.output().find("best top-1"));
  top1 = top1.substr(11, top1.find('%') - 11);  // "63.20 "

  Program eval({"eval", (folder / "runs/1").string(), "place=cpu"}, folder / "eval");
  EXPECT_EQ(eval.wait(), 0);
  EXPECT_NE(eval.output().find("top-1 " + top1), std::string::npos) << eval.output() << trained.output();
  Program json({"eval", (folder / "runs/1").string(), "--json"}, folder / "json");
  EXPECT_EQ(json.wait(), 0);
  EXPECT_EQ(json.output().substr(0, 9), "{\"loss\": ");

  Program inspect({"inspect", (folder / "runs/1").string()}, folder / "inspect");
  EXPECT_EQ(inspect.wait(), 0);
  for (const char* part : {"step-00000010: whole", "conv1.weight", "momentum_buffer", "tensors"})
    EXPECT_NE(inspect.output().find(part), std::string::npos) << part << inspect.output();
  Program none({"inspect", (folder / "absent").string()}, folder / "none");
  EXPECT_EQ(none.wait(), 1);
  EXPECT_NE(none.output().find("neither a safetensors file"), std::string::npos);
}

TEST(Program, PacksChecksListsAndTrainsOnRecords) {
  ScratchFolder folder;
  std::string images("\0\0\x08\x03\0\0\0\x40\0\0\0\x1c\0\0\0\x1c", 16), labels("\0\0\x08\x01\0\0\0\x40", 8);
  for (int i = 0; i < 64; ++i) {
    images += std::string(28 * 28, static_cast<char>(i * 3));
    labels += static_cast<char>(i % 4);
  }
  fs::create_directory(folder / "mnist");
  for (const char* part : {"train", "t10k"}) {
    folder.put(fmt::format("mnist/{}-images-idx3-ubyte", part), images);
    folder.put(fmt::format("mnist/{}-labels-idx1-ubyte", part), labels);
  }
  auto output_of = [&](const std::vector<std::string>& arguments, int status) {
    Program program(arguments, folder / "out");
    EXPECT_EQ(program.wait(), status) << program.output();
    return program.output();
  };
  std::string source = (folder / "mnist").string(), packed = (folder / "packed").string();
  EXPECT_NE(output_of({"data", "pack", source, packed, "--shards", "4"}, 0).find("64 samples to train on"),
            std::string::npos);
  EXPECT_NE(output_of({"data", "pack", source, packed}, 1).find("is there already"), std::string::npos);
  EXPECT_NE(output_of({"data", "list", folder.path().string()}, 0).find("record shards            data=" + packed),
            std::string::npos);
  EXPECT_NE(output_of({"data", "check", packed}, 0).find("64 samples to train on, 64 to test: all whole"),
            std::string::npos);
  EXPECT_EQ(output_of({"train", "data=" + packed, "place=cpu", "epochs=1", "batch_size=16", "model=lenet",
                       "output=" + (folder / "runs").string()},
                      0)
                .find("training lenet"),
            0U);
  std::string shard = folder.get("packed/train-00002.records");
  shard[500] ^= 1;
  folder.put("packed/train-00002.records", shard);
  EXPECT_NE(output_of({"data", "check", packed, "--json"}, 1).find("train-00002.records: record 0 (sample 32)"),
            std::string::npos);
  EXPECT_NE(output_of({"train", "data=" + packed, "place=cpu", "epochs=1", "batch_size=16", "model=lenet",
                       "output=" + (folder / "runs").string()},
                      1)
                .find("train-00002.records: record 0 (sample 32)"),
            std::string::npos);
}

TEST(Program, BadInputIsAnErrorOnOneLine) {
  ScratchFolder folder;
  auto output_of = [&](const std::vector<std::string>& arguments, int status) {
    Program program(arguments, folder / "out");
    EXPECT_EQ(program.wait(), status);
    return program.output();
  };
  EXPECT_EQ(output_of({"train", "epoch=3"}, 1),
            "bonfire: [config] command line: there is no key 'epoch'; the nearest is 'epochs'\n");
  EXPECT_EQ(output_of({"train", "absent.yaml"}, 1), "bonfire: [config] there is no file absent.yaml\n");
  EXPECT_EQ(output_of({"trian"}, 2),
            "bonfire: there is no command 'trian'; the nearest is 'train' (see bonfire --help)\n");
  EXPECT_EQ(output_of({"eval", "--jsn", "runs/1"}, 2),
            "bonfire: bonfire eval has no option '--jsn'; the nearest is '--json' (see bonfire eval --help)\n");
  EXPECT_EQ(output_of({"eval"}, 2), "bonfire: bonfire eval: run is required (see bonfire eval --help)\n");
  EXPECT_NE(output_of({}, 2).find("what shall be done? train, eval"), std::string::npos);
  EXPECT_NE(output_of({"version"}, 0).find("bonfire 0."), std::string::npos);
  EXPECT_NE(output_of({"devices"}, 0).find("cpu:0"), std::string::npos);
  EXPECT_NE(output_of({"config"}, 0).find("| `batch_size` |"), std::string::npos);
}

}  // namespace
}  // namespace bonfire::train
