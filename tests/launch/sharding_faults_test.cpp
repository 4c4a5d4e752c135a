// A rank of a run with strategy.sharding is killed at a random moment, and the run goes on with another number of ranks
// and at another level: it ends where an undisturbed run without sharding does, with the same bits where the number of
// ranks is the same.
//
//   BONFIRE_SHARDING_KILLS=20 test_launch --gtest_filter=ShardingFaults.*       for a long look; else 2
//   BONFIRE_FAULT_SEED=17 ...                                                   from this trial on

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <random>

#include "bonfire/nn/tensor_files.h"
#include "bonfire/train/checkpoint/checkpoint.h"
#include "tests/launch/relayed_job.h"
#include "tests/launch/trained.h"

namespace bonfire::launch::sharding_faults_test {
namespace {

using testing::ChildProcess;
using testing::clean;
using testing::joined;
using testing::ScratchFolder;
using testing::Words;

constexpr int kSteps = 60, kSamples = 192, kBatch = 16;  // of all ranks

int number_in(const char* variable, int otherwise) {
  const char* text = std::getenv(variable);
  return text == nullptr ? otherwise : std::atoi(text);
}

struct Way {
  int ranks;
  const char* sharding;
};

// Made of its number alone.
struct Trial {
  int number;
  Way first, second;
  int rank, step;
  std::chrono::milliseconds after;  // its end

  static Trial of(int number) {
    std::mt19937 random(static_cast<unsigned>(number));
    auto below = [&](unsigned end) { return static_cast<int>(random() % end); };
    constexpr const char* kLevels[] = {"optimizer", "gradients", "parameters", "off"};
    const Way first{2 << below(2), kLevels[below(3)]}, second{1 << below(3), kLevels[below(4)]};
    return {.number = number,
            .first = first,
            .second = second,
            .rank = below(static_cast<unsigned>(first.ranks)),
            .step = 15 + below(kSteps - 25),
            .after = std::chrono::milliseconds(below(20))};
  }
  std::string line() const {
    constexpr int kEpoch = kSamples / kBatch;  // steps
    return fmt::format("epoch {}/{}, step {}/{}:", (step - 1) / kEpoch + 1, kSteps / kEpoch, (step - 1) % kEpoch + 1,
                       kEpoch);
  }
};

// A command in a folder of its own.
class ShardedTraining {
 public:
  explicit ShardedTraining(const ScratchFolder& data) : data_(data) {}

  std::unique_ptr<ChildProcess> begin(const Way& way) {
    return started(way, {train::data_of_digits(data_), "place=cpu", "model=lenet", fmt::format("limit={}", kSamples),
                         "optimizer=momentum", "lr=0.02", "save_freq=5 steps", "keep_last=2", "log_freq=1",
                         "epochs=100", fmt::format("steps={}", kSteps), "output=" + (folder_ / "runs").string()});
  }
  std::unique_ptr<ChildProcess> go_on(const Way& way) {
    return started(way, {"resume=" + (folder_ / "runs/1").string()});
  }
  std::string mark() const { return folder_.path().string(); }

  // At the end, whole.
  std::map<std::string, std::vector<float>> weights() const {
    std::map<std::string, std::vector<float>> all;
    const auto checkpoint = folder_ / fmt::format("runs/1/checkpoints/step-{:08}", kSteps);
    const nn::TensorFiles files = train::open_tensors(train::weights_file(checkpoint));
    for (const auto& entry : files.entries()) {
      const std::vector<std::byte> bytes = files.read(entry.name, Slice(entry.whole()));
      std::vector<float>& values = all[entry.name];
      values.resize(bytes.size() / sizeof(float));
      std::memcpy(values.data(), bytes.data(), bytes.size());
    }
    return all;
  }

 private:
  std::unique_ptr<ChildProcess> started(const Way& way, const Words& settings) {
    const Words words{BONFIRE_PROGRAM,
                      "train",
                      "--nproc",
                      std::to_string(way.ranks),
                      fmt::format("batch_size={}", kBatch / way.ranks),
                      fmt::format("strategy.sharding={}", way.sharding),
                      "strategy.cpu_threads=1"};
    return std::make_unique<ChildProcess>(joined(words, settings),
                                          clean({{"BONFIRE_TEST", mark()}, {"BONFIRE_TUNE", "off"}}));
  }

  const ScratchFolder& data_;
  ScratchFolder folder_;
};

TEST(ShardingFaults, ARunGoesOnWithOtherRanksAtAnotherLevel) {
  const int first = number_in("BONFIRE_FAULT_SEED", 1), end = first + number_in("BONFIRE_SHARDING_KILLS", 2);
  ScratchFolder data;
  std::map<int, std::map<std::string, std::vector<float>>> undisturbed;  // by ranks
  for (int number = first; number < end && !HasFailure(); ++number) {
    const Trial trial = Trial::of(number);
    SCOPED_TRACE(fmt::format("trial {}: {} ranks, {}; rank {} is killed {} ms after step {}; then {} ranks, {}", number,
                             trial.first.ranks, trial.first.sharding, trial.rank, trial.after.count(), trial.step,
                             trial.second.ranks, trial.second.sharding));
    auto& expected = undisturbed[trial.first.ranks];
    if (expected.empty()) {
      ShardedTraining run(data);
      auto job = run.begin({trial.first.ranks, "off"});
      ASSERT_EQ(job->wait(), 0) << job->output();
      expected = run.weights();
    }
    ShardedTraining run(data);
    auto killed = run.begin(trial.first);
    ASSERT_NE(killed->read_line(trial.line()), "") << killed->output();
    std::this_thread::sleep_for(trial.after);
    const int process = testing::process_of_rank(trial.rank, run.mark());
    ASSERT_GT(process, 1) << "it is over already\n" << killed->output();
    ::kill(process, SIGKILL);
    EXPECT_NE(killed->wait(), 0);
    auto resumed = run.go_on(trial.second);
    ASSERT_EQ(resumed->wait(), 0) << killed->output() << resumed->output();
    const auto found = run.weights();
    ASSERT_EQ(found.size(), expected.size());
    for (const auto& [name, values] : expected) {
      const std::vector<float>& own = found.at(name);
      ASSERT_EQ(own.size(), values.size()) << name;
      if (trial.first.ranks == trial.second.ranks) {
        EXPECT_EQ(own, values) << name;
        continue;
      }
      for (size_t i = 0; i < own.size(); ++i) ASSERT_NEAR(own[i], values[i], 1e-3) << name;
    }
  }
}

}  // namespace
}  // namespace bonfire::launch::sharding_faults_test
