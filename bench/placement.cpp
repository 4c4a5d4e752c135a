// What placement gains: two equal branches of a model on cpu:0 and cpu:1, against one after the other on cpu:0. Whole
// training steps: forward, backward, update. Both ways take turns, and medians are compared.
//
//   bench_placement [--width N] [--layers N] [--batch N] [--steps N] [--threads N] [--json FILE]
//
// --threads are those of each device: with one, two cores are enough for both.

#include <CLI/CLI.hpp>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "bench/measure.h"
#include "bonfire/backend/cpu/device/threads.h"
#include "bonfire/bonfire.h"

namespace {

using namespace bonfire;

struct Wanted {
  int64_t width = 768, layers = 4, batch = 256;
  int steps = 20, threads = 1;
  std::string json;
};

nn::Sequential branch(const Wanted& wanted) {
  nn::Sequential layers;
  for (int64_t i = 0; i < wanted.layers; ++i) {
    layers.push_back(nn::Linear({.in = wanted.width, .out = wanted.width}));
    layers.push_back(nn::ReLU());
  }
  return layers;
}

class Branches : public nn::Callable<Branches> {
 public:
  explicit Branches(const Wanted& wanted)
      : Callable("Branches"),
        left(register_module("left", branch(wanted))),
        right(register_module("right", branch(wanted))) {}
  Tensor forward(const Tensor& x) const { return mean(square(left(x))) + mean(square(right(x))); }

  nn::Sequential left, right;
};

// A model, and how its steps are made.
class Training {
 public:
  Training(const Wanted& wanted, const char* of_right) : model_(wanted) {
    model_.left.to("cpu:0");
    model_.right.to(of_right);
    optimizer_.emplace(model_.parameters(), optim::MomentumOptions{.lr = 0.01, .momentum = 0.9});
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

int run(const Wanted& wanted) {
  cpu::set_cpu_threads(wanted.threads);
  Training one(wanted, "cpu:0"), two(wanted, "cpu:1");
  const Tensor x = normal_random({wanted.batch, wanted.width});
  std::vector<double> in_turn, at_once;
  for (int i = -3; i < wanted.steps; ++i) {  // the first compile and choose kernels
    const double first = one.milliseconds(x), second = two.milliseconds(x);
    if (i < 0) continue;
    in_turn.push_back(first);
    at_once.push_back(second);
  }
  const double before = bench::median(in_turn), after = bench::median(at_once);
  std::printf("one after the other on cpu:0  %8.2f ms\non cpu:0 and cpu:1            %8.2f ms\nratio %19.2f x\n",
              before, after, before / after);
  if (!wanted.json.empty()) {
    const nlohmann::json found{{"one_device_ms", before}, {"two_devices_ms", after}, {"ratio", before / after}};
    std::ofstream(wanted.json) << found.dump() << "\n";
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  Wanted wanted;
  CLI::App flags("What placing two branches on two devices gains", "bench_placement");
  flags.add_option("--width", wanted.width, "of a layer")->check(CLI::PositiveNumber);
  flags.add_option("--layers", wanted.layers, "of a branch")->check(CLI::PositiveNumber);
  flags.add_option("--batch", wanted.batch, "samples of a step")->check(CLI::PositiveNumber);
  flags.add_option("--steps", wanted.steps, "that are measured")->check(CLI::PositiveNumber);
  flags.add_option("--threads", wanted.threads, "of each device")->check(CLI::PositiveNumber);
  flags.add_option("--json", wanted.json, "a file for what was measured");
  CLI11_PARSE(flags, argc, argv);
  try {
    return run(wanted);
  } catch (const Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
