// What computing parts of a model again in the backward pass saves, and what it costs: training steps with and without,
// in turns, beside PyTorch's with torch.utils.checkpoint.
//
//   bench_recompute [--peer-python PYTHON] [--case TEXT] [--batch N] [--dtype f32|bf16] [--rounds N] [--seconds S]
//                   [--shares 0.8,0.6] [--json FILE]
//
// With --shares: memory budgets that leave such a share of what temporaries take without one.
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

struct Training {
  std::function<void()> step;
  size_t fixed = 0;  // bytes that stay: parameters, gradients, states, three batches
};

struct Case {
  std::string name, title;
  int64_t batch;
  std::vector<std::string> recomputed;  // modules; empty: only with budgets
  Training (*make)(int64_t batch);
};

// loss_of: of the model's output and the label.
Training training_of(const nn::Module& model, const std::shared_ptr<optim::Optimizer>& optimizer, const Tensor& input,
                     const Tensor& label, const std::function<Tensor()>& loss_of) {
  Training made{.step = [=] {
    loss_of().backward();
    optimizer->step();
    optimizer->clear_grad();
  }};
  for (const auto& [name, variable] : model.state_dict()) made.fixed += variable.spec().bytes();
  for (const Variable& parameter : optimizer->parameters()) made.fixed += parameter.spec().bytes();
  for (const auto& [name, state] : optimizer->state()) made.fixed += state.spec().bytes();
  made.fixed += 3 * (input.spec().bytes() + label.spec().bytes());
  return made;
}

Tensor whole_numbers(const Shape& shape, int64_t below) {
  std::vector<int64_t> values(static_cast<size_t>(shape.count()));
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = static_cast<int64_t>(uniform_at(1, 2, i) * static_cast<float>(below));
  return Tensor::from<int64_t>(values, shape);
}

Training lstm_training(int64_t batch) {
  constexpr int64_t kTimes = 4000, kVocabulary = 1000, kClasses = 5;
  const auto model = models::lstm_classifier(
      {.vocabulary = kVocabulary, .embedding = 256, .hidden = 256, .layers = 2, .classes = kClasses});
  const auto optimizer = std::make_shared<optim::Optimizer>(optim::Adam(model.parameters(), {.lr = 1e-4}));
  const Tensor tokens = whole_numbers({batch, kTimes}, kVocabulary), label = whole_numbers({batch}, kClasses);
  return training_of(model, optimizer, tokens, label, [=] { return cross_entropy(model(tokens), label); });
}

Training resnet_training(int64_t batch) {
  const auto model = models::resnet50();
  const auto optimizer =
      std::make_shared<optim::Optimizer>(optim::Momentum(model.parameters(), {.lr = 1e-3, .momentum = 0.9}));
  const Shape shape{batch, 3, 224, 224};
  std::vector<float> pixels(static_cast<size_t>(shape.count()));
  for (size_t i = 0; i < pixels.size(); ++i) pixels[i] = uniform_at(1, 3, i);
  const Tensor images = Tensor::from<float>(pixels, shape), label = whole_numbers({batch}, 1000);
  return training_of(model, optimizer, images, label, [=] { return cross_entropy(model(images), label); });
}

Training bert_training(int64_t batch) {
  constexpr int64_t kTokens = 512, kVocabulary = 30522;
  const auto model = models::bert_base();
  const auto optimizer = std::make_shared<optim::Optimizer>(optim::Adam(model.parameters(), {.lr = 1e-5}));
  const Tensor tokens = whole_numbers({batch, kTokens}, kVocabulary),
               label = whole_numbers({batch * kTokens}, kVocabulary);
  return training_of(model, optimizer, tokens, label, [=] {
    return cross_entropy(reshape(model(tokens), {-1, kVocabulary}), label);
  });
}

const std::vector<Case>& cases() {
  static const std::vector<Case> list = {{"lstm", "LSTM 2x256, 4000 times", 16, {"lstm"}, lstm_training},
                                         {"resnet50", "ResNet-50 224x224", 32, {}, resnet_training},
                                         {"bert_base", "BERT-base seq 512", 2, {}, bert_training}};
  return list;
}

struct Settings {
  std::string self, peer, text, dtype = "f32", json;
  std::vector<double> shares;
  int64_t batch = 0;  // 0: each case has its own
  int rounds = 5;
  std::string seconds = "4";  // of one turn
};

double bytes_of_temporaries() {
  double most = 0;
  for (const auto& plan : runtime::cached_plans())
    most = std::max(most, static_cast<double>(runtime::peak_bytes(*plan, {})));
  return most;
}

