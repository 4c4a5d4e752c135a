#include "bonfire/train/report/step_profile.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "bonfire/base/error.h"
#include "bonfire/base/machine.h"
#include "bonfire/base/random.h"
#include "bonfire/ops/loss.h"
#include "bonfire/ops/shape_ops.h"
#include "bonfire/optim/optimizers.h"
#include "bonfire/parallel/fleet.h"
#include "bonfire/runtime/compile.h"
#include "bonfire/runtime/plan_cache.h"
#include "bonfire/runtime/profile.h"
#include "bonfire/train/report/timeline.h"

namespace bonfire::train {

namespace {

// Of all threads of this process: says more than the clock where the machine is shared.
double processor_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

void require_memory(const Shape& shape, size_t element) {  // bytes of one
  const double bytes = static_cast<double>(shape.count()) * static_cast<double>(element);
  const auto memory = static_cast<double>(base::memory_bytes());
  if (bytes > memory)
    throw_error<ConfigError>(
        "[inspect] a batch {} needs {:.1f} GB, this machine has {:.1f} GB; expected a smaller batch_size or image_size",
        to_string(shape), bytes / 1e9, memory / 1e9);
}

Tensor random_images(const Shape& shape, Device place) {
  require_memory(shape, sizeof(float));
  std::vector<float> pixels(static_cast<size_t>(shape.count()));
  for (size_t i = 0; i < pixels.size(); ++i) pixels[i] = 2 * uniform_at(1, 1, i) - 1;
  return Tensor::from<float>(pixels, shape, place);
}

Tensor random_numbers(const Shape& shape, int64_t below, Device place) {
  require_memory(shape, sizeof(int64_t));
  std::vector<int64_t> numbers(static_cast<size_t>(shape.count()));
  for (size_t i = 0; i < numbers.size(); ++i)
    numbers[i] = static_cast<int64_t>(uniform_at(2, 2, i) * static_cast<float>(below));
  return Tensor::from<int64_t>(numbers, shape, place);
}

StepSubject on(const SubjectOptions& options, StepSubject subject) {
  subject.model.to(options.place);
  place(subject.model, options.placement);
  return subject;
}

// The plan with most nodes is the step: others only read results.
std::shared_ptr<runtime::Plan> largest_plan() {
  std::vector<std::shared_ptr<runtime::Plan>> plans = runtime::cached_plans();
  return *std::max_element(plans.begin(), plans.end(),
                           [](const auto& a, const auto& b) { return a->notes.size() < b->notes.size(); });
}

}  // namespace

StepSubject step_subject(const std::string& model, const SubjectOptions& options) {
  int64_t n = options.batch;
  Device place = options.place;
  if (models::task_of(model) == "masked_words") {
    constexpr int64_t kVocabulary = 30522, kLength = 128;                 // tokens
    auto every_token = [n](const Tensor& logits, const Tensor& tokens) {  // [N, T, V], [N, T]
      return cross_entropy(reshape(logits, {n * kLength, kVocabulary}), reshape(tokens, {n * kLength}));
    };
    Tensor tokens = random_numbers({n, kLength}, kVocabulary, place);
    return on(options, {models::make(model), tokens, tokens, every_token});
  }
  if (models::task_of(model) == "next_token") {
    constexpr int64_t kVocabulary = 512, kContext = 128;
    auto every_token = [](const Tensor& logits, const Tensor& tokens) {  // [N, T, V], [N, T]
      return cross_entropy(flatten(logits, 0, 1), flatten(tokens, 0, 1));
    };
    Tensor tokens = random_numbers({n, kContext}, kVocabulary, place);
    return on(options,
              {models::make(model, {.vocabulary = kVocabulary, .context = kContext}), tokens, tokens, every_token});
  }
  if (models::task_of(model) == "sequence_classification") {
    constexpr int64_t kVocabulary = 1000, kLength = 100, kClasses = 5;
    return on(options, {models::make(model, {.vocabulary = kVocabulary}),
                        random_numbers({n, kLength}, kVocabulary, place), random_numbers({n}, kClasses, place)});
  }
  bool small = model == "mnist_cnn" || model == "lenet" || model == "mlp" || model == "resnet18_small";
  int64_t size = options.image_size.value_or(small ? 28 : 224), channels = small ? 1 : 3;
  int64_t classes = options.classes.value_or(small ? 10 : 1000);
  return on(options, {models::make(model, {.classes = classes, .in_channels = channels}),
                      random_images({n, channels, size, size}, place), random_numbers({n}, classes, place)});
}

StepProfile profile_step(const StepSubject& subject, const ProfileOptions& options) {
  optim::Momentum optimizer(subject.model.parameters(), {.lr = 0.01, .momentum = 0.9, .weight_decay = 1e-4});
  const fleet::detail::DistributedWhile distributed(optimizer, options.strategy);
  auto step = compile([&](const Tensor& x, const Tensor& y) {
    Tensor logits = subject.model(x);
    Tensor loss = subject.loss ? subject.loss(logits, y) : cross_entropy(logits, y);
    loss.backward();
    optimizer.step();
    optimizer.clear_grad();
    return loss;
  });
  auto timed = [&] {
    double start = seconds_now();
    step(subject.input, subject.target);
    synchronize();
    return 1e3 * (seconds_now() - start);
  };
  StepProfile profile;
  profile.samples = subject.input.size(0);
  profile.first = timed();
  profile.plan = largest_plan();
  if (options.steps == 0) return profile;
  timed();
  std::vector<double> whole;
  profile.processor = 1e300;
  for (int i = 0; i < options.steps; ++i) {
    double before = processor_seconds();
    whole.push_back(timed());
    profile.processor = std::min(profile.processor, 1e3 * (processor_seconds() - before));
  }
  std::sort(whole.begin(), whole.end());
  profile.median = whole[whole.size() / 2];
  profile.best = whole[0];
  runtime::start_profile(*profile.plan);
  for (int i = 0; i < options.steps; ++i) step(subject.input, subject.target);
  synchronize();
  return profile;
}

namespace {

// "12.0 MiB", of several devices "12.0 MiB on cpu:0, 3.1 MiB on cpu:1".
std::string temporaries_of(const runtime::Plan& plan) {
  const std::vector<Device> devices = runtime::devices_of(plan);
  std::string text;
  for (Device device : devices)
    text += fmt::format("{}{:.1f} MiB{}", text.empty() ? "" : ", ",
                        static_cast<double>(runtime::peak_bytes(plan, device)) / 1048576,
                        devices.size() > 1 ? " on " + bonfire::to_string(device) : "");
  return text;
}

}  // namespace

std::string to_string(const StepProfile& profile) {
  return runtime::print_profile(*profile.plan) +
         fmt::format(
             "step {:.3f} ms (best {:.3f}, of processor time {:.3f}; the first, with compilation and tuning, {:.0f}), "
             "{:.1f} samples/s, temporaries {}\n",
             profile.median, profile.best, profile.processor, profile.first,
             1e3 * static_cast<double>(profile.samples) / profile.median, temporaries_of(*profile.plan));
}

std::string to_json(const StepProfile& profile) {
  nlohmann::json nodes = nlohmann::json::array();
  for (const runtime::NodeTime& time : runtime::profile_of(*profile.plan)) {
    const runtime::PlanNote& note = *time.note;
    nodes.push_back({{"op", note.node},
                     {"module", note.path},
                     {"candidate", note.candidate},
                     {"error", note.error},
                     {"layout", note.output_layouts.empty() ? "" : to_string(note.output_layouts[0])},
                     {"result", to_string(note.result)},
                     {"us", 1e6 * time.seconds},
                     {"gflops", 1e-9 * note.operations / time.seconds},
                     {"bytes", note.bytes}});
  }
  return nlohmann::json{{"step_ms", profile.median}, {"best_ms", profile.best},    {"processor_ms", profile.processor},
                        {"first_ms", profile.first}, {"samples", profile.samples}, {"nodes", std::move(nodes)}}
             .dump() +
         "\n";
}

}  // namespace bonfire::train
