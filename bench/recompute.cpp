// What computing parts of a model again in the backward pass saves, and what it costs: training steps with and without,
// in turns, beside PyTorch's with torch.utils.checkpoint.
//
//   bench_recompute [--peer-python PYTHON] [--case TEXT] [--batch N] [--dtype f32|bf16] [--rounds N] [--seconds S]
//                   [--json FILE]
//
// Memory is that of a step's temporaries, which is known before it runs; PyTorch's is the growth of peak RSS over three
// steps in a fresh process. Each side runs in processes of its own that sleep while others have their turn. Of a turn
// with and the one before it without the times are compared, since what a machine does besides changes within seconds.

#include <CLI/CLI.hpp>
#include <cstdio>
#include <fstream>
#include <functional>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bonfire/base/error.h"
#include "bonfire/base/random.h"
#include "bonfire/bonfire.h"
#include "bonfire/runtime/plan_cache.h"
#include "measure.h"

namespace {

using namespace bonfire;

struct Case {
  std::string name, title;
  int64_t batch;
  std::vector<std::string> recomputed;  // modules
  std::function<void()> (*make)(int64_t batch);
};

Tensor whole_numbers(const Shape& shape, int64_t below) {
  std::vector<int64_t> values(static_cast<size_t>(shape.count()));
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = static_cast<int64_t>(uniform_at(1, 2, i) * static_cast<float>(below));
  return Tensor::from<int64_t>(values, shape);
}

std::function<void()> lstm_step(int64_t batch) {
  constexpr int64_t kTimes = 4000, kVocabulary = 1000, kClasses = 5;
  const auto model = models::lstm_classifier(
      {.vocabulary = kVocabulary, .embedding = 256, .hidden = 256, .layers = 2, .classes = kClasses});
  const auto optimizer = std::make_shared<optim::Adam>(model.parameters(), optim::AdamOptions{.lr = 1e-4});
  const Tensor tokens = whole_numbers({batch, kTimes}, kVocabulary), label = whole_numbers({batch}, kClasses);
  return [=] {
    cross_entropy(model(tokens), label).backward();
    optimizer->step();
    optimizer->clear_grad();
  };
}

const std::vector<Case>& cases() {
  static const std::vector<Case> list = {{"lstm", "LSTM 2x256, 4000 times", 16, {"lstm"}, lstm_step}};
  return list;
}

struct Settings {
  std::string self, peer, text, dtype = "f32", json;
  int64_t batch = 0;  // 0: each case has its own
  int rounds = 5;
  std::string seconds = "4";  // of one turn
};

// Answers each line: `bytes` with those of temporaries, a number with the seconds of a step, measured for so long.
int serve(const std::string& name, const std::string& dtype, int64_t batch, bool is_recomputed) {
  const auto& all = cases();
  const auto one = std::find_if(all.begin(), all.end(), [&](const Case& each) { return each.name == name; });
  if (one == all.end()) return 1;
  manual_seed(1);
  use_mixed_precision(dtype == "bf16");
  if (is_recomputed) StepContext::current().options.recompute = one->recomputed;
  const std::function<void()> step = one->make(batch);
  for (int i = 0; i < 2; ++i) step();
  synchronize();
  for (std::string line; std::getline(std::cin, line);) {
    double answer = 0;
    if (line == "bytes") {
      for (const auto& plan : runtime::cached_plans())
        answer = std::max(answer, static_cast<double>(runtime::peak_bytes(*plan, {})));
    } else {
      int steps = 0;
      const auto begin = bench::Clock::now();
      while (steps == 0 || bench::seconds(bench::Clock::now() - begin) < std::stod(line)) {
        step();
        synchronize();
        ++steps;
      }
      answer = bench::seconds(bench::Clock::now() - begin) / steps;
    }
    std::printf("%f\n", answer);
    std::fflush(stdout);
  }
  return 0;
}

// Of one side: bytes and seconds without and with.
struct Figures {
  double bytes[2] = {}, seconds[2] = {}, time_ratio = 0;

