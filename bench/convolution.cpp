// Speed of the convolution kernels, layer by layer, for every pass and candidate: GFLOP/s of the direct algorithm.
//
//   bench_convolution [--case TEXT] [--dtype f32|bf16] [--kernels avx512]
//
// Of layers only those whose name contains the text. Threads: BONFIRE_CPU_THREADS, else the cores available (taskset -c
// 0 gives one). Candidates take turns, the best of several runs counts, and one thread is measured in processor time,
// so that a busy machine disturbs little.

#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <ctime>
#include <string>
#include <vector>

#include "bonfire/backend/cpu/device/threads.h"
#include "bonfire/backend/cpu/simd/simd.h"
#include "bonfire/base/random.h"
#include "bonfire/graph/op.h"
#include "bonfire/kernel/kernel.h"
#include "bonfire/ops/elementwise_functions.h"
#include "instruction_sets.h"

namespace {

using namespace bonfire;

struct Layer {
  const char* name;
  int64_t batch, in, size, out, kernel, stride, padding, groups = 1;

  int64_t out_size() const { return (size + 2 * padding - kernel) / stride + 1; }
  Shape x() const { return {batch, in, size, size}; }
  Shape weight() const { return {out, in / groups, kernel, kernel}; }
  Shape y() const { return {batch, out, out_size(), out_size()}; }
  double operations() const {
    int64_t per_element = in / groups * kernel * kernel;
    return 2.0 * static_cast<double>(y().count()) * static_cast<double>(per_element);
  }
};

const Layer kLayers[] = {
    {"mnist conv1 1@28 5x5 20", 64, 1, 28, 20, 5, 1, 0},    {"mnist conv2 20@12 5x5 20", 64, 20, 12, 20, 5, 1, 0},
    {"resnet18 stem 1@28 3x3 64", 64, 1, 28, 64, 3, 1, 1},  {"resnet18 64@28 3x3", 64, 64, 28, 64, 3, 1, 1},
    {"resnet18 64@28 3x3/2 128", 64, 64, 28, 128, 3, 2, 1}, {"resnet18 64@28 1x1/2 128", 64, 64, 28, 128, 1, 2, 0},
    {"resnet18 128@14 3x3", 64, 128, 14, 128, 3, 1, 1},     {"resnet18 128@14 3x3/2 256", 64, 128, 14, 256, 3, 2, 1},
    {"resnet18 256@7 3x3", 64, 256, 7, 256, 3, 1, 1},       {"resnet18 256@7 3x3/2 512", 64, 256, 7, 512, 3, 2, 1},
    {"resnet18 512@4 3x3", 64, 512, 4, 512, 3, 1, 1},       {"resnet50 stem 3@224 7x7/2", 2, 3, 224, 64, 7, 2, 3},
    {"resnet50 64@56 1x1 256", 4, 64, 56, 256, 1, 1, 0},    {"resnet50 256@56 1x1 64", 4, 256, 56, 64, 1, 1, 0},
    {"resnet50 64@56 3x3", 4, 64, 56, 64, 3, 1, 1},         {"depthwise 96@28 3x3", 16, 96, 28, 96, 3, 1, 1, 96},
};

Attributes window(const Layer& l) {
  return {{"stride", Shape{l.stride, l.stride}},
          {"padding", Shape{l.padding, l.padding}},
          {"dilation", Shape{1, 1}},
          {"groups", l.groups}};
}

// One pass of a layer, as the planner sees it.
struct Pass {
  const char* name;
  const char* op;
  std::vector<TensorSpec> inputs;
  Attributes attributes;
};

std::vector<Pass> passes_of(const Layer& l, DType type) {
  Attributes forward = window(l), data = window(l), weight = window(l);
  forward.set({"has_bias", 1});
  forward.set({"has_residual", 0});
  forward.set({"activation", static_cast<int>(ElementwiseFunction::relu)});
  data.set({"input_size", Shape{l.size, l.size}});
  weight.set({"kernel_size", Shape{l.kernel, l.kernel}});
  const TensorSpec x{l.x(), type, {}}, w{l.weight(), type, {}}, y{l.y(), type, {}}, bias{{l.out}, DType::f32, {}};
  return {{"forward", "conv2d_bias_act", {x, w, bias}, forward},
          {"dx", "conv2d_input_gradient", {y, w}, data},
          {"dweight", "conv2d_weight_gradient", {y, x}, weight}};
}

// Memory as plans have it: aligned, and outside of any other array.
std::unique_ptr<Storage> random_numbers(const TensorSpec& spec, const Layout& layout, uint64_t stream) {
  const size_t bytes = bytes_of(spec.shape, spec.dtype, layout);
  auto memory = std::make_unique<Storage>(Device{}, bytes);
  dispatch(spec.dtype, [&]<class T>(TypeTag<T>) {
    T* numbers = static_cast<T*>(memory->data());
    for (size_t i = 0; i < bytes / sizeof(T); ++i)
      numbers[i] = static_cast<T>(2 * uniform_at(1, stream, i % 65521) - 1);
  });
  return memory;
}

double seconds_now(bool processor_time) {
  timespec now{};
  clock_gettime(processor_time ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// A candidate with operands of its own.
class Contender {
 public:
  Contender(const GraphNode& node, const Candidate& candidate) : name(candidate.name), kernel_(candidate.build()) {
    for (size_t i = 0; i < node.inputs.size(); ++i)
      memory_.push_back(random_numbers(node.inputs[i].spec(), candidate.input_layouts[i], i));
    memory_.push_back(random_numbers(node.outputs[0], candidate.output_layouts[0], 9));
    memory_.push_back(std::make_unique<Storage>(Device{}, std::max<size_t>(1, candidate.workspace_bytes)));
    for (const auto& memory : memory_) pointers_.push_back(memory->data());
  }

  void run(ThreadPool& threads) {
    std::span<void* const> all(pointers_);
    const double start = seconds_now(threads.size() == 1);
    kernel_->run({all.first(all.size() - 2), all.subspan(all.size() - 2, 1), all.back(), &threads, nullptr});
    best = std::min(best, seconds_now(threads.size() == 1) - start);
  }

  std::string name;
  double best = 1e9;  // seconds

 private:
  std::unique_ptr<Kernel> kernel_;
  std::vector<std::unique_ptr<Storage>> memory_;
  std::vector<void*> pointers_;
};

void measure(const Layer& layer, const Pass& pass, ThreadPool& threads) {
  Graph graph;
  std::vector<GraphValue> values;
  for (const TensorSpec& spec : pass.inputs) values.push_back({graph.add_input(LeafKind::feed, spec), 0});
  const GraphNode& node = *graph.add(find_op(pass.op), values, pass.attributes);
  std::vector<Layout> arriving(values.size());
  std::vector<Contender> contenders;
  for (const Candidate& candidate : candidates_for({node, arriving})) contenders.emplace_back(node, candidate);
  for (Contender& one : contenders) one.run(threads);  // first touch
  for (Contender& one : contenders) one.best = 1e9;
  const double start = seconds_now(false);
  for (int round = 0; round < 20 && (round < 3 || seconds_now(false) - start < 0.4); ++round)
    for (Contender& one : contenders) one.run(threads);
  fmt::print("{:<28} {:<8}", layer.name, pass.name);
  for (const Contender& one : contenders) fmt::print("  {} {:.1f}", one.name, layer.operations() / one.best * 1e-9);
  fmt::print("\n");
}

void run(const std::string& text, const std::string& dtype) {
  ThreadPool threads(cpu::cpu_threads());
  fmt::print("{} on {} thread(s), {}, GFLOP/s of the direct algorithm\n", cpu::name_of(cpu::instruction_set()),
             threads.size(), dtype);
  bool found = false;
  for (const Layer& layer : kLayers) {
    if (std::string(layer.name).find(text) == std::string::npos) continue;
    found = true;
    for (const Pass& pass : passes_of(layer, dtype == "bf16" ? DType::bf16 : DType::f32)) measure(layer, pass, threads);
  }
  if (!found) throw_error<ConfigError>("[bench_convolution] --case: no layer has '{}' in its name", text);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    std::string text, dtype = "f32", kernels;
    CLI::App flags("The convolutions of common nets by each algorithm", "bench_convolution");
    flags.add_option("--case", text, "layers whose name has this in it");
    flags.add_option("--dtype", dtype, "f32 or bf16")->check(CLI::IsMember({"f32", "bf16"}));
    flags.add_option("--kernels", kernels, "the instruction set");
    CLI11_PARSE(flags, argc, argv);
    if (!kernels.empty()) cpu::set_instruction_set_for_test(bench::instruction_set_named(kernels));
    run(text, dtype);
  } catch (const Error& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
}
