// How near to memory speed the ops are that do little more than read and write: bytes of operands over time, as a share
// of what a plain copy moves in the same process, measured in turns with it.
//
//   bench_memory [--dtype f32|bf16] [--case TEXT] [--rounds N]
//
// BONFIRE_CPU_THREADS sets the threads; the copy uses as many. Bytes are those of a node's inputs and outputs, each
// counted once; of the optimizer, what its sweep reads and writes. Exponentials and products take time of their own:
// attention, GELU and the losses are not expected to reach a copy's speed.

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "bonfire/backend/cpu/device/threads.h"
#include "bonfire/base/random.h"
#include "bonfire/bonfire.h"
#include "bonfire/ops/attention.h"
#include "bonfire/passes/pass.h"
#include "bonfire/runtime/plan_cache.h"
#include "bonfire/runtime/profile.h"
#include "measure.h"

namespace {

using namespace bonfire;

Tensor random_tensor(const Shape& shape, DType dtype, uint64_t stream) {
  std::vector<float> numbers(static_cast<size_t>(shape.count()));
  for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = 2 * uniform_at(1, stream, i) - 1;
  Tensor made = cast(Tensor::from<float>(numbers, shape), dtype).detach();
  synchronize();
  return made;
}

Tensor random_ids(const Shape& shape, int64_t below) {
  std::vector<int64_t> ids(static_cast<size_t>(shape.count()));
  for (size_t i = 0; i < ids.size(); ++i)
    ids[i] = static_cast<int64_t>(uniform_at(2, 2, i) * static_cast<float>(below));
  return Tensor::from<int64_t>(ids, shape);
}

// GB/s of a copy that reads and writes as many bytes as the larger cases do.
class Copy {
 public:
  explicit Copy(int threads) : threads_(threads), from_(kBytes, 1), to_(kBytes, 2) { speed(); }

  double speed() {
    auto start = bench::Clock::now();
    std::vector<std::thread> others;
    for (int i = 1; i < threads_; ++i) others.emplace_back([this, i] { copy(i); });
    copy(0);
    for (std::thread& other : others) other.join();
    return 2 * static_cast<double>(kBytes) / bench::seconds(bench::Clock::now() - start) * 1e-9;
  }

 private:
  static constexpr size_t kBytes = size_t{64} << 20;
  void copy(int part) {
    const size_t begin = kBytes * static_cast<size_t>(part) / static_cast<size_t>(threads_);
    const size_t end = kBytes * static_cast<size_t>(part + 1) / static_cast<size_t>(threads_);
    std::memcpy(to_.data() + begin, from_.data() + begin, end - begin);
  }

  int threads_;
  std::vector<char> from_, to_;
};

struct Options {
  DType dtype = DType::f32;
  std::string text;
  int rounds = 12;
};

class Table {
 public:
  explicit Table(const Options& options) : options_(options), copy_(cpu::cpu_threads()) {
    std::printf("%-28s %-26s %9s %8s %8s %6s\n", "case", "node (candidate)", "us", "GB/s", "copy", "share");
  }

  // A step that does `body` again and again. Rows are printed for nodes of `ops`; `bytes` replaces what is counted.
  void measure(const std::string& name, const std::vector<std::string>& ops, const std::function<void()>& body,
               double bytes = 0) {
    if (name.find(options_.text) == std::string::npos) return;
    runtime::clear_plan_cache();
    for (int i = 0; i < 2; ++i) {  // the first may make operands
      body();
      synchronize();
    }
    std::shared_ptr<runtime::Plan> plan = largest_plan();
    runtime::start_profile(*plan);
    std::vector<double> copies;
    for (int i = 0; i < options_.rounds; ++i) {
      copies.push_back(copy_.speed());
      body();
      synchronize();
    }
    const double copy = bench::median(copies);
    for (const runtime::NodeTime& time : runtime::profile_of(*plan)) {
      if (std::find(ops.begin(), ops.end(), time.note->node) == ops.end()) continue;
      const double speed = (bytes > 0 ? bytes : time.note->bytes) / time.seconds * 1e-9;
      std::printf("%-28s %-26s %9.1f %8.1f %8.1f %6.2f\n", name.c_str(),
                  (time.note->node + " (" + time.note->candidate + ")").c_str(), time.seconds * 1e6, speed, copy,
                  speed / copy);
    }
    std::fflush(stdout);
  }

  // y = forward(x) and its gradient by every x, with a random gradient of y.
  void measure_both(const std::string& name, const std::vector<std::string>& ops, const std::vector<Shape>& shapes,
                    const std::function<Tensor(const std::vector<Tensor>&)>& forward) {
    if (name.find(options_.text) == std::string::npos) return;
    std::vector<Tensor> x;
    for (const Shape& shape : shapes) x.push_back(random_tensor(shape, options_.dtype, x.size() + 1));
    Tensor dy;
    measure(name, ops, [&] {
      std::vector<Tensor> sums;  // all that outlives the step: results lie where those of a training step do
      {
        std::vector<Tensor> inputs;
        for (const Tensor& one : x) {
          inputs.push_back(one.detach());
          inputs.back().set_requires_grad(true);
        }
        Tensor y = forward(inputs);
        if (!dy.defined()) dy = random_tensor(y.shape(), y.dtype(), 99);
        Tensor total = sum(y * dy);
        total.backward();
        sums.push_back(total.detach());
        for (const Tensor& one : inputs) sums.push_back(sum(one.grad()));
      }
      commit();
    });
  }

