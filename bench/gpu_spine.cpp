// Compiled training steps on a GPU: milliseconds a step, and the host's share of it. Compare with
// bench/peers/gpu_spine.py on the same machine.
//
//   build/bin/bench_gpu_spine [--json FILE] [--case TEXT]     (only cases whose name has TEXT in it)
#include <bonfire/bonfire.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "bonfire/optim/optimizers.h"

using namespace bonfire;

namespace {

using Clock = std::chrono::steady_clock;
double milliseconds(Clock::duration time) { return std::chrono::duration<double, std::milli>(time).count(); }

struct Batch {
  Tensor image, label;
};

// Several batches, so that none stays in the cache.
std::vector<Batch> make_batches(int64_t size, Device place) {
  constexpr int kBatches = 8;
  std::vector<Batch> batches;
  for (int b = 0; b < kBatches; ++b) {
    std::vector<float> pixels(static_cast<size_t>(size) * 784);
    std::vector<int64_t> labels(static_cast<size_t>(size));
    for (size_t i = 0; i < pixels.size(); ++i) pixels[i] = normal_at(1, static_cast<uint64_t>(b), i);
    for (size_t i = 0; i < labels.size(); ++i) labels[i] = static_cast<int64_t>((i * 7 + static_cast<size_t>(b)) % 10);
    batches.push_back({Tensor::from<float>(std::span<const float>(pixels), {size, 1, 28, 28}, place),
                       Tensor::from<int64_t>(std::span<const int64_t>(labels), {size}, place)});
  }
  return batches;
}

struct Result {
  double step = 0, submission = 0;  // milliseconds, medians
  double first_loss = 0, last_loss = 0;
};

template <class Model>
Result measure(Model model, int64_t batch_size, double lr, Device place) {
  model.to(place);
  optim::Momentum optimizer(model.parameters(), {.lr = lr, .momentum = 0.9});
  auto step = compile([&](const Tensor& image, const Tensor& label) {
    Tensor loss = cross_entropy(model(image), label);
    loss.backward();
    optimizer.step();
    optimizer.clear_grad();
    return loss;
  });
  std::vector<Batch> batches = make_batches(batch_size, place);
  Result result;
  result.first_loss = step(batches[0].image, batches[0].label).item();
  constexpr size_t kWarmUp = 20, kSteps = 50, kRounds = 9;
  auto run = [&](size_t steps) {
    Tensor loss;
    for (size_t i = 0; i < steps; ++i)
      loss = step(batches[i % batches.size()].image, batches[i % batches.size()].label);
    return loss;
  };
  run(kWarmUp).item();
  std::vector<double> steps, submissions;
  for (size_t round = 0; round < kRounds; ++round) {
    synchronize();
    auto begin = Clock::now();
    run(2);  // two may be in flight, so these do not wait
    auto submitted = Clock::now();
    synchronize();
    submissions.push_back(milliseconds(submitted - begin) / 2);
    begin = Clock::now();
    Tensor loss = run(kSteps);
    synchronize();
    steps.push_back(milliseconds(Clock::now() - begin) / kSteps);
    result.last_loss = loss.item();
  }
  std::nth_element(steps.begin(), steps.begin() + kRounds / 2, steps.end());
  std::nth_element(submissions.begin(), submissions.begin() + kRounds / 2, submissions.end());
  result.step = steps[kRounds / 2];
  result.submission = submissions[kRounds / 2];
  return result;
}

}  // namespace

int main(int argc, char** argv) {
  std::string json_file, wanted;
  CLI::App flags("Compiled training steps on a GPU", "bench_gpu_spine");
  flags.add_option("--json", json_file, "a file for what was measured");
  flags.add_option("--case", wanted, "cases whose name has this in it");
  CLI11_PARSE(flags, argc, argv);
  try {
    Device place = parse_device("cuda");
    nlohmann::json report;
    std::printf("%-34s %10s %12s %12s %12s\n", "case", "ms a step", "submission us", "first loss", "last loss");
    auto run = [&](const std::string& name, auto&& case_of) {
      if (name.find(wanted) == std::string::npos) return;
      manual_seed(1);
      Result r = case_of();
      std::printf("%-34s %10.4f %12.1f %12.4f %12.4f\n", name.c_str(), r.step, r.submission * 1e3, r.first_loss,
                  r.last_loss);
      std::fflush(stdout);
      report[name] = {{"step_ms", r.step},
                      {"submission_us", r.submission * 1e3},
                      {"first_loss", r.first_loss},
                      {"last_loss", r.last_loss}};
    };
    for (bool amp : {true, false}) {
      use_mixed_precision(amp);
      std::string type = amp ? "bf16" : "f32";
      run("mnist_cnn batch 64 " + type, [&] { return measure(models::mnist_cnn(), 64, 0.01, place); });
      run("resnet18_small batch 256 " + type,
          [&] { return measure(models::resnet18_small({.classes = 10, .in_channels = 1}), 256, 0.01, place); });
    }
    if (!json_file.empty()) std::ofstream(json_file) << report.dump(1) << "\n";
  } catch (const Error& error) {
    std::fprintf(stderr, "bench_gpu_spine: %s\n", error.what());
    return 1;
  }
}