  double memory_ratio() const { return bytes[0] > 0 ? bytes[1] / bytes[0] : 0; }
};

Figures measure(const Settings& settings, const std::string& without, const std::string& with) {
  bench::Worker workers[] = {bench::Worker(without), bench::Worker(with)};
  Figures figures;
  for (int i : {0, 1}) figures.bytes[i] = workers[i].ask("bytes");
  std::vector<double> seconds[2], ratios;
  for (int round = -1; round < settings.rounds; ++round) {  // the first one warms up
    double taken[2];
    for (int i : {0, 1}) taken[i] = workers[i].ask(settings.seconds);
    if (round < 0) continue;
    for (int i : {0, 1}) seconds[i].push_back(taken[i]);
    ratios.push_back(taken[0] > 0 ? taken[1] / taken[0] : 0);
  }
  for (int i : {0, 1}) figures.seconds[i] = bench::median(seconds[i]);
  figures.time_ratio = bench::median(ratios);
  return figures;
}

void print(const std::string& title, const std::string& side, const Figures& one, nlohmann::json& rows) {
  std::printf("%-32s %-8s %9.1f %9.1f %6.3f %9.3f %9.3f %6.2f\n", title.c_str(), side.c_str(), one.bytes[0] * 1e-6,
              one.bytes[1] * 1e-6, one.memory_ratio(), one.seconds[0], one.seconds[1], one.time_ratio);
  std::fflush(stdout);
  rows.push_back({{"case", title},
                  {"side", side},
                  {"bytes", one.bytes[0]},
                  {"bytes_recomputed", one.bytes[1]},
                  {"memory_ratio", one.memory_ratio()},
                  {"seconds", one.seconds[0]},
                  {"seconds_recomputed", one.seconds[1]},
                  {"time_ratio", one.time_ratio}});
}

int run_all(const Settings& settings) {
  nlohmann::json rows = nlohmann::json::array();
  std::printf("%-32s %-8s %9s %9s %6s %9s %9s %6s\n", "training step", "side", "MB", "again", "ratio", "seconds",
              "again", "ratio");
  for (const Case& one : cases()) {
    if (one.name.find(settings.text) == std::string::npos) continue;
    const int64_t batch = settings.batch > 0 ? settings.batch : one.batch;
    const std::string title = fmt::format("{}, batch {} {}", one.title, batch, settings.dtype);
    const std::string what = fmt::format(" {} {} {}", one.name, settings.dtype, batch);
    print(title, "ours",
          measure(settings, settings.self + " --serve" + what + " keep", settings.self + " --serve" + what + " again"),
          rows);
    if (!settings.peer.empty()) {
      const std::string peer = settings.peer + " " BONFIRE_SOURCE_DIR "/bench/peers/recompute.py" + what;
      print(title, "PyTorch", measure(settings, peer + " keep 2>/dev/null", peer + " again 2>/dev/null"), rows);
    }
    if (!settings.json.empty()) std::ofstream(settings.json) << rows.dump(1) << '\n';
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  Settings settings;
  settings.self = argv[0];
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  try {
    if (arguments.size() == 5 && arguments[0] == "--serve")
      return serve(arguments[1], arguments[2], std::stoll(arguments[3]), arguments[4] == "again");
    CLI::App flags("What computing parts again saves and costs", "bench_recompute");
    flags.add_option("--peer-python", settings.peer, "a Python that has PyTorch");
    flags.add_option("--case", settings.text, "cases whose name has this in it");
    flags.add_option("--batch", settings.batch, "samples of a step; else each case has its own")
        ->check(CLI::PositiveNumber);
    flags.add_option("--dtype", settings.dtype, "f32 or bf16")->check(CLI::IsMember({"f32", "bf16"}));
    flags.add_option("--rounds", settings.rounds, "turns of each")->check(CLI::PositiveNumber);
    flags.add_option("--seconds", settings.seconds, "of one turn");
    flags.add_option("--json", settings.json, "a file for what was measured");
    CLI11_PARSE(flags, argc, argv);
    return run_all(settings);
  } catch (const Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
