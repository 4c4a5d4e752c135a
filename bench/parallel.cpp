// What sharing a model out gains, on two processors: against one process with one thread, and beside what PyTorch gains
// against its own. Whole training steps: forward, backward, update.
//
//   bench_parallel [--peer-python PYTHON] [--only pipeline|tensor|placement|sharding] [--rounds 7] [--json FILE]
//
//   pipeline    two stages of one thread each, 8 micro-batches, by every schedule; beside the step that the simulator
//               foretells from the measured times of programs, and the memory that each schedule needs
//   tensor      BERT-mini, each layer shared by two ranks
//   placement   two equal branches on cpu:0 and cpu:1, against one after the other on cpu:0
//   sharding    BERT-mini with AdamW on two ranks that share out optimizer states, gradients, parameters, against two
//               that have copies; beside PyTorch's FSDP2 against its DDP
//
// All kinds take turns within a round; each number is the median over the rounds, and beside it its floor, the least of
// them; ratios are of medians and, as floors, of floors. Cores must have nothing else to do.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "bonfire/backend/cpu/device/threads.h"
#include "bonfire/comm/store_server.h"
#include "bonfire/parallel/pipeline/simulator.h"
#include "parallel_ranks.h"

namespace {

using namespace bonfire;
using bench::kMicroBatches;

struct Settings {
  std::string self, peer, only, json;
  int rounds = 7;
};

// --- who is asked ---------------------------------------------------------------------------------------------------

// Processes that take steps at the same time: ranks of a job, or each by itself.
class Team {
 public:
  enum class Of : uint8_t { one_job, jobs_of_their_own };

  Team(const Settings& settings, int count, const std::string& kind, Of of = Of::one_job) {
    const std::string port = std::to_string(comm::serve_store({})->port());
    for (int rank = 0; rank < count; ++rank) {
      const std::string job = count == 1 || of == Of::jobs_of_their_own
                                  ? ""
                                  : fmt::format(
                                        " RANK={0} LOCAL_RANK={0} WORLD_SIZE={1} LOCAL_WORLD_SIZE={1} "
                                        "MASTER_ADDR=127.0.0.1 MASTER_PORT={2}",
                                        rank, count, port);
      workers_.push_back(std::make_unique<bench::Worker>(fmt::format(
          "{}env BONFIRE_CPU_THREADS=1{} {} --rank {}", bench::on_processors(2), job, settings.self, kind)));
    }
  }
  ~Team() {
    for (auto& worker : workers_) worker->tell("end");  // they leave together
  }
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  std::vector<double> ask(const std::string& line) {
    std::vector<double> answers;
    for (auto& worker : workers_) worker->tell(line);
    for (auto& worker : workers_) answers.push_back(worker->answer());
    return answers;
  }

 private:
  std::vector<std::unique_ptr<bench::Worker>> workers_;
};

// Of PyTorch: it starts its other ranks itself.
std::unique_ptr<bench::Worker> peer_of(const Settings& settings, const std::string& kind) {
  if (settings.peer.empty()) return nullptr;
  return std::make_unique<bench::Worker>(bench::on_processors(2) + settings.peer +
                                         " " BONFIRE_SOURCE_DIR "/bench/peers/parallel.py " + kind);
}

// --- what was found -------------------------------------------------------------------------------------------------

// Milliseconds by name, one a round.
class Rounds {
 public:
  void note(const std::string& name, double milliseconds) { all_[name].push_back(milliseconds); }
  double median(const std::string& name) const { return bench::median(of(name)); }
  double floor(const std::string& name) const {
    const std::vector<double> times = of(name);
    return times.empty() ? 0 : *std::min_element(times.begin(), times.end());
  }
  // How much of what twice `one` would give `two` gives.
  double efficiency(const std::string& one, const std::string& two) const {
    return median(two) > 0 ? median(one) / (2 * median(two)) : 0;
  }
  double floor_efficiency(const std::string& one, const std::string& two) const {
    return floor(two) > 0 ? floor(one) / (2 * floor(two)) : 0;
  }

