// Runs the example programs as a user would, on small data that the tests write.

#include <fmt/core.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <zlib.h>

#include <array>
#include <csignal>
#include <cstdio>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "bonfire/base/random.h"
#include "tests/launch/launched.h"
#include "tests/support/expect_error.h"
#include "tests/support/scratch_folder.h"

namespace bonfire::examples_test {
namespace {

using testing::ChildProcess;
using testing::ScratchFolder;

void write_gzip(const std::filesystem::path& path, const std::string& content) {
  gzFile file = gzopen(path.c_str(), "wb");
  ASSERT_NE(file, nullptr);
  ASSERT_EQ(gzwrite(file, content.data(), static_cast<unsigned>(content.size())), static_cast<int>(content.size()));
  ASSERT_EQ(gzclose(file), Z_OK);
}

std::string idx_header(std::initializer_list<uint32_t> extents) {
  std::string header{0, 0, 8, static_cast<char>(extents.size())};
  for (uint32_t extent : extents)
    for (int shift : {24, 16, 8, 0}) header += static_cast<char>(extent >> shift & 0xFF);
  return header;
}

// Images of 28 × 28: noise, and a bright square whose place is the class.
void write_split(const std::filesystem::path& folder, const std::string& split, uint32_t count) {
  std::string images = idx_header({count, 28, 28}), labels = idx_header({count});
  for (uint32_t i = 0; i < count; ++i) {
    uint32_t label = philox(1, split.size(), i).word[0] % 10;
    labels += static_cast<char>(label);
    uint32_t top = 1 + label / 4 * 9, left = 1 + label % 4 * 7;
    for (uint32_t y = 0; y < 28; ++y)
      for (uint32_t x = 0; x < 28; ++x) {
        bool inside = y >= top && y < top + 6 && x >= left && x < left + 5;
        uint32_t noise = philox(2, i, y * 28 + x).word[0] % 64;
        images += static_cast<char>(inside ? 255 - noise : noise);
      }
  }
  write_gzip(folder / (split + "-images-idx3-ubyte.gz"), images);
  write_gzip(folder / (split + "-labels-idx1-ubyte.gz"), labels);
}

struct Ended {
  int status;
  std::string output;  // of both streams
};

Ended run_command(const std::string& command) {
  FILE* pipe = ::popen((command + " 2>&1").c_str(), "r");
  if (pipe == nullptr) throw std::runtime_error("cannot run " + command);
  std::string output;
  std::array<char, 4096> buffer{};
  while (size_t read = std::fread(buffer.data(), 1, buffer.size(), pipe)) output.append(buffer.data(), read);
  int status = ::pclose(pipe);
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, output};
}

Ended run(const std::string& example, const std::string& arguments = {}) {
  return run_command(std::string(BONFIRE_EXAMPLES_FOLDER) + "/" + example + " " + arguments);
}

// What the first group of `pattern` matched, each time it did.
std::vector<std::string> matches(const std::string& text, const std::string& pattern) {
  std::regex regex(pattern);
  std::vector<std::string> found;
  for (std::sregex_iterator it(text.begin(), text.end(), regex), end; it != end; ++it) found.push_back((*it)[1]);
  return found;
}

TEST(Examples, MnistLearnsAndItsParametersComeBack) {
  ScratchFolder folder;
  write_split(folder.path(), "train", 800);
  write_split(folder.path(), "t10k", 200);
  for (const char* flags :
       {"--optimizer sgd --lr 0.05", "--optimizer momentum --amp", "--optimizer adagrad", "--optimizer adam"}) {
    SCOPED_TRACE(flags);
    Ended ended = run("mnist", fmt::format("--place cpu --data {} --output {} --epochs 1 --batch_size 4 {}",
                                           folder.path().string(), (folder / "mnist.safetensors").string(), flags));
    ASSERT_EQ(ended.status, 0) << ended.output;
    EXPECT_EQ(matches(ended.output, "(epoch: 0, batch: 200, loss is: [0-9.]+)\n").size(), 1U) << ended.output;
    std::vector<std::string> accuracies = matches(ended.output, "test accuracy: ([0-9.]+)\n");
    ASSERT_EQ(accuracies.size(), 2U) << ended.output;
    EXPECT_GT(std::stod(accuracies[0]), 0.9) << ended.output;
    EXPECT_EQ(accuracies[0], accuracies[1]);
  }
}

#ifdef BONFIRE_PROGRAM
TEST(Examples, DataParallelOnTwoProcessesTrainsAsOnOne) {
  auto losses = [](const Ended& ended) {
    EXPECT_EQ(ended.status, 0) << ended.output;
    std::vector<std::string> found = matches(ended.output, "step: [0-9]+, ranks: [12], loss is: ([0-9.]+)\n");
    EXPECT_EQ(found.size(), 1U) << ended.output;
    return found.empty() ? 0 : std::stod(found[0]);
  };
  std::string two =
      std::string(BONFIRE_PROGRAM) + " launch --nproc_per_node 2 " BONFIRE_EXAMPLES_FOLDER "/data_parallel 20";
  double one = losses(run("data_parallel", "20"));
  EXPECT_NEAR(losses(run_command(two)), one, 0.002 * one);
}
#endif

TEST(Examples, InProcessOnTwoDevicesTrainsAsOnOne) {
  auto loss = [](const std::string& arguments) {
    Ended ended = run("in_process", arguments);
    EXPECT_EQ(ended.status, 0) << ended.output;
    std::vector<std::string> found = matches(ended.output, "step: 20, devices: [12], loss is: ([0-9.]+)\n");
    EXPECT_EQ(found.size(), 1U) << ended.output;
    return found.empty() ? 0 : std::stod(found[0]);
  };
  double one = loss("20 cpu");
  EXPECT_NEAR(loss("20"), one, 0.002 * one);
  Ended twice = run("in_process", "1 cpu:0 cpu");
  EXPECT_EQ(twice.status, 1);
  EXPECT_PRED_FORMAT2(::testing::IsSubstring, "cpu:0 is named twice", twice.output);
}

// The losses of every step that the example prints.
std::vector<std::string> losses_of(const std::string& example, const std::string& arguments) {
  Ended ended = run(example, arguments);
  EXPECT_EQ(ended.status, 0) << ended.output;
  return matches(ended.output, "loss is: ([0-9.]+)\n");
}

TEST(Examples, TwoHeadsOnTwoDevicesTrainAsOnOne) {
  const std::vector<std::string> losses = losses_of("two_heads", "50");
  ASSERT_EQ(losses.size(), 2U);
  EXPECT_LT(std::stod(losses[1]), std::stod(losses[0]));
  EXPECT_EQ(losses, losses_of("two_heads", "50 cpu:0 cpu:0 cpu:0"));
  EXPECT_EQ(losses, losses_of("two_heads", "50 cpu:0 cpu:1 cpu:2"));
  Ended nowhere = run("two_heads", "1 cpu:0 cpu:0 tpu");
  EXPECT_EQ(nowhere.status, 1);
  EXPECT_PRED_FORMAT2(::testing::IsSubstring, "tpu", nowhere.output);
}

TEST(Examples, AlexNetsHalvesOnTwoDevicesTrainAsOnOne) {
  const std::vector<std::string> losses = losses_of("alexnet_two_devices", "3 0.04");
  ASSERT_EQ(losses.size(), 3U);
  EXPECT_EQ(losses, losses_of("alexnet_two_devices", "3 0.04 cpu:0 cpu:0"));
}

TEST(Examples, MnistSaysWhatIsWrong) {
  ScratchFolder folder;
  Ended no_data = run("mnist", "--place cpu --data " + folder.path().string());
  EXPECT_EQ(no_data.status, 1);
  EXPECT_PRED_FORMAT2(::testing::IsSubstring, "train-images-idx3-ubyte", no_data.output);
  Ended no_optimizer = run("mnist", "--optimizer adan");
  EXPECT_NE(no_optimizer.status, 0);
  EXPECT_PRED_FORMAT2(::testing::IsSubstring, "adan", no_optimizer.output);
  Ended no_place = run("mnist", "--place tpu");
  EXPECT_EQ(no_place.status, 1);
  EXPECT_PRED_FORMAT2(::testing::IsSubstring, "tpu", no_place.output);
}

// What the ResNet prints, once, on any number of ranks.
void expect_resnets_lines(const Ended& ended, const std::string& first_line) {
  ASSERT_EQ(ended.status, 0) << ended.output;
  EXPECT_PRED_FORMAT2(::testing::IsSubstring, first_line, ended.output);
  std::vector<std::string> batches = matches(
      ended.output, "\\[Epoch 1, batch ([24])\\] loss: [0-9.]+, acc1: [01]\\.[0-9]{5}, acc5: [01]\\.[0-9]{5}\n");
  EXPECT_EQ(batches, (std::vector<std::string>{"2", "4"})) << ended.output;
  EXPECT_EQ(matches(ended.output, "\\[Epoch 1\\] test acc1: ([01]\\.[0-9]{5}), acc5: [01]\\.[0-9]{5}\n").size(), 1U)
      << ended.output;
}

TEST(Examples, ResNetReportsTopOneAndTopFive) {
  ScratchFolder folder;
  write_split(folder.path(), "train", 64);
  write_split(folder.path(), "t10k", 11);  // of which two ranks have 6 and 5
  const std::string arguments =
      "--place cpu --epochs 1 --batch_size 2 --lr 0.05 --log_freq 2 --data " + folder.path().string();
  expect_resnets_lines(run("resnet18", arguments + " --limit 8"), "devices: 1, batch_size: 2 on each, lr: 0.05\n");
#ifdef BONFIRE_PROGRAM
  Ended two =
      run_command(std::string(BONFIRE_PROGRAM) + " launch --nproc_per_node 2 " BONFIRE_EXAMPLES_FOLDER "/resnet18 " +
                  arguments + " --limit 16");
  expect_resnets_lines(two, "devices: 2, batch_size: 2 on each, lr: 0.1\n");
#endif
}

#ifdef BONFIRE_PROGRAM
TEST(Examples, AProgramThatNeverJoinsItsRanksIsTold) {
  ScratchFolder folder;
  write_split(folder.path(), "train", 64);
  write_split(folder.path(), "t10k", 10);
  const std::string mnist = fmt::format("{}/mnist --place cpu --epochs 1 --data {} --output {}",
                                        BONFIRE_EXAMPLES_FOLDER, folder.path().string(), (folder / "w").string());
  const std::string told = "has not called fleet::init\\(\\): (2) copies of its model train, each for itself";
  Ended two = run_command(std::string(BONFIRE_PROGRAM) + " launch --nproc_per_node 2 " + mnist);
  EXPECT_EQ(two.status, 0) << two.output;
  EXPECT_EQ(matches(two.output, told).size(), 1U) << two.output;
  EXPECT_EQ(matches(run_command(mnist).output, "(fleet)").size(), 0U);
  Ended joined = run_command(std::string(BONFIRE_PROGRAM) + " launch --nproc_per_node 2 " BONFIRE_EXAMPLES_FOLDER
                                                            "/data_parallel 2");
  EXPECT_EQ(matches(joined.output, told).size(), 0U) << joined.output;
}
#endif

TEST(Examples, OwnTrainerLearnsReportsResumesAndTrainsOnTwoRanks) {
  ScratchFolder folder;
  const std::string settings = fmt::format("place=cpu epochs=4 output={}", (folder / "runs").string());
  auto best = [](const Ended& ended) {
    EXPECT_EQ(ended.status, 0) << ended.output;
    std::vector<std::string> found = matches(ended.output, "best rmse: ([0-9.]+)\n");
    EXPECT_EQ(found.size(), 1U) << ended.output;
    return found.empty() ? 1 : std::stod(found[0]);
  };
  Ended alone = run("own_trainer", settings);
  const double one = best(alone);
  EXPECT_LT(one, 0.25) << alone.output;  // of a hill with a deviation of 0.5
  EXPECT_EQ(matches(alone.output, "(callback: epoch [1-4], rmse)").size(), 4U) << alone.output;
  for (const char* file : {"report.html", "metrics.jsonl", "best.safetensors"})
    EXPECT_TRUE(std::filesystem::exists(folder / "runs/1" / file)) << file;
  Ended longer = run("own_trainer", fmt::format("resume={} epochs=6", (folder / "runs/1").string()));
  EXPECT_LT(best(longer), one);
  EXPECT_PRED_FORMAT2(::testing::IsSubstring, "resumed from", longer.output);
  Ended refused = run("own_trainer", settings + " model=lenet");
  EXPECT_EQ(refused.status, 1);
  EXPECT_PRED_FORMAT2(::testing::IsSubstring, "model has no meaning here", refused.output);
#ifdef BONFIRE_PROGRAM
  Ended two =
      run_command(std::string(BONFIRE_PROGRAM) +
                  " launch --nproc_per_node 2 " BONFIRE_EXAMPLES_FOLDER "/own_trainer batch_size=16 " + settings);
  EXPECT_NEAR(best(two), one, 0.05 * one);
  Ended eval = run_command(std::string(BONFIRE_PROGRAM) + " eval " + (folder / "runs/1").string());
  EXPECT_EQ(eval.status, 1);
  EXPECT_PRED_FORMAT2(::testing::IsSubstring, "a program's own task (regression)", eval.output);
#endif
}

#ifdef BONFIRE_PROGRAM
// The trainer sees to it, whichever program it is in.
TEST(Examples, OwnTrainerGoesOnWithItsRunWhenTheLauncherStartsItAgain) {
  ScratchFolder folder;
  const std::filesystem::path runs = folder / "runs";
  ChildProcess job({BONFIRE_PROGRAM, "launch", "--nproc_per_node", "2", "--max_restarts", "1",
                    BONFIRE_EXAMPLES_FOLDER "/own_trainer", "place=cpu", "epochs=60", "batch_size=16",
                    fmt::format("output={}", runs.string())},
                   testing::clean({{"BONFIRE_TEST", folder.path().string()}}));
  EXPECT_NE(job.read_line("epoch 1/60 done"), "") << job.output();
  while (!std::filesystem::exists(runs / "1/checkpoints/step-00000064/manifest.json") && job.read_line("epoch") != "") {
  }
  const int process = testing::process_of_rank(1, folder.path().string());
  ASSERT_GT(process, 0) << job.output();
  ::kill(process, SIGKILL);
  EXPECT_EQ(job.wait(), 0) << job.output();
  testing::expect_mentions(job.output(), {"restart 1 of 1", "resumed from", "best rmse"});
  EXPECT_FALSE(std::filesystem::exists(runs / "2")) << job.output();
}
#endif

TEST(Examples, CustomOpHasARightGradientAndLearns) {
  Ended ended = run("custom_op");
  ASSERT_EQ(ended.status, 0) << ended.output;
  for (const std::string& error : matches(ended.output, "by ([0-9.e-]+) at")) EXPECT_LT(std::stod(error), 1e-3);
  std::vector<std::string> losses = matches(ended.output, "loss is: ([0-9.]+)\n");
  ASSERT_EQ(losses.size(), 5U) << ended.output;
  EXPECT_LT(std::stod(losses.back()), 0.02) << ended.output;
}

TEST(Examples, ControlFlowCompilesEachGraphOnceAndSaysWhy) {
  Ended ended = run("control_flow");
  ASSERT_EQ(ended.status, 0) << ended.output;
  std::vector<std::string> depths = matches(ended.output, "depth: ([0-9]),");
  EXPECT_GE(std::set<std::string>(depths.begin(), depths.end()).size(), 2U) << ended.output;
  std::vector<std::string> compiled = matches(ended.output, "compiled plans: ([0-9]+)"),
                           hits = matches(ended.output, "cache hits: ([0-9]+)");
  ASSERT_EQ(compiled.size(), 1U) << ended.output;
  EXPECT_LT(std::stoi(compiled[0]), 15);
  EXPECT_GT(std::stoi(hits[0]), 100);
  EXPECT_EQ(std::to_string(matches(ended.output, "plan [0-9]+: (.+)\n").size()), compiled[0]) << ended.output;
}

}  // namespace
}  // namespace bonfire::examples_test
