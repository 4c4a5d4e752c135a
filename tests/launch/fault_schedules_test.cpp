// Random faults on two hosts with two ranks each of `bonfire train`: kills, stops, links that are out, slow or cut,
// disks that fill up, node ranks that are claimed twice. Every schedule ends with the right cause named, or with the
// bits of a training that nothing has disturbed; and what it leaves behind has a whole ledger: every sample of every
// epoch once. A schedule is made of its seed alone.
//
//   BONFIRE_FAULT_SCHEDULES=200 test_launch --gtest_filter=FaultSchedules.*       by hand; else six, one of each fault
//   BONFIRE_FAULT_SCHEDULES=1000 ...                                              every night
//   BONFIRE_FAULT_SEED=417 ...                                                    from this seed on

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <fstream>
#include <map>
#include <random>
#include <set>
#include <span>
#include <thread>

#include "bonfire/base/md5.h"
#include "bonfire/comm/gloo/gloo_group.h"
#include "tests/launch/relayed_job.h"
#include "tests/support/scratch_folder.h"
#include "tests/support/under_sanitizer.h"
#include "tests/train/digits.h"

namespace bonfire::launch::fault_schedules_test {
namespace {

using std::chrono::milliseconds;
using testing::ChildProcess;
using testing::first_report;
using testing::launcher_of;
using testing::RelayedHosts;
using testing::RelayedJob;
using testing::ScratchFolder;
using testing::Words;

constexpr int kTogether = 3;  // they wait for most of their time
// Seeds from here on draw each fault once, with every delay, links that are out and node ranks that are claimed twice.
constexpr int kFirstSeed = 43, kSchedules = 6;

int number_in(const char* variable, int otherwise) {
  const char* text = std::getenv(variable);
  return text == nullptr ? otherwise : std::atoi(text);
}

enum class Fault { none, kill_rank, stop_rank, kill_launcher, stop_launcher, cut_link, fill_disk };

struct Schedule {
  int seed;
  milliseconds delay, before, out;  // of packets; of the fault; how long a link is out before it
  bool twice;                       // another launcher claims node rank 1
  Fault fault;
  int rank, node;
  size_t part;  // of a launcher: the process that the user sees, the guard, or the one that has started the ranks

  static Schedule of(int seed) {
    std::mt19937 random(static_cast<unsigned>(seed));
    auto below = [&](unsigned end) { return static_cast<int>(random() % end); };
    return {.seed = seed,
            .delay = milliseconds(std::vector<int>{0, 5, 20}[static_cast<size_t>(below(3))]),
            .before = milliseconds(below(1500)),
            .out = milliseconds(below(3) == 0 ? 500 + below(3500) : 0),
            .twice = below(4) == 0,
            .fault = static_cast<Fault>(below(7)),
            .rank = below(4),
            .node = below(2),
            .part = static_cast<size_t>(below(3))};
  }

  std::string text() const {
    static const char* const kFaults[] = {"nothing else",
                                          "rank {0} is killed",
                                          "rank {0} is stopped",
                                          "process {2} of node {1}'s launcher is killed",
                                          "the inner process of node {1}'s launcher is stopped",
                                          "the link is cut for good",
                                          "the disk fills up"};
    return fmt::format("seed {}: {} ms of delay, a link that is out for {} ms{}, {} ms later: {}", seed, delay.count(),
                       out.count(), twice ? ", node rank 1 claimed twice" : "", before.count(),
                       fmt::format(fmt::runtime(kFaults[static_cast<int>(fault)]), rank, node, part));
  }

  // A step takes as long as its all-reduce: about as long a training whatever the delay.
  int steps() const { return delay.count() == 0 ? 200 : delay.count() == 5 ? 120 : 60; }

  // What node 0's or node 1's launcher says of it first; every one of these words.
  Words cause(int told_on) const {
    const bool other = told_on != node;
    const Words lost = node == 0 ? Words{"node 0 is out of reach: "} : Words{"node 1 (", " is lost: its launcher has "};
    switch (fault) {
      case Fault::none: return {};
      case Fault::kill_rank: return {fmt::format("rank {} (process ", rank), "was killed by signal 9"};
      case Fault::stop_rank: return {fmt::format("rank {} (", rank), "is frozen: "};
      case Fault::kill_launcher: return other ? lost : Words{"was killed"};
      case Fault::stop_launcher: return other ? lost : Words{"is stopped: it has given no sign of life for "};
      case Fault::cut_link:
        return told_on == 0 ? Words{"node 1 (", " is lost: its launcher has said nothing for "}
                            : Words{"node 0 is out of reach: ", "nothing came from it for "};
      case Fault::fill_disk: return {"rank ", "ended with exit status 1"};  // each writes
    }
    return {};
  }
};

// A small disk of its own, that can be filled.
class SmallDisk {
 public:
  explicit SmallDisk(std::filesystem::path folder) : folder_(std::move(folder)) {
    std::filesystem::create_directory(folder_);
    mounted_ = std::system(fmt::format("mount -t tmpfs -o size=32m tmpfs '{}'", folder_.string()).c_str()) == 0;
  }
  SmallDisk(const SmallDisk&) = delete;
  SmallDisk& operator=(const SmallDisk&) = delete;
  ~SmallDisk() {
    if (mounted_) [[maybe_unused]]
      const int code = std::system(fmt::format("umount -l '{}'", folder_.string()).c_str());
  }
  bool is_there() const { return mounted_; }
  void fill() const { std::ofstream(folder_ / "filler") << std::string(40 << 20, 'x'); }