 private:
  std::vector<double> of(const std::string& name) const {
    const auto found = all_.find(name);
    return found == all_.end() ? std::vector<double>{} : found->second;
  }
  std::map<std::string, std::vector<double>> all_;
};

std::string times_text(const Rounds& rounds, const std::string& name) {
  return fmt::format("{:8.2f} ms ({:.2f})", rounds.median(name), rounds.floor(name));
}

std::string verdict(double found, double goal, bool at_most = false) {
  return fmt::format("goal {} {:.2f}: {}", at_most ? "<=" : ">=", goal,
                     (at_most ? found <= goal : found >= goal) ? "reached" : "missed");
}

void print(const std::string& line) {
  std::printf("%s\n", line.c_str());
  std::fflush(stdout);
}

// --- pipeline -------------------------------------------------------------------------------------------------------

const char* const kSchedules[] = {"gpipe", "1f1b", "zero_bubble"};
constexpr int kStages = 2;

class PipelineBench {
 public:
  PipelineBench(const Settings& settings, std::string work)
      : settings_(settings),
        work_(std::move(work)),
        one_(settings, 1, "one " + work_),
        apart_(settings, kStages, "one " + work_, Team::Of::jobs_of_their_own),
        peer_one_(peer_of(settings, "one " + work_)) {
    for (const char* schedule : kSchedules) {
      teams_[schedule] = std::make_unique<Team>(settings, kStages, "stage " + work_ + " " + schedule);
      peers_[schedule] = peer_of(settings, std::string("stage ") + work_ + " " + schedule);
    }
  }

  nlohmann::json run() {
    for (int round = -1; round < settings_.rounds; ++round) {  // the first one warms up
      note(round, "one", one_.ask(kSteps)[0]);
      const std::vector<double> apart = apart_.ask(kSteps);
      note(round, "apart", *std::max_element(apart.begin(), apart.end()));
      if (peer_one_) note(round, "PyTorch one", peer_one_->ask("3"));
      for (const std::string schedule : kSchedules) {
        if (peers_[schedule]) note(round, "PyTorch " + schedule, peers_[schedule]->ask("3"));
        measure_stages(round, schedule);
      }
    }
    print(fmt::format("pipeline, {}, {} stages, {} micro-batches: milliseconds a step (and the least)", work_, kStages,
                      kMicroBatches));
    print(fmt::format("  {:<22}{}", "one process", times_text(rounds_, "one")));
    print(fmt::format(
        "  {:<22}{}  {:.3f} of twice one process (floors {:.3f}): what this machine leaves of two processors",
        "two that share nothing", times_text(rounds_, "apart"), rounds_.median("one") / rounds_.median("apart"),
        rounds_.floor("one") / rounds_.floor("apart")));
    nlohmann::json row{{"case", "pipeline"},
                       {"work", work_},
                       {"one_ms", rounds_.median("one")},
                       {"apart_ms", rounds_.median("apart")}};
    for (const std::string schedule : kSchedules) row[schedule] = report(schedule);
    report_goals(row);
    report_memory(row);
    return row;
  }

 private:
  static constexpr const char* kSteps = "step 3";

  void note(int round, const std::string& name, double milliseconds) {
    if (round >= 0) rounds_.note(name, milliseconds);
  }

  void measure_stages(int round, const std::string& schedule) {
    Team& team = *teams_[schedule];
    const std::vector<double> step = team.ask(kSteps), busy = team.ask("busy");
    const std::vector<double> forward = team.ask("times 3"), backward = team.ask("backward"),
                              weights = team.ask("weights");
    note(round, schedule, std::max(step[0], step[1]));
    for (size_t stage = 0; stage < kStages; ++stage) {
      const std::string of = fmt::format("{} {} ", schedule, stage);
      note(round, of + "busy", busy[stage]);
      note(round, of + "forward", forward[stage]);
      note(round, of + "backward", backward[stage]);
      note(round, of + "weights", weights[stage]);
    }
  }