 private:
  static std::shared_ptr<runtime::Plan> largest_plan() {
    auto plans = runtime::cached_plans();
    return *std::max_element(plans.begin(), plans.end(),
                             [](const auto& a, const auto& b) { return a->notes.size() < b->notes.size(); });
  }

  Options options_;
  Copy copy_;
};

void measure_sequences(Table& table) {
  constexpr int64_t kRows = 8192, kWidth = 1024, kVocabulary = 30522;
  const Tensor weight = random_tensor({kWidth}, DType::f32, 11), bias = random_tensor({kWidth}, DType::f32, 12);
  table.measure_both("layer norm", {"layer_norm", "layer_norm_gradient"}, {{kRows, kWidth}},
                     [&](const std::vector<Tensor>& x) { return layer_norm(x[0], weight, bias); });
  table.measure_both("GELU", {"gelu", "gelu_gradient", "fused_elementwise"}, {{kRows, kWidth}},
                     [](const std::vector<Tensor>& x) { return gelu(x[0]); });
  table.measure_both("softmax", {"softmax", "softmax_gradient"}, {{kRows, kWidth}},
                     [](const std::vector<Tensor>& x) { return softmax(x[0], 1); });
  table.measure_both("dropout", {"dropout"}, {{kRows, kWidth}},
                     [](const std::vector<Tensor>& x) { return dropout(x[0], 0.1); });
  const Tensor target = random_ids({kRows}, kWidth);
  table.measure_both("softmax + cross-entropy", {"cross_entropy", "cross_entropy_gradient"}, {{kRows, kWidth}},
                     [&](const std::vector<Tensor>& x) { return cross_entropy(x[0], target); });
  table.measure_both("attention", {"attention", "attention_gradient"},
                     {{16, 12, 128, 64}, {16, 12, 128, 64}, {16, 12, 128, 64}},
                     [](const std::vector<Tensor>& x) { return scaled_dot_product_attention(x[0], x[1], x[2]); });
  const Tensor ids = random_ids({16, 128}, kVocabulary);
  table.measure_both("embedding", {"embedding", "embedding_gradient"}, {{kVocabulary, 256}},
                     [&](const std::vector<Tensor>& x) { return embedding(x[0], ids); });
}

void measure_images(Table& table) {
  const Shape image{32, 64, 56, 56};
  nn::BatchNorm2d norm({.channels = image[1]});
  table.measure_both(
      "batch norm + add + ReLU",
      {"batch_norm_statistics", "batch_norm_act", "batch_norm_act_gradient_sums", "batch_norm_act_gradient_apply"},
      {image, image}, [&](const std::vector<Tensor>& x) { return relu(norm(x[0]) + x[1]); });
  table.measure_both("max pooling 3x3 / 2", {"max_pool2d", "max_pool2d_gradient"}, {image},
                     [](const std::vector<Tensor>& x) {
                       return max_pool2d(x[0], {.kernel = {3, 3}, .stride = {2, 2}, .padding = {1, 1}});
                     });
  table.measure_both("average pooling, whole", {"adaptive_avg_pool2d", "adaptive_avg_pool2d_gradient", "avg_pool2d"},
                     {image}, [](const std::vector<Tensor>& x) {
                       return adaptive_avg_pool2d(x[0], {1, 1});
                     });
}

// Adam reads parameter, gradient and two states, and writes all but the gradient.
void measure_optimizer(Table& table) {
  constexpr int64_t kParameters = 8 << 20;
  const Parameter weight(Variable({{kParameters}, DType::f32, {}}));
  optim::AdamW optimizer(std::vector<Parameter>{weight}, {.lr = 1e-3});
  table.measure(
      "AdamW sweep", {"optimizer_update"},
      [&] {
        sum(square(weight.value())).backward();
        optimizer.step();
        optimizer.clear_grad();
      },
      7.0 * sizeof(float) * kParameters);
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  std::string dtype = "f32";
  CLI::App flags("How near to memory speed ops are", "bench_memory");
  flags.add_option("--dtype", dtype, "f32 or bf16")->check(CLI::IsMember({"f32", "bf16"}));
  flags.add_option("--case", options.text, "cases whose name has this in it");
  flags.add_option("--rounds", options.rounds, "turns of each op and the copy")->check(CLI::PositiveNumber);
  CLI11_PARSE(flags, argc, argv);
  options.dtype = dtype == "bf16" ? DType::bf16 : DType::f32;
  Table table(options);
  measure_sequences(table);
  measure_images(table);
  measure_optimizer(table);
  return 0;
}