 private:
  std::filesystem::path folder_;
  bool mounted_;
};

// The training: four ranks, the last batch of each epoch uneven, a checkpoint every few steps.
class Run {
 public:
  Run(const ScratchFolder& data, std::filesystem::path output, int steps) : output_(std::move(output)), steps_(steps) {
    command_ = {"bonfire",
                "train",
                "--trace-samples",
                "place=cpu",
                "model=mlp",
                train::data_of_digits(data),
                "limit=203",
                "batch_size=16",
                "drop_last=false",
                "lr=0.005",
                "eval_freq=1000",
                "save_freq=10 steps",
                "epochs=100",
                "log_freq=1",
                fmt::format("steps={}", steps),
                "keep_last=2",
                "output=" + output_.string()};
  }
  const Words& command() const { return command_; }

  // MD5 of weights and optimizer state after the last step; "": it has not come to its end.
  std::string bits() const {
    std::string bits;
    for (const char* file : {"weights.safetensors", "optimizer.safetensors"}) {
      std::ifstream stream(folder() / fmt::format("checkpoints/step-{:08}", steps_) / file, std::ios::binary);
      if (!stream) return "";
      const std::string text{std::istreambuf_iterator<char>(stream), {}};
      bits += base::md5(std::as_bytes(std::span(text))) + " ";
    }
    return bits;
  }

  // What `bonfire inspect samples` finds wrong; "": nothing, or there is no checkpoint yet.
  std::string wrong_samples() const {
    std::error_code none;
    if (std::filesystem::is_empty(folder() / "checkpoints", none) || none) return "";
    ChildProcess inspect({BONFIRE_PROGRAM, "inspect", "samples", folder().string()}, testing::clean());
    const bool whole = inspect.wait() == 0 && inspect.output().find("exactly once") != std::string::npos;
    return whole ? "" : "the ledger: " + inspect.output();
  }

 private:
  // The newest: a restart before there is a checkpoint begins anew.
  std::filesystem::path folder() const {
    int number = 1;
    while (std::filesystem::exists(output_ / std::to_string(number + 1))) ++number;
    return output_ / std::to_string(number);
  }

  std::filesystem::path output_;
  int steps_;
  Words command_;
};

// One run of a schedule; what is wrong with it.
class Trial {
 public:
  Trial(const Schedule& schedule, const ScratchFolder& data)
      : schedule_(schedule), run_(data, folder_ / "disk/runs", schedule.steps()) {
    hosts_.link().delay(schedule.delay);
  }

  int steps() const { return schedule_.steps(); }

  // "": nothing.
  std::string run(const std::string& bits) {
    if (schedule_.fault == Fault::fill_disk && !disk_.is_there())
      return "no small file system could be mounted: there is no disk that fills up\n";
    RelayedJob job(hosts_, options());
    if (job.zero->read_line("epoch 2/").empty()) return "the training has never begun\n" + outputs(job);
    if (schedule_.out.count() > 0) {
      hosts_.link().cut();
      std::this_thread::sleep_for(schedule_.out);
      hosts_.link().mend();
    }
    if (schedule_.twice) second_ = RelayedJob::node(hosts_, 1, options());
    std::this_thread::sleep_for(schedule_.before);
    strike(job);
    codes_ = {job.zero->wait(), job.one->wait()};
    return judge(job, bits);
  }

 private:
  RelayedJob::Options options() const {
    return {.file = mark(),
            .of_zero = {"--node_timeout", "6", "--max_restarts", "2"},
            .of_one = {"--rendezvous_timeout", "60"},
            .command = run_.command()};
  }
  std::string mark() const { return folder_.path().string(); }  // of its processes

  void strike(const RelayedJob& job) {
    const ChildProcess& launcher = schedule_.node == 0 ? *job.zero : *job.one;
    auto signal = [](int process, int number) {
      if (process > 1) ::kill(process, number);  // it may have ended
    };
    switch (schedule_.fault) {
      case Fault::none: break;
      case Fault::kill_rank: return signal(testing::process_of_rank(schedule_.rank, mark()), SIGKILL);
      case Fault::stop_rank: return signal(testing::process_of_rank(schedule_.rank, mark()), SIGSTOP);
      case Fault::kill_launcher: return signal(launcher_of(launcher)[schedule_.part], SIGKILL);
      case Fault::stop_launcher: return signal(launcher_of(launcher)[2], SIGSTOP);
      case Fault::cut_link: return hosts_.link().cut();
      case Fault::fill_disk: return disk_.fill();
    }
  }