  // From the medians of the programs; what else the devices computed came with the update.
  double foretold(const std::string& schedule) const {
    std::vector<pipeline::StageTimes> times;
    for (int stage = 0; stage < kStages; ++stage) {
      const std::string of = fmt::format("{} {} ", schedule, stage);
      pipeline::StageTimes one{.forward = rounds_.median(of + "forward"),
                               .backward = rounds_.median(of + "backward"),
                               .weights = rounds_.median(of + "weights")};
      one.update = std::max(0.0, rounds_.median(of + "busy") -
                                     static_cast<double>(kMicroBatches) * (one.forward + one.backward + one.weights));
      times.push_back(one);
    }
    return simulate(table_of(schedule), times).length;
  }

  static pipeline::Schedule table_of(const std::string& schedule) {
    return pipeline::make_schedule({.kind = pipeline::parse_schedule(schedule),
                                    .stages = kStages,
                                    .micro_batches = static_cast<int>(kMicroBatches)});
  }

  double idle(const std::string& schedule) const {
    double busy = 0;
    for (int stage = 0; stage < kStages; ++stage) busy += rounds_.median(fmt::format("{} {} busy", schedule, stage));
    return 1 - busy / (kStages * rounds_.median(schedule));
  }

  nlohmann::json report(const std::string& schedule) const {
    const double efficiency = rounds_.efficiency("one", schedule), simulated = foretold(schedule),
                 peer = rounds_.efficiency("PyTorch one", "PyTorch " + schedule);
    print(fmt::format(
        "  {:<22}{}  {:.3f} of twice one process (floors {:.3f})  idle {:.1f} %  simulator {:.2f}: {:.3f} x", schedule,
        times_text(rounds_, schedule), efficiency, rounds_.floor_efficiency("one", schedule), 100 * idle(schedule),
        simulated, rounds_.median(schedule) / simulated));
    nlohmann::json row{{"step_ms", rounds_.median(schedule)},
                       {"efficiency", efficiency},
                       {"floor_efficiency", rounds_.floor_efficiency("one", schedule)},
                       {"idle", idle(schedule)},
                       {"simulated_ms", simulated}};
    for (int stage = 0; stage < kStages; ++stage) {
      const std::string of = fmt::format("{} {} ", schedule, stage);
      print(fmt::format("    stage {}: F {:.3f}, B {:.3f}, W {:.3f} ms; computing {:.2f} ms a step", stage,
                        rounds_.median(of + "forward"), rounds_.median(of + "backward"), rounds_.median(of + "weights"),
                        rounds_.median(of + "busy")));
    }
    if (peer > 0) {
      print(fmt::format("    PyTorch {}, its one process {}: {:.3f} of twice that (floors {:.3f})",
                        times_text(rounds_, "PyTorch " + schedule), times_text(rounds_, "PyTorch one"), peer,
                        rounds_.floor_efficiency("PyTorch one", "PyTorch " + schedule)));
      row["pytorch_efficiency"] = peer;
    } else if (!settings_.peer.empty()) {
      print("    PyTorch: its process has failed");
    }
    return row;
  }

  void report_goals(nlohmann::json& row) const {
    constexpr double kIdeal = static_cast<double>(kMicroBatches) / (kMicroBatches + kStages - 1);
    const double of_ideal = rounds_.efficiency("one", "1f1b") / kIdeal;
    const double zero_bubble = rounds_.efficiency("one", "zero_bubble");
    const double left = rounds_.median("one") / rounds_.median("apart");
    const double idle_ratio = idle("zero_bubble") / idle("1f1b");
    print(fmt::format("  1f1b: {:.3f} of m/(m+p-1) = {:.3f} of twice one process ({})", of_ideal, kIdeal,
                      verdict(of_ideal, 0.9)));
    print(fmt::format("  of what the machine leaves of two processors: 1f1b {:.3f} of m/(m+p-1), zero bubble {:.3f}",
                      of_ideal / left, zero_bubble / left));
    print(fmt::format("  zero bubble: {:.3f} of twice one process ({}); idle {:.2f} of 1f1b's ({})", zero_bubble,
                      verdict(zero_bubble, 0.85), idle_ratio, verdict(idle_ratio, 0.5, true)));
    for (const std::string schedule : kSchedules) {
      const double over = rounds_.median(schedule) / foretold(schedule);
      print(fmt::format("  {}: {:.3f} x the simulator's step ({})", schedule, over, verdict(over, 1.05, true)));
    }
    row["of_ideal"] = of_ideal;
    row["idle_ratio"] = idle_ratio;
  }

