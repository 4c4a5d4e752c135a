// A rank of two replicas in two stages each is killed at a random moment: it is named, with the stage that it had and
// where in their schedules the others waited for it; the job starts again from its checkpoint and ends with the bits of
// a run that nobody has disturbed.
//
//   BONFIRE_STAGE_KILLS=30 test_launch --gtest_filter=PipelineFaults.*       for a long look; else 3
//   BONFIRE_FAULT_SEED=17 ...                                                from this trial on

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <random>
#include <regex>
#include <set>
#include <span>

#include "bonfire/base/md5.h"
#include "tests/launch/relayed_job.h"
#include "tests/launch/trained.h"
#include "tests/support/expect_error.h"

namespace bonfire::launch::pipeline_faults_test {
namespace {

using testing::ChildProcess;
using testing::clean;
using testing::expect_mentions;
using testing::joined;
using testing::ScratchFolder;
using testing::Words;

constexpr int kRanks = 4, kStages = 2, kSteps = 80;

int number_in(const char* variable, int otherwise) {
  const char* text = std::getenv(variable);
  return text == nullptr ? otherwise : std::atoi(text);
}

// Made of its number alone.
struct Trial {
  int number, rank;
  const char* schedule;
  int step;
  std::chrono::milliseconds after;  // its end

  static Trial of(int number) {
    std::mt19937 random(static_cast<unsigned>(number));
    auto below = [&](unsigned end) { return static_cast<int>(random() % end); };
    constexpr const char* kSchedules[] = {"1f1b", "zero_bubble", "gpipe"};
    const int rank = below(kRanks);
    return {.number = number,
            .rank = rank,
            .schedule = kSchedules[number % 3],
            .step = 3 + below(kSteps - 20),
            .after = std::chrono::milliseconds(below(20))};
  }
  int stage() const { return rank / (kRanks / kStages); }  // ranks along data are neighbours
};

class Job {
 public:
  Job(const ScratchFolder& data, const char* schedule) {
    const Words words{BONFIRE_PROGRAM,
                      "launch",
                      "--nproc_per_node",
                      std::to_string(kRanks),
                      "--max_restarts",
                      "2",
                      "bonfire",
                      "train",
                      train::data_of_digits(data),
                      "place=cpu",
                      "model=lenet",
                      "limit=203",
                      "batch_size=16",
                      "drop_last=false",
                      "optimizer=adam",
                      "lr=0.001",
                      "ema_decay=0.9",
                      "mesh.pipeline=2",
                      "pipeline.micro_batches=4",
                      "pipeline.cut=[conv2]",
                      fmt::format("pipeline.schedule={}", schedule),
                      "eval_freq=40 steps",
                      "save_freq=10 steps",
                      "keep_last=2",
                      "log_freq=1",
                      "epochs=100",
                      fmt::format("steps={}", kSteps),
                      "output=" + (folder_ / "runs").string()};
    process_ = std::make_unique<ChildProcess>(words, clean({{"BONFIRE_TEST", mark()}, {"BONFIRE_TUNE", "off"}}));
  }

  ChildProcess& process() { return *process_; }
  std::string mark() const { return folder_.path().string(); }

  // MD5 of everything that the last checkpoint has, and of the best weights.
  std::map<std::string, std::string> bits() const {
    // A job that is killed before its first checkpoint begins another run.
    const std::filesystem::path second = folder_ / "runs/2";
    const std::filesystem::path run = std::filesystem::exists(second) ? second : folder_ / "runs/1";
    std::map<std::string, std::string> all;
    auto note = [&](const std::filesystem::path& file) {
      std::ifstream stream(file, std::ios::binary);
      const std::string text{std::istreambuf_iterator<char>(stream), {}};
      all[file.filename()] = base::md5(std::as_bytes(std::span(text)));
    };
    const std::filesystem::path last = run / fmt::format("checkpoints/step-{:08}", kSteps);
    if (!std::filesystem::exists(last)) return all;
    for (const auto& entry : std::filesystem::directory_iterator(last))
      if (entry.path().extension() == ".safetensors") note(entry.path());
    note(run / "best.safetensors");
    return all;
  }

 private:
  ScratchFolder folder_;
  std::unique_ptr<ChildProcess> process_;
};

void expect_named_and_mended(const Trial& trial, Job& job, const std::map<std::string, std::string>& bits) {
  EXPECT_EQ(job.process().wait(), 0) << job.process().output();
  const std::string& output = job.process().output();
  const std::string report = testing::first_report(output);
  EXPECT_NE(report.find(fmt::format("rank {} (process ", trial.rank)), std::string::npos) << output;
  EXPECT_NE(report.find("was killed by signal 9"), std::string::npos) << output;
  const std::regex where(
      fmt::format("\\[pipeline\\] stage [01] of 2, (item [0-9]+ of its schedule \\([A-Z]+ |at the "
                  "end of its schedule|REDUCE|between two schedules)[^\\n]*rank {} is {} of 2 along the pipeline",
                  trial.rank, trial.stage()));
  EXPECT_TRUE(std::regex_search(output, where)) << output;
  expect_mentions(output, {"restart 1 of 2"});
  EXPECT_EQ(job.bits(), bits) << output;
}

TEST(PipelineFaults, AKilledRankIsNamedWithItsStageAndTheJobEndsWithTheSameBits) {
  const int first = number_in("BONFIRE_FAULT_SEED", 1), end = first + number_in("BONFIRE_STAGE_KILLS", 3);
  ScratchFolder data;
  std::map<std::string, std::map<std::string, std::string>> bits;  // of undisturbed runs, by schedule
  for (int number = first; number < end && !HasFailure(); ++number) {
    const Trial trial = Trial::of(number);
    SCOPED_TRACE(fmt::format("trial {}: rank {} is killed {} ms after step {}, {}", number, trial.rank,
                             trial.after.count(), trial.step, trial.schedule));
    auto& expected = bits[trial.schedule];
    if (expected.empty()) {
      Job undisturbed(data, trial.schedule);
      ASSERT_EQ(undisturbed.process().wait(), 0) << undisturbed.process().output();
      expected = undisturbed.bits();
      ASSERT_GT(expected.size(), 6U);
    }
    Job job(data, trial.schedule);
    ASSERT_NE(job.process().read_line(fmt::format("step {}/", trial.step)), "") << job.process().output();
    std::this_thread::sleep_for(trial.after);
    const int process = testing::process_of_rank(trial.rank, job.mark());
    ASSERT_GT(process, 1) << "it is over already\n" << job.process().output();
    ::kill(process, SIGKILL);
    expect_named_and_mended(trial, job, expected);
  }
}

}  // namespace
}  // namespace bonfire::launch::pipeline_faults_test