  std::string judge(const RelayedJob& job, const std::string& bits) {
    std::string wrong;
    if (second_ != nullptr && second_->wait() == 0) wrong += "a node rank was claimed twice\n" + second_->output();
    for (int node : {0, 1}) {
      const ChildProcess& told = node == 0 ? *job.zero : *job.one;
      const bool is_dead = schedule_.fault == Fault::kill_launcher && schedule_.node == node && schedule_.part == 0;
      const std::string report = first_report(told.output());
      for (const std::string& word : schedule_.cause(node))
        if (!is_dead && !report.empty() && report.find(word) == std::string::npos)
          wrong += fmt::format("node {} says '{}', which lacks '{}'\n", node, report, word);
      if (schedule_.fault == Fault::none && !report.empty())
        wrong += fmt::format("node {} says '{}', though nothing was done\n", node, report);
      if (codes_[static_cast<size_t>(node)] != 0 && report.empty() && !is_dead)
        wrong += fmt::format("node {} has ended with {} and says nothing\n", node, codes_[static_cast<size_t>(node)]);
    }
    // Whoever says that all is well has trained the whole; where nothing was done, or a restart mends it, all is well.
    const bool mends = schedule_.fault <= Fault::stop_rank;
    if ((codes_[0] == 0 || mends) && run_.bits() != bits) wrong += "the weights differ\n";
    if (schedule_.fault == Fault::fill_disk && codes_[0] != 0 &&
        job.zero->output().find("cannot write '") == std::string::npos)
      wrong += "nobody says what could not be written\n";
    if (mends && (codes_[0] != 0 || codes_[1] != 0)) wrong += "no restart has mended it\n";
    wrong += run_.wrong_samples();
    return wrong.empty() ? "" : wrong + outputs(job);
  }

  static std::string outputs(const RelayedJob& job) {
    return fmt::format("--- node 0\n{}--- node 1\n{}", job.zero->output(), job.one->output());
  }

  Schedule schedule_;
  RelayedHosts hosts_;
  ScratchFolder folder_;
  SmallDisk disk_{folder_ / "disk"};
  Run run_;
  std::unique_ptr<ChildProcess> second_;
  std::array<int, 2> codes_{};
};

std::string undisturbed_bits(const ScratchFolder& data, int steps) {
  RelayedHosts hosts;
  ScratchFolder folder;
  Run run(data, folder / "runs", steps);
  RelayedJob job(hosts, {.file = folder.path().string(), .command = run.command()});
  EXPECT_EQ(job.zero->wait(), 0) << job.zero->output();
  EXPECT_EQ(job.one->wait(), 0) << job.one->output();
  EXPECT_EQ(run.wrong_samples(), "");
  EXPECT_NE(run.bits(), "");
  return run.bits();
}

TEST(FaultSchedules, ThatRunWithoutBeingAskedForHaveEveryFault) {
  std::set<Fault> faults;
  for (int seed = kFirstSeed; seed < kFirstSeed + kSchedules; ++seed) faults.insert(Schedule::of(seed).fault);
  for (Fault fault : {Fault::kill_rank, Fault::stop_rank, Fault::kill_launcher, Fault::stop_launcher, Fault::cut_link,
                      Fault::fill_disk})
    EXPECT_TRUE(faults.contains(fault)) << static_cast<int>(fault);
}

TEST(FaultSchedules, EndWithTheRightCauseNamedOrWithTheSameBits) {
  if (!comm::has_gloo() || !RelayedHosts().ready()) GTEST_SKIP() << "needs Gloo, root, `ip netns` and /dev/net/tun";
  const int first = number_in("BONFIRE_FAULT_SEED", kFirstSeed),
            end = first + number_in("BONFIRE_FAULT_SCHEDULES", testing::kUnderSanitizer ? 2 : kSchedules);
  ScratchFolder data;
  std::map<int, std::string> bits;  // of a training that nothing disturbs, by its steps
  for (int seed = first; seed < end; ++seed) {
    const int steps = Schedule::of(seed).steps();
    if (!bits.contains(steps)) bits[steps] = undisturbed_bits(data, steps);
  }
  if (HasFailure()) return;
  int failed = 0;
  for (int seed = first; seed < end; seed += kTogether) {
    const int count = std::min(kTogether, end - seed);
    std::vector<std::unique_ptr<Trial>> trials;
    std::vector<std::string> wrong(static_cast<size_t>(count));
    for (int i = 0; i < count; ++i) trials.push_back(std::make_unique<Trial>(Schedule::of(seed + i), data));
    std::vector<std::thread> threads;
    for (size_t i = 0; i < trials.size(); ++i)
      threads.emplace_back([&, i] { wrong[i] = trials[i]->run(bits.at(trials[i]->steps())); });
    for (std::thread& thread : threads) thread.join();
    for (int i = 0; i < count; ++i) {
      const std::string& what = wrong[static_cast<size_t>(i)];
      EXPECT_EQ(what, "") << Schedule::of(seed + i).text();
      if (!what.empty() && failed++ == 0) std::printf("the first failing seed: %d\n", seed + i);
    }
  }
  RecordProperty("schedules", end - first);
  RecordProperty("failed", failed);
}

}  // namespace
}  // namespace bonfire::launch::fault_schedules_test