  void report_memory(nlohmann::json& row) {
    constexpr double kMega = 1e6;
    const std::vector<double> most = teams_["gpipe"]->ask("slots"), few = teams_["1f1b"]->ask("slots"),
                              peak_most = teams_["gpipe"]->ask("peak"), peak_few = teams_["1f1b"]->ask("peak");
    for (int stage = 0; stage < kStages; ++stage) {
      const auto i = static_cast<size_t>(stage);
      const auto slots = [&](pipeline::ScheduleKind kind) {
        return pipeline::make_schedule({.kind = kind, .stages = kStages, .micro_batches = kMicroBatches}).slots[i];
      };
      const int all = slots(pipeline::ScheduleKind::gpipe), kept = slots(pipeline::ScheduleKind::one_f_one_b);
      print(
          fmt::format("  memory of stage {}: 1f1b keeps {} micro-batches, gpipe {}: values between programs {:.2f} and "
                      "{:.2f} MB (by the formula {:.2f}), peak of the process {:.1f} and {:.1f} MB",
                      stage, kept, all, few[i] / kMega, most[i] / kMega, most[i] / kMega * kept / all,
                      1024 * peak_few[i] / kMega, 1024 * peak_most[i] / kMega));
      row["memory"].push_back({{"slots_1f1b", few[i]},
                               {"slots_gpipe", most[i]},
                               {"peak_1f1b_kb", peak_few[i]},
                               {"peak_gpipe_kb", peak_most[i]}});
    }
  }

