// The figures of the spine: what tracing, submitting, starting and the memory of a step cost.
//
//   bench_spine [--json FILE] [--peer-python PYTHON]
//
// Memory and start-up are measured in fresh processes of this program; PyTorch's memory by bench/peers/spine.py.

#include <CLI/CLI.hpp>
#include <cstdio>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bonfire/base/random.h"
#include "bonfire/bonfire.h"
#include "bonfire/graph/engine.h"
#include "measure.h"

namespace {

using namespace bonfire;
using bench::Clock;
using bench::median;
using bench::microseconds;
using bench::number_of;
using bench::output_of;
using bench::peak_kilobytes;

struct Batch {
  Tensor image, label;
};

Batch make_batch(int64_t size) {
  std::vector<float> pixels(static_cast<size_t>(size) * 784);
  std::vector<int64_t> labels(static_cast<size_t>(size));
  for (size_t i = 0; i < pixels.size(); ++i) pixels[i] = 2 * uniform_at(1, 1, i) - 1;
  for (size_t i = 0; i < labels.size(); ++i) labels[i] = static_cast<int64_t>(i % 10);
  return {Tensor::from<float>(pixels, {size, 1, 28, 28}), Tensor::from<int64_t>(labels, {size})};
}

// Median host time of `step`, the device idle before each, and the cost of the step hidden by a tiny batch.
double host_time(const std::function<void()>& step) {
  for (int i = 0; i < 20; ++i) step();
  std::vector<double> times;
  for (int i = 0; i < 400; ++i) {
    engine().synchronize();
    auto start = Clock::now();
    step();
    times.push_back(microseconds(Clock::now() - start));
  }
  return median(times);
}

template <class Model>
void train_step(Model& model, optim::Momentum& optimizer, const Batch& batch) {
  Tensor loss = cross_entropy(model(batch.image), batch.label);
  loss.backward();
  optimizer.step();
  optimizer.clear_grad();
}

optim::Momentum make_optimizer(const nn::Module& model) {
  return optim::Momentum(model.parameters(), {.lr = 0.01, .momentum = 0.9, .weight_decay = 1e-4});
}

struct TraceCost {
  double microseconds;
  size_t nodes;
};

template <class Model>
TraceCost trace_cost(Model model) {
  Batch batch = make_batch(1);
  auto optimizer = make_optimizer(model);
  size_t nodes = 0;
  {
    Tensor loss = cross_entropy(model(batch.image), batch.label);
    loss.backward();
    nodes = Trace::current().nodes().size() + 1;  // and the update
    optimizer.step();
    optimizer.clear_grad();
  }
  return {host_time([&] { train_step(model, optimizer, batch); }), nodes};
}

// The same without submitting: what is traced is dropped. A training step on the CPU in between would empty the caches
// that a host beside a GPU keeps warm.
template <class Model>
TraceCost trace_alone(Model model) {
  Batch batch = make_batch(1);
  auto optimizer = make_optimizer(model);
  train_step(model, optimizer, batch);
  size_t nodes = 0;
  double time = host_time([&] {
    Trace trace;
    trace.compiling = true;
    TraceScope scope(trace);
    train_step(model, optimizer, batch);
    nodes = trace.nodes().size();
    trace.clear();
  });
  return {time, nodes};
}

double submission_of_compiled() {
  auto model = models::mnist_cnn();
  Batch batch = make_batch(1);
  auto optimizer = make_optimizer(model);
  auto step = compile([&](const Tensor& image, const Tensor& label) {
    Tensor loss = cross_entropy(model(image), label);
    loss.backward();
    optimizer.step();
    optimizer.clear_grad();
    return loss;
  });
  return host_time([&] { step(batch.image, batch.label); });
}

// In a process of its own: growth of peak RSS from before the first step to after the fifth.
int report_memory() {
  auto model = models::resnet18_small({.classes = 10, .in_channels = 1});
  Batch batch = make_batch(64);
  auto optimizer = make_optimizer(model);
  int64_t before = peak_kilobytes();
  for (int i = 0; i < 5; ++i) train_step(model, optimizer, batch);
  synchronize();
  std::printf("%ld\n", static_cast<long>(peak_kilobytes() - before));
  return 0;
}

int report_first_step() {
  auto model = models::mnist_cnn();
  Batch batch = make_batch(64);
  auto optimizer = make_optimizer(model);
  train_step(model, optimizer, batch);
  synchronize();
  return 0;
}

double start_to_first_step(const std::string& self) {
  std::vector<double> times;
  for (int i = 0; i < 5; ++i) {
    auto start = Clock::now();
    output_of(self + " --case first_step");
    times.push_back(microseconds(Clock::now() - start) * 1e-6);
  }
  return median(times);
}

struct Row {
  std::string name;
  double ours;
  std::string unit;
  double goal;
};

void add(nlohmann::json& rows, const Row& row) {
  std::printf("%-58s %10.3f %-10s goal ≤ %.3f  %s\n", row.name.c_str(), row.ours, row.unit.c_str(), row.goal,
              row.ours <= row.goal ? "reached" : "NOT reached");
  rows.push_back({{"case", row.name}, {"ours", row.ours}, {"unit", row.unit}, {"goal", row.goal}});
}

int run_all(const std::string& self, const std::string& peer, const std::string& json_path) {
  nlohmann::json rows = nlohmann::json::array();
  TraceCost small = trace_cost(models::mnist_cnn());
  add(rows, {"tracing per node, MNIST CNN (" + std::to_string(small.nodes) + " nodes)",
             small.microseconds / static_cast<double>(small.nodes), "us", 1});
  TraceCost large = trace_alone(models::resnet18_small({.classes = 10, .in_channels = 1}));
  add(rows, {"tracing alone per node, small ResNet-18 (" + std::to_string(large.nodes) + " nodes)",
             large.microseconds / static_cast<double>(large.nodes), "us", 1});
  TraceCost cold = trace_cost(models::resnet18_small({.classes = 10, .in_channels = 1}));
  std::printf("  (with its submission, after 130 MB of CPU work has emptied the caches: %.3f us a node)\n",
              cold.microseconds / static_cast<double>(cold.nodes));
  add(rows, {"submission of a compiled step, MNIST CNN", submission_of_compiled(), "us", 10});
  add(rows, {"process start to end of first step, MNIST CNN batch 64", start_to_first_step(self), "s", 0.5});
  double memory = number_of(self + " --case memory") / 1024;
  if (!peer.empty()) {
    double theirs = number_of(peer + " " + BONFIRE_SOURCE_DIR "/bench/peers/spine.py memory") / 1024;
    std::printf("peak RSS growth over five steps, small ResNet-18 batch 64 f32: ours %.0f MiB, PyTorch %.0f MiB\n",
                memory, theirs);
    if (theirs > 0) add(rows, {"the same, ratio to PyTorch", memory / theirs, "x", 0.7});
  } else {
    std::printf(
        "peak RSS growth over five steps, small ResNet-18 batch 64 f32: %.0f MiB (give --peer-python for the ratio)\n",
        memory);
  }
  if (!json_path.empty()) std::ofstream(json_path) << rows.dump(1) << '\n';
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  std::string json_path, peer, only;
  CLI::App flags("Tracing, submitting and whole steps, beside PyTorch's", "bench_spine");
  flags.add_option("--json", json_path, "a file for what was measured");
  flags.add_option("--peer-python", peer, "a Python that has PyTorch");
  flags.add_option("--case", only, "one measurement alone")
      ->check(CLI::IsMember({"memory", "first_step", "trace", "submission"}));
  CLI11_PARSE(flags, argc, argv);
  if (only == "memory") return report_memory();
  if (only == "first_step") return report_first_step();
  if (only == "trace") trace_alone(models::resnet18_small({.classes = 10, .in_channels = 1}));  // for profilers
  if (only == "submission") submission_of_compiled();
  if (!only.empty()) return 0;
  return run_all(argv[0], peer, json_path);
}
