// What training costs beside its steps.
//
//   bench_train [--json FILE]
//
// checkpoint: ResNet-18 with momentum, 90 MB: how long training pauses (values are copied) and how long the write takes
// after it, the model at rest. replicas: two ranks compare their weights and optimizer states (check_replicas), beside
// a step of theirs. start: from `./bonfire train` (built) to its first progress line, and what the script adds to the
// program when there is nothing to build.

#include <CLI/CLI.hpp>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "bonfire/comm/local/local_group.h"
#include "bonfire/models/make.h"
#include "bonfire/ops/loss.h"
#include "bonfire/optim/optimizers.h"
#include "bonfire/parallel/fleet.h"
#include "bonfire/parallel/replica_check.h"
#include "bonfire/runtime/compile.h"
#include "bonfire/train/checkpoint/checkpoint_writer.h"
#include "bonfire/train/config/config.h"
#include "measure.h"
#include "tests/support/scratch_folder.h"

namespace {

using namespace bonfire;
namespace fs = std::filesystem;

void row(nlohmann::json& rows, const char* name, double milliseconds, double goal) {
  std::printf("%-44s %8.1f ms", name, milliseconds);
  if (goal > 0) std::printf("   goal %.0f ms%s", goal, milliseconds <= goal ? "" : "   NOT REACHED");
  std::printf("\n");
  rows.push_back({{"name", name}, {"ms", milliseconds}, {"goal_ms", goal}});
}

void measure_checkpoint(nlohmann::json& rows) {
  models::Model model = models::make("resnet18");
  optim::Momentum optimizer(model.parameters(), {.lr = 0.1, .momentum = 0.9});
  train::CheckpointSource source{.weights = model.state_dict(), .optimizer = {}, .state = "{}"};
  for (const auto& [name, variable] : optimizer.state()) source.optimizer.push_back({name, variable});
  bonfire::testing::ScratchFolder folder;
  std::vector<double> pauses, writes;
  {
    train::CheckpointWriter writer(folder.path(), {.keep = 2});
    writer.prepare(source);
    writer.finish();  // as it is long before the first checkpoint of a run
    for (int64_t step = 1; step <= 6; ++step) {
      auto begin = bench::Clock::now();
      writer.save(step, source);
      auto paused = bench::Clock::now();
      writer.finish();
      pauses.push_back(1e3 * bench::seconds(paused - begin));
      writes.push_back(1e3 * bench::seconds(bench::Clock::now() - paused));
    }
  }
  uintmax_t bytes = 0;
  for (const auto& entry : fs::recursive_directory_iterator(folder / train::checkpoint_name(6)))
    bytes += entry.file_size();
  std::printf("checkpoint of resnet18 with momentum, %.0f MB\n", static_cast<double>(bytes) / 1e6);
  row(rows, "training paused, the first time", pauses[0], 50);
  row(rows, "training paused, median of the others", bench::median({pauses.begin() + 1, pauses.end()}), 50);
  row(rows, "written while training goes on, median", bench::median(writes), 0);
}

// Seconds of rank 0, of two that are threads with a device each.
struct ReplicaTimes {
  double compare = 0, step = 0;  // medians
};
ReplicaTimes time_replicas(const std::string& name, int64_t batch) {
  constexpr int kTimes = 9;
  auto groups = comm::local_groups(2, {.timeout = std::chrono::seconds(300)});
  ReplicaTimes times;
  std::vector<std::thread> threads;
  for (int16_t rank = 0; rank < 2; ++rank)
    threads.emplace_back([&, rank] {
      fleet::join(groups[static_cast<size_t>(rank)]);
      const Device device{DeviceType::cpu, rank};
      models::Model model = models::make(name, {.in_channels = 1});
      model.to(device);
      model = fleet::distributed_model(model);
      optim::Momentum optimizer(model.parameters(), {.lr = 1e-3, .momentum = 0.9});
      optimizer = fleet::distributed_optimizer(optimizer);
      fleet::ReplicaCheck replicas(fleet::replicated(model, optimizer));
      auto step = compile([&](const Tensor& image, const Tensor& label) {
        Tensor loss = cross_entropy(model(image), label);
        loss.backward();
        optimizer.step();
        optimizer.clear_grad();
        return loss;
      });
      Tensor image =
          Tensor::from<float>(std::vector<float>(static_cast<size_t>(batch) * 784, 0.5F), {batch, 1, 28, 28}, device);
      Tensor label = Tensor::from<int64_t>(std::vector<int64_t>(static_cast<size_t>(batch)), {batch}, device);
      std::vector<double> steps, compares;
      for (int i = 0; i < kTimes; ++i) {
        auto begin = bench::Clock::now();
        step(image, label).item();
        auto stepped = bench::Clock::now();
        replicas.compare(i);
        steps.push_back(bench::seconds(stepped - begin));
        compares.push_back(bench::seconds(bench::Clock::now() - stepped));
      }
      if (rank == 0) times = {bench::median(compares), bench::median(steps)};
      fleet::leave();
    });
  for (std::thread& thread : threads) thread.join();
  return times;
}

void measure_replicas(nlohmann::json& rows) {
  const auto every = static_cast<double>(*train::Config().check_replicas);
  constexpr double kGoal = 0.5;  // percent
  std::printf("replicas of two ranks, compared every %.0f steps\n", every);
  for (const auto& [name, batch] : {std::pair{"mlp", 64}, {"lenet", 64}, {"resnet18_small", 32}}) {
    const ReplicaTimes times = time_replicas(name, batch);
    const double percent = 100 * times.compare / (every * times.step);
    std::printf("%-16s batch %3d  step %8.2f ms  comparison %7.2f ms  %.4f %% of a step   goal %.1f %%%s\n", name,
                batch, 1e3 * times.step, 1e3 * times.compare, percent, kGoal, percent <= kGoal ? "" : "   NOT REACHED");
    rows.push_back({{"name", std::string("replicas of ") + name}, {"percent", percent}, {"goal_percent", kGoal}});
  }
}

// Until the command has printed a line with `text`.
double milliseconds_until(const std::string& command, const std::string& text) {
  auto begin = bench::Clock::now();
  FILE* pipe = popen(command.c_str(), "r");
  char line[512];
  double found = -1;
  while (pipe != nullptr && fgets(line, sizeof line, pipe) != nullptr)
    if (found < 0 && std::string(line).find(text) != std::string::npos)
      found = 1e3 * bench::seconds(bench::Clock::now() - begin);
  if (pipe != nullptr) pclose(pipe);
  return found;
}

void measure_start(nlohmann::json& rows) {
  std::string root = BONFIRE_SOURCE_DIR, script = root + "/bonfire", program = root + "/build/release/bin/bonfire";
  if (!fs::exists(root + "/build/release/built_bonfire_program")) {
    std::printf("start: left out; run ./bonfire version once, which builds the program\n");
    return;
  }
  std::vector<double> with, without, first;
  for (int i = 0; i < 7; ++i) {
    with.push_back(milliseconds_until(script + " version", "bonfire"));
    without.push_back(milliseconds_until(program + " version", "bonfire"));
  }
  bonfire::testing::ScratchFolder folder;
  for (int i = 0; i < 3; ++i)
    first.push_back(milliseconds_until(script + " train steps=60 output=" + folder.path().string(), "images/s"));
  std::printf("start\n");
  row(rows, "./bonfire with nothing to build, beyond it", bench::median(with) - bench::median(without), 50);
  row(rows, "./bonfire train to the first progress line", bench::median(first), 500);
}

}  // namespace

int main(int argc, char** argv) {
  std::string json;
  CLI::App flags("What a training run does beside its steps", "bench_train");
  flags.add_option("--json", json, "a file for what was measured");
  CLI11_PARSE(flags, argc, argv);
  nlohmann::json rows = nlohmann::json::array();
  measure_checkpoint(rows);
  measure_replicas(rows);
  measure_start(rows);
  if (!json.empty()) std::ofstream(json) << rows.dump(1) << "\n";
  return 0;
}