  const Settings& settings_;
  std::string work_;
  Team one_, apart_;
  std::map<std::string, std::unique_ptr<Team>> teams_;
  std::unique_ptr<bench::Worker> peer_one_;
  std::map<std::string, std::unique_ptr<bench::Worker>> peers_;
  Rounds rounds_;
};

// --- tensor parallel ------------------------------------------------------------------------------------------------

nlohmann::json measure_tensor(const Settings& settings) {
  Team one(settings, 1, "tensor 1"), two(settings, 2, "tensor 2");
  const auto peer_one = peer_of(settings, "tensor 1"), peer_two = peer_of(settings, "tensor 2");
  Rounds rounds;
  for (int round = -1; round < settings.rounds; ++round) {
    const double alone = one.ask("step 2")[0], together = two.ask("step 2")[0];
    const double peer_alone = peer_one ? peer_one->ask("2") : 0, peer_together = peer_two ? peer_two->ask("2") : 0;
    if (round < 0) continue;
    rounds.note("one", alone);
    rounds.note("two", together);
    rounds.note("PyTorch one", peer_alone);
    rounds.note("PyTorch two", peer_together);
  }
  const double efficiency = rounds.efficiency("one", "two"), peer = rounds.efficiency("PyTorch one", "PyTorch two");
  print(
      fmt::format("tensor parallel, BERT-mini, 8 texts of 128 words: one thread {}, two ranks {}: {:.3f} of twice one "
                  "thread (floors {:.3f}; {})",
                  times_text(rounds, "one"), times_text(rounds, "two"), efficiency,
                  rounds.floor_efficiency("one", "two"), verdict(efficiency, 0.85)));
  if (!settings.peer.empty())
    print(peer > 0 ? fmt::format("  PyTorch {} and {}: {:.3f} of twice its one thread (floors {:.3f})",
                                 times_text(rounds, "PyTorch one"), times_text(rounds, "PyTorch two"), peer,
                                 rounds.floor_efficiency("PyTorch one", "PyTorch two"))
                   : "  PyTorch: its process has failed");
  return {{"case", "tensor"},
          {"one_ms", rounds.median("one")},
          {"two_ms", rounds.median("two")},
          {"efficiency", efficiency},
          {"pytorch_efficiency", peer}};
}

// --- sharding -------------------------------------------------------------------------------------------------------

struct Level {
  const char* name;
  double goal;
};

nlohmann::json measure_sharding(const Settings& settings) {
  constexpr Level kLevels[] = {{"optimizer", 1.03}, {"gradients", 1.03}, {"parameters", 1.08}};
  std::map<std::string, std::unique_ptr<Team>> teams;
  teams["off"] = std::make_unique<Team>(settings, 2, "sharded off");
  for (const Level& level : kLevels)
    teams[level.name] = std::make_unique<Team>(settings, 2, std::string("sharded ") + level.name);
  const auto ddp = peer_of(settings, "sharded ddp"), fsdp = peer_of(settings, "sharded fsdp");
  Rounds rounds;
  for (int round = -1; round < settings.rounds; ++round)
    for (const auto& [name, team] : teams) {
      const double before = teams.at("off")->ask("step 2")[0], found = team->ask("step 2")[0];
      if (round < 0) continue;
      rounds.note("before " + name, before);
      rounds.note(name, found);
      if (name != "off") continue;
      if (ddp) rounds.note("DDP", ddp->ask("2"));
      if (fsdp) rounds.note("FSDP2", fsdp->ask("2"));
    }
  print(fmt::format(
      "sharding, BERT-mini with AdamW, 2 ranks x 1 thread, 8 texts of 128 words each: copies {}, peak {:.0f} MB",
      times_text(rounds, "off"), teams.at("off")->ask("peak")[0] / 1024));
  nlohmann::json row{{"case", "sharding"}, {"off_ms", rounds.median("off")}};
  for (const Level& level : kLevels) {
    const std::string name = level.name;
    const double ratio = rounds.median(name) / rounds.median("before " + name);
    print(fmt::format("  {:<12}{}: {:.3f} x (floors {:.3f}; {}), peak {:.0f} MB", name, times_text(rounds, name), ratio,
                      rounds.floor(name) / rounds.floor("before " + name), verdict(ratio, level.goal, true),
                      teams.at(name)->ask("peak")[0] / 1024));
    row[name] = {{"ms", rounds.median(name)}, {"ratio", ratio}};
  }
  if (!settings.peer.empty()) {
    const double own = rounds.median("DDP"), sharded = rounds.median("FSDP2");
    print(own > 0 && sharded > 0 ? fmt::format("  PyTorch: DDP {}, FSDP2 {}: {:.3f} x", times_text(rounds, "DDP"),
                                               times_text(rounds, "FSDP2"), sharded / own)
                                 : "  PyTorch: its process has failed");
    row["pytorch"] = {{"ddp_ms", own}, {"fsdp2_ms", sharded}};
  }
  return row;
}

// --- placement ------------------------------------------------------------------------------------------------------

constexpr int64_t kBranchWidth = 768, kBranchLayers = 4, kBranchBatch = 256;

nn::Sequential branch() {
  nn::Sequential layers;
  for (int64_t i = 0; i < kBranchLayers; ++i) {
    layers.push_back(nn::Linear({.in = kBranchWidth, .out = kBranchWidth}));
    layers.push_back(nn::ReLU());
  }
  return layers;
}

class Branches : public nn::Callable<Branches> {
 public:
  Branches()
      : Callable("Branches"), left(register_module("left", branch())), right(register_module("right", branch())) {}
  Tensor forward(const Tensor& x) const { return mean(square(left(x))) + mean(square(right(x))); }

  nn::Sequential left, right;
};

class PlacedTraining {
 public:
  explicit PlacedTraining(const char* of_right) {
    model_.left.to("cpu:0");
    model_.right.to(of_right);
    optimizer_.emplace(bench::momentum_of(model_));
    step_.emplace(compile([this](const Tensor& x) {
      Tensor loss = model_(x);
      loss.backward();
      optimizer_->step();
      optimizer_->clear_grad();
      return loss;
    }));
  }
  double milliseconds(const Tensor& x) {
    const auto begin = bench::Clock::now();
    (*step_)(x);
    synchronize();
    return 1e3 * bench::seconds(bench::Clock::now() - begin);
  }

