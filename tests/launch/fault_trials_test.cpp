// Faults at random moments of a training, most of which is collectives: nothing hangs, the culprit is named, and after
// a restart the weights are those of a training that nothing has disturbed.
//
//   BONFIRE_TRIALS=100 test_launch --gtest_filter=FaultTrials.*      for a long look; else 10

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <memory>
#include <random>
#include <thread>

#include "bonfire/comm/gloo/gloo_group.h"
#include "tests/launch/hosts.h"
#include "tests/launch/launched.h"
#include "tests/launch/relayed_job.h"
#include "tests/support/expect_error.h"
#include "tests/support/scratch_folder.h"

namespace bonfire::launch::fault_trials_test {
namespace {

using testing::ChildProcess;
using testing::clean;
using testing::expect_mentions;
using testing::joined;
using testing::program_beside;
using testing::ScratchFolder;
using testing::TwoHosts;
using testing::weights_of;
using testing::Words;

// Of 10 trials 8 are of signals and 2 of cut links. As many run at once: they wait for most of their time.
constexpr int kSignals = 8, kCuts = 2;

int waves() {
  const char* asked = std::getenv("BONFIRE_TRIALS");
  return asked == nullptr ? 1 : (std::atoi(asked) + 9) / 10;
}

struct Course {
  std::string backend;
  int ranks, steps;
};

std::unique_ptr<ChildProcess> started(const Course& course, const std::string& file, const Words& fault = {}) {
  Words words{BONFIRE_PROGRAM, "launch", "--nproc_per_node", std::to_string(course.ranks), "--max_restarts", "2"};
  Words rank{program_beside("course_program"), course.backend, file, std::to_string(course.steps)};
  return std::make_unique<ChildProcess>(joined(joined(words, rank), fault), clean());
}

std::string undisturbed_weights(const Course& course, const std::string& file) {
  auto job = started(course, file);
  EXPECT_EQ(job->wait(), 0) << job->output();
  EXPECT_NE(weights_of(job->output()), "") << job->output();
  return weights_of(job->output());
}

// A rank sends a signal to itself.
struct SignalTrial {
  Course course;
  int rank, signal, step, microseconds;
  std::unique_ptr<ChildProcess> job = nullptr;

  void start(const std::string& file) {
    job = started(course, file,
                  {std::to_string(rank), std::to_string(signal), std::to_string(step), std::to_string(microseconds)});
  }
  void expect_named_and_mended(const std::string& weights) {
    SCOPED_TRACE(fmt::format("{}: rank {} gets signal {} in step {} after {} us", course.backend, rank, signal, step,
                             microseconds));
    EXPECT_EQ(job->wait(), 0) << job->output();
    const std::string& output = job->output();
    size_t report = output.find("bonfire launch: ");
    ASSERT_NE(report, std::string::npos) << output;
    expect_mentions(output.substr(report, output.find('\n', report) - report),
                    {fmt::format("rank {} (process ", rank),
                     signal == SIGSTOP ? "is frozen: it has given no sign of life" : "was killed by signal 9"});
    expect_mentions(output, {"restart 1 of 2"});
    EXPECT_EQ(weights_of(output), weights) << output;
  }
};

TEST(FaultTrials, AfterAKillOrAFreezeTheWeightsAreThoseOfAnUndisturbedRun) {
  ScratchFolder folder;
  Words backends{"shm"};
  if (comm::has_gloo()) backends.emplace_back("gloo");
  std::map<std::string, std::string> weights;  // by backend
  for (const std::string& backend : backends)
    weights[backend] = undisturbed_weights({backend, 3, 40}, folder / ("whole " + backend));
  std::mt19937 random(10);
  constexpr unsigned kLastStep = 28;  // in which a fault begins: early enough to come before the end
  for (int wave = 0; wave < waves(); ++wave) {
    std::vector<SignalTrial> trials;
    for (int number = 0; number < kSignals; ++number) {
      trials.push_back({.course = {backends[random() % backends.size()], 3, 40},
                        .rank = static_cast<int>(random() % 3),
                        .signal = random() % 3 == 0 ? SIGSTOP : SIGKILL,
                        .step = static_cast<int>(random() % kLastStep),
                        .microseconds = static_cast<int>(random() % 3000)});
      trials.back().start(folder / fmt::format("{} {}", wave, number));
    }
    for (SignalTrial& trial : trials) trial.expect_named_and_mended(weights[trial.course.backend]);
  }
}

// The link between two hosts goes down. No restart mends that; started again by hand, the job goes on.
struct CutTrial {
  std::unique_ptr<TwoHosts> hosts = std::make_unique<TwoHosts>();
  std::unique_ptr<ChildProcess> zero = nullptr, one = nullptr;

  void start(const Course& course, const std::string& file) {
    auto node = [&](const char* number, const char* host) {
      Words words{BONFIRE_PROGRAM,
                  "launch",
                  "--nnodes",
                  "2",
                  "--node_rank",
                  number,
                  "--master_addr",
                  "10.81.0.1",
                  "--max_restarts",
                  "1",
                  program_beside("course_program"),
                  course.backend,
                  file,
                  std::to_string(course.steps)};
      return std::make_unique<ChildProcess>(joined(hosts->inside(host), words), clean({{"BONFIRE_TOKEN", "secret"}}));
    };
    one = node("1", "b");
    zero = node("0", "a");
  }
};

TEST(FaultTrials, ACutLinkNamesBothHostsAndTheJobCanGoOn) {
  if (!comm::has_gloo()) GTEST_SKIP() << "built without Gloo";
  if (!TwoHosts().ready()) GTEST_SKIP() << "network namespaces need root and `ip netns`";
  ScratchFolder folder;
  const Course course{"gloo", 2, 500};  // long enough for a link to be cut meanwhile
  const std::string weights = undisturbed_weights(course, folder / "whole");
  std::mt19937 random(11);
  for (int wave = 0; wave < waves(); ++wave) {
    std::vector<CutTrial> trials(kCuts);
    auto file = [&](size_t number) { return folder / fmt::format("{} {}", wave, number); };
    for (size_t number = 0; number < trials.size(); ++number) trials[number].start(course, file(number));
    for (CutTrial& trial : trials) {
      EXPECT_NE(trial.zero->read_line("training"), "") << trial.zero->output();
      std::this_thread::sleep_for(std::chrono::microseconds(random() % 20'000));
      trial.hosts->cut();
    }
    for (CutTrial& trial : trials) {
      EXPECT_NE(trial.zero->wait(), 0) << trial.zero->output();
      EXPECT_NE(trial.one->wait(), 0) << trial.one->output();
      // By a rank, which knows addresses, or by its launcher, which notices at the same time.
      const std::string& said = trial.zero->output();
      const bool of_rank = said.find("(10.81.0.1) and ") != said.npos;
      expect_mentions(said, {of_rank ? "(10.81.0.2) have lost each other" : "(node 1) have lost each other"});
      expect_mentions(trial.one->output(), {"10.81.0.1", "have lost each other"});
      EXPECT_EQ(weights_of(trial.zero->output()), "") << trial.zero->output();
      trial.hosts->mend();
    }
    for (size_t number = 0; number < trials.size(); ++number) trials[number].start(course, file(number));
    for (CutTrial& trial : trials) {
      EXPECT_EQ(trial.zero->wait(), 0) << trial.zero->output();
      EXPECT_EQ(trial.one->wait(), 0) << trial.one->output();
      EXPECT_EQ(weights_of(trial.zero->output()), weights) << trial.zero->output();
    }
  }
}

}  // namespace
}  // namespace bonfire::launch::fault_trials_test
