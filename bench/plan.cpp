// Where the time of a training step goes: every node of the compiled step, what was chosen for it, its layout, time,
// GFLOP/s, GB/s and share.
//
//   bench_plan CASE [--dtype f32|bf16] [--batch N] [--steps N]
//
// CASE: resnet18_small, mnist_cnn, bert_mini, resnet50, lstm. BONFIRE_CPU_THREADS sets the threads.

#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

#include "bonfire/base/random.h"
#include "bonfire/bonfire.h"
#include "bonfire/passes/pass.h"
#include "bonfire/runtime/plan_cache.h"
#include "bonfire/runtime/profile.h"

namespace {

using namespace bonfire;
using Clock = std::chrono::steady_clock;

double milliseconds_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

// Of all threads of this process: says more than the clock where the machine is shared.
double processor_milliseconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  auto milliseconds = [](const timeval& time) {
    return 1e3 * static_cast<double>(time.tv_sec) + 1e-3 * static_cast<double>(time.tv_usec);
  };
  return milliseconds(usage.ru_utime) + milliseconds(usage.ru_stime);
}

Tensor random_images(const Shape& shape) {
  std::vector<float> pixels(static_cast<size_t>(shape.count()));
  for (size_t i = 0; i < pixels.size(); ++i) pixels[i] = 2 * uniform_at(1, 1, i) - 1;
  return Tensor::from<float>(pixels, shape);
}

Tensor random_numbers(const Shape& shape, int64_t below) {
  std::vector<int64_t> numbers(static_cast<size_t>(shape.count()));
  for (size_t i = 0; i < numbers.size(); ++i)
    numbers[i] = static_cast<int64_t>(uniform_at(2, 2, i) * static_cast<float>(below));
  return Tensor::from<int64_t>(numbers, shape);
}

struct Wanted {
  std::string name;
  int64_t batch = 0;  // 0: as in the case
  int steps = 12;
};

// The largest plan is the step.
std::shared_ptr<runtime::Plan> step_plan() {
  std::vector<std::shared_ptr<runtime::Plan>> plans = runtime::cached_plans();
  return *std::max_element(plans.begin(), plans.end(),
                           [](const auto& a, const auto& b) { return a->notes.size() < b->notes.size(); });
}

template <class Model, class Loss>
int profile(Model model, const Wanted& wanted, const Tensor& input, const Tensor& target, const Loss& loss_of) {
  optim::Momentum optimizer(model.parameters(), {.lr = 0.01, .momentum = 0.9, .weight_decay = 1e-4});
  auto step = compile([&](const Tensor& x, const Tensor& y) {
    Tensor loss = loss_of(model(x), y);
    loss.backward();
    optimizer.step();
    optimizer.clear_grad();
    return loss;
  });
  auto start = Clock::now();
  step(input, target);
  synchronize();
  std::printf("first step, with compilation and tuning: %.0f ms\n", milliseconds_since(start));
  step(input, target);
  synchronize();
  std::vector<double> whole, processor;
  for (int i = 0; i < wanted.steps; ++i) {
    double before = processor_milliseconds();
    start = Clock::now();
    step(input, target);
    synchronize();
    whole.push_back(milliseconds_since(start));
    processor.push_back(processor_milliseconds() - before);
  }
  std::sort(whole.begin(), whole.end());
  std::shared_ptr<runtime::Plan> plan = step_plan();
  runtime::start_profile(*plan);
  for (int i = 0; i < wanted.steps; ++i) step(input, target);
  std::fputs(runtime::print_profile(*plan).c_str(), stdout);
  double median = whole[whole.size() / 2];
  std::printf("%s: step %.3f ms (best %.3f, of processor time %.3f), %.1f samples/s, temporaries %.1f MiB\n",
              wanted.name.c_str(), median, whole[0], *std::min_element(processor.begin(), processor.end()),
              1e3 * static_cast<double>(input.size(0)) / median,
              static_cast<double>(runtime::peak_bytes(*plan, {})) / 1048576);
  return 0;
}

Tensor class_loss(const Tensor& output, const Tensor& label) { return cross_entropy(output, label); }

int run(const Wanted& wanted) {
  auto batch = [&](int64_t usual) { return wanted.batch > 0 ? wanted.batch : usual; };
  if (wanted.name == "resnet18_small")
    return profile(models::resnet18_small({.classes = 10, .in_channels = 1}), wanted,
                   random_images({batch(64), 1, 28, 28}), random_numbers({batch(64)}, 10), class_loss);
  if (wanted.name == "mnist_cnn")
    return profile(models::mnist_cnn(), wanted, random_images({batch(64), 1, 28, 28}), random_numbers({batch(64)}, 10),
                   class_loss);
  if (wanted.name == "resnet50")
    return profile(models::resnet50(), wanted, random_images({batch(16), 3, 224, 224}),
                   random_numbers({batch(16)}, 1000), class_loss);
  if (wanted.name == "lstm")
    return profile(models::lstm_classifier({.vocabulary = 1000, .embedding = 256, .hidden = 256}), wanted,
                   random_numbers({batch(64), 100}, 1000), random_numbers({batch(64)}, 5), class_loss);
  if (wanted.name == "bert_mini") {
    constexpr int64_t kVocabulary = 30522, kLength = 128;
    auto loss = [&](const Tensor& logits, const Tensor& tokens) {  // [N, T, V], [N, T]
      return cross_entropy(reshape(logits, {batch(16) * kLength, kVocabulary}), reshape(tokens, {batch(16) * kLength}));
    };
    return profile(models::bert_mini(), wanted, random_numbers({batch(16), kLength}, kVocabulary),
                   random_numbers({batch(16), kLength}, kVocabulary), loss);
  }
  std::fprintf(stderr, "bench_plan: there is no case '%s': see the head of bench/plan.cpp\n", wanted.name.c_str());
  return 2;
}

}  // namespace

int main(int argc, char** argv) {
  Wanted wanted{.name = argc > 1 ? argv[1] : "resnet18_small"};
  passes::Options options = passes::current_options();
  for (int i = 2; i + 1 < argc; i += 2) {
    std::string flag = argv[i];
    if (flag == "--dtype") options.use_amp = std::string(argv[i + 1]) == "bf16";
    if (flag == "--batch") wanted.batch = std::stoll(argv[i + 1]);
    if (flag == "--steps") wanted.steps = std::stoi(argv[i + 1]);
  }
  passes::current_options() = options;
  return run(wanted);
}