 private:
  Branches model_;
  std::optional<optim::Momentum> optimizer_;
  std::optional<Compiled<Tensor>> step_;
};

// In this process, which has one thread for each device.
nlohmann::json measure_placement(const Settings& settings) {
  cpu::set_cpu_threads(1);
  PlacedTraining one("cpu:0"), two("cpu:1");
  const Tensor x = bench::random_input({kBranchBatch, kBranchWidth});
  Rounds rounds;
  for (int step = -3; step < 3 * settings.rounds; ++step) {  // the first compile and choose kernels
    const double in_turn = one.milliseconds(x), at_once = two.milliseconds(x);
    if (step < 0) continue;
    rounds.note("one", in_turn);
    rounds.note("two", at_once);
  }
  const double ratio = rounds.median("one") / rounds.median("two");
  print(
      fmt::format("placement, two branches of {} layers: one after the other on cpu:0 {}, on cpu:0 and cpu:1 {}: "
                  "{:.3f} x (floors {:.3f}; {})",
                  kBranchLayers, times_text(rounds, "one"), times_text(rounds, "two"), ratio,
                  rounds.floor("one") / rounds.floor("two"), verdict(ratio, 1.8)));
  return {{"case", "placement"}, {"one_ms", rounds.median("one")}, {"two_ms", rounds.median("two")}, {"ratio", ratio}};
}

// --- all of them ----------------------------------------------------------------------------------------------------

int run_all(const Settings& settings) {
  const std::set<std::string> parts{"", "pipeline", "tensor", "placement", "sharding"};
  if (!parts.contains(settings.only))
    throw_error<ConfigError>("[bench_parallel] --only is '{}', expected pipeline, tensor, placement or sharding",
                             settings.only);
  auto asked = [&](const char* part) { return settings.only.empty() || settings.only == part; };
  nlohmann::json rows = nlohmann::json::array();
  if (asked("pipeline"))
    for (const char* work : {"layers", "resnet18_small"}) rows.push_back(PipelineBench(settings, work).run());
  if (asked("tensor")) rows.push_back(measure_tensor(settings));
  if (asked("placement")) rows.push_back(measure_placement(settings));
  if (asked("sharding")) rows.push_back(measure_sharding(settings));
  if (!settings.json.empty()) std::ofstream(settings.json) << rows.dump(1) << '\n';
  return 0;
}

int be_rank(const std::vector<std::string>& words) {
  if (words.size() == 2 && words[0] == "one") return bench::be_one_process(words[1]);
  if (words.size() == 3 && words[0] == "stage") return bench::be_stage(words[1], words[2]);
  if (words.size() == 2 && words[0] == "sharded") return bench::be_sharded_rank(words[1]);
  if (words.size() == 2 && words[0] == "tensor") return bench::be_tensor_rank(std::stoi(words[1]));
  throw_error<ConfigError>("[bench_parallel] --rank is for this program's own use");
}

}  // namespace

int main(int argc, char** argv) {
  Settings settings;
  settings.self = std::filesystem::canonical("/proc/self/exe").string();
  const std::vector<std::string> words(argv + 1, argv + argc);
  try {
    if (!words.empty() && words[0] == "--rank") return be_rank({words.begin() + 1, words.end()});
    CLI::App flags("What sharing a model out gains, on two processors", "bench_parallel");
    flags.add_option("--peer-python", settings.peer, "a Python that has PyTorch");
    flags.add_option("--json", settings.json, "a file for what was measured");
    flags.add_option("--rounds", settings.rounds, "turns of each kind")->check(CLI::PositiveNumber);
    flags.add_option("--only", settings.only, "pipeline, tensor, placement or sharding; else all");
    CLI11_PARSE(flags, argc, argv);
    return run_all(settings);
  } catch (const Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