// Answers each line: `bytes` with those of temporaries, `estimate` with what planning foretells a step to take longer
// (a share), a number with the seconds of a step, measured for so long. how: keep, again, or a share.
int serve(const std::string& name, const std::string& dtype, int64_t batch, const std::string& how) {
  const auto& all = cases();
  const auto one = std::find_if(all.begin(), all.end(), [&](const Case& each) { return each.name == name; });
  if (one == all.end()) return 1;
  manual_seed(1);
  use_mixed_precision(dtype == "bf16");
  StepOptions& options = StepContext::current().options;
  if (how == "again") options.recompute = one->recomputed;
  const auto [step, fixed] = one->make(batch);
  step();
  synchronize();
  if (how != "keep" && how != "again") {
    const double budget = static_cast<double>(fixed) + std::stod(how) * bytes_of_temporaries();
    options.memory_budget = {.kind = MemoryBudget::Kind::bytes, .amount = budget};
    runtime::clear_plan_cache();
  }
  step();
  synchronize();
  for (std::string line; std::getline(std::cin, line);) {
    double answer = 0;
    if (line == "bytes") {
      answer = bytes_of_temporaries();
    } else if (line == "estimate") {
      for (const auto& plan : runtime::cached_plans())
        for (const runtime::BudgetOutcome& outcome : plan->budget) answer = outcome.seconds_again / outcome.seconds;
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
  double foretold = 0;  // of time_ratio, where there is a budget

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
  if (!settings.shares.empty()) figures.foretold = 1 + workers[1].ask("estimate");
  return figures;
}

void print(const std::string& title, const std::string& side, const Figures& one, nlohmann::json& rows) {
  std::printf("%-32s %-8s %9.1f %9.1f %6.3f %9.3f %9.3f %6.3f", title.c_str(), side.c_str(), one.bytes[0] * 1e-6,
              one.bytes[1] * 1e-6, one.memory_ratio(), one.seconds[0], one.seconds[1], one.time_ratio);
  std::printf("%s\n", one.foretold > 0 ? fmt::format(" {:8.3f}", one.foretold).c_str() : "");
  std::fflush(stdout);
  rows.push_back({{"case", title},
                  {"side", side},
                  {"bytes", one.bytes[0]},
                  {"bytes_recomputed", one.bytes[1]},
                  {"memory_ratio", one.memory_ratio()},
                  {"seconds", one.seconds[0]},
                  {"seconds_recomputed", one.seconds[1]},
                  {"time_ratio", one.time_ratio},
                  {"foretold_ratio", one.foretold}});
}

int run_all(const Settings& settings) {
  nlohmann::json rows = nlohmann::json::array();
  std::printf("%-32s %-8s %9s %9s %6s %9s %9s %6s %8s\n", "training step", "side", "MB", "again", "ratio", "seconds",
              "again", "ratio", "foretold");
  for (const Case& one : cases()) {
    if (one.name.find(settings.text) == std::string::npos) continue;
    const int64_t batch = settings.batch > 0 ? settings.batch : one.batch;
    const std::string title = fmt::format("{}, batch {} {}", one.title, batch, settings.dtype);
    const std::string what = fmt::format(" {} {} {}", one.name, settings.dtype, batch);
    for (double share : settings.shares)
      print(title, "ours",
            measure(settings, settings.self + " --serve" + what + " keep",
                    fmt::format("{} --serve{} {}", settings.self, what, share)),
            rows);
    if (!settings.shares.empty() && !settings.json.empty()) std::ofstream(settings.json) << rows.dump(1) << '\n';
    if (!settings.shares.empty()) continue;
    if (one.recomputed.empty()) continue;
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
      return serve(arguments[1], arguments[2], std::stoll(arguments[3]), arguments[4]);
    CLI::App flags("What computing parts again saves and costs", "bench_recompute");
    flags.add_option("--peer-python", settings.peer, "a Python that has PyTorch");
    flags.add_option("--case", settings.text, "cases whose name has this in it");
    flags.add_option("--batch", settings.batch, "samples of a step; else each case has its own")
        ->check(CLI::PositiveNumber);
    flags.add_option("--dtype", settings.dtype, "f32 or bf16")->check(CLI::IsMember({"f32", "bf16"}));
    flags.add_option("--rounds", settings.rounds, "turns of each")->check(CLI::PositiveNumber);
    flags.add_option("--seconds", settings.seconds, "of one turn");
    flags.add_option("--shares", settings.shares, "of the memory of temporaries, that budgets leave")
        ->delimiter(',')
        ->check(CLI::Range(0.0, 1.0));
    flags.add_option("--json", settings.json, "a file for what was measured");
    CLI11_PARSE(flags, argc, argv);
    return run_all(settings);
  } catch (const Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
