#pragma once
// Ranks of model parallel training, for bench_parallel. A rank is that program with --rank and what it is, has one
// processor and one thread, and answers each line with one number:
//
//   step N      milliseconds of a training step, of N in a row
//   busy        how many of those its device computed
//   times N     the same steps once more, with the programs of its stage timed: milliseconds of F
//   forward, backward, weights   of F, B and W then
//   slots       bytes of values between its programs
//   peak        kilobytes of memory that it has had at most
//
//   end         it leaves; all ranks of a job are told before any is waited for
//
// Between questions it sleeps, so that several kinds can take turns.

#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "bonfire/base/random.h"
#include "bonfire/bonfire.h"
#include "bonfire/kernel/queue.h"
#include "bonfire/parallel/pipeline/pipeline.h"
#include "bonfire/train/report/step_profile.h"
#include "measure.h"

namespace bench {

using namespace bonfire;

inline constexpr int64_t kMicroBatches = 8;

// What is trained in stages, and the batch of a step.
struct StagedWork {
  nn::Module module;
  pipeline::Forward forward;  // of {input, label}
  Tensor input, label;
};

inline Tensor random_input(const Shape& shape) {
  std::vector<float> values(static_cast<size_t>(shape.count()));
  for (size_t i = 0; i < values.size(); ++i) values[i] = normal_at(1, 1, i);
  return Tensor::from<float>(values, shape);
}

inline Tensor random_labels(int64_t count, int64_t classes) {
  std::vector<int64_t> values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = static_cast<int64_t>(uniform_at(1, 2, i) * static_cast<float>(classes));
  return Tensor::from<int64_t>(values, {count});
}

template <class Model>
StagedWork classifier_work(const Model& model, const Shape& input, int64_t classes) {
  return {.module = model,
          .forward = [model](std::span<const Tensor> batch) -> std::vector<Tensor> {
            return {cross_entropy(model(batch[0]), batch[1])};
          },
          .input = random_input(input),
          .label = random_labels(input[0], classes)};
}

// "layers": 16 layers of 512 × 512, which can be cut into equal halves, 64 rows a micro-batch; "resnet18_small": 4
// images of 28 × 28 a micro-batch.
inline StagedWork staged_work(const std::string& name) {
  if (name == "layers") {
    constexpr int64_t kLayers = 16, kWidth = 512, kRows = 64;
    nn::Sequential layers;
    for (int64_t i = 0; i < kLayers; ++i) {
      layers.push_back(nn::Linear({.in = kWidth, .out = kWidth}));
      if (i + 1 < kLayers) layers.push_back(nn::ReLU());
    }
    return classifier_work(layers, {kMicroBatches * kRows, kWidth}, kWidth);
  }
  constexpr int64_t kImages = 4, kSize = 28;
  return classifier_work(models::resnet18_small({.classes = 10, .in_channels = 1}),
                         {kMicroBatches * kImages, 1, kSize, kSize}, 10);
}

inline optim::Momentum momentum_of(const nn::Module& module) {
  return optim::Momentum(module.parameters(), {.lr = 0.001, .momentum = 0.9});
}

using Answers = std::map<std::string, std::function<double()>>;

inline int answer_questions(const std::function<void()>& step, Answers answers) {
  double busy = 0;
  auto milliseconds = [&](int times) {
    if (fleet::world_size() > 1) fleet::group().barrier();
    const double before = queue_of({}).seconds_computing();
    const auto begin = Clock::now();
    for (int i = 0; i < times; ++i) step();
    synchronize();
    if (fleet::world_size() > 1) fleet::group().barrier();
    const double taken = seconds(Clock::now() - begin);
    busy = 1e3 * (queue_of({}).seconds_computing() - before) / times;
    return 1e3 * taken / times;
  };
  answers["busy"] = [&] { return busy; };
  answers["peak"] = [] { return static_cast<double>(peak_kilobytes()); };
  for (int i = 0; i < 3; ++i) step();  // compiles and chooses kernels
  synchronize();
  std::string line, what;
  while (std::getline(std::cin, line) && line != "end") {
    std::istringstream words(line);
    int times = 1;
    words >> what >> times;
    const double answer = what == "step" ? milliseconds(times) : answers.at(what)();
    if (what == "times") milliseconds(times);
    std::printf("%f\n", what == "times" ? answers.at("forward")() : answer);
    std::fflush(stdout);
  }
  return 0;
}

// The micro-batches one after the other, and an update.
inline int be_one_process(const std::string& work_name) {
  pin(0);
  const StagedWork work = staged_work(work_name);
  auto optimizer = momentum_of(work.module);
  std::vector<Tensor> inputs, labels;
  const int64_t rows = work.input.size(0) / kMicroBatches;
  for (int64_t i = 0; i < kMicroBatches; ++i) {
    inputs.push_back(slice(work.input, 0, i * rows, (i + 1) * rows));
    labels.push_back(slice(work.label, 0, i * rows, (i + 1) * rows));
  }
  commit();
  auto backward = [&](const Tensor& input, const Tensor& label) {
    const Tensor batch[] = {input, label};
    Tensor loss = work.forward(batch)[0] * (1.0 / static_cast<double>(kMicroBatches));
    loss.backward();
    return loss;
  };
  auto adds = compile([&](const Tensor& input, const Tensor& label) { return backward(input, label); });
  auto updates = compile([&](const Tensor& input, const Tensor& label) {
    Tensor loss = backward(input, label);
    optimizer.step();
    optimizer.clear_grad();
    return loss;
  });
  return answer_questions(
      [&] {
        for (size_t i = 0; i + 1 < inputs.size(); ++i) adds(inputs[i], labels[i]);
        updates(inputs.back(), labels.back());
      },
      {});
}

inline int be_stage(const std::string& work_name, const std::string& schedule) {
  pin(std::atoi(std::getenv("RANK")));
  fleet::init({.backend = "shm", .mesh = {.pipeline = 2}});
  const StagedWork work = staged_work(work_name);
  pipeline::Pipeline stages(work.module, momentum_of(work.module), work.forward,
                            {.micro_batches = kMicroBatches, .schedule = pipeline::parse_schedule(schedule)});
  pipeline::StageTimes times;
  auto step = [&] { stages.train({{work.input, work.label}}); };
  step();
  if (fleet::rank() == 0 && stages.balanced())
    std::fprintf(stderr, "%s, %s: cut before %s, %s\n", work_name.c_str(), schedule.c_str(),
                 stages.balanced()->firsts[0].c_str(), pipeline::to_string(*stages.balanced()).c_str());
  Answers answers;
  answers["times"] = [&] {
    stages.start_profile();
    return 0.0;
  };
  answers["forward"] = [&] {
    times = stages.stop_profile();
    return 1e3 * times.forward;
  };
  answers["backward"] = [&] { return 1e3 * times.backward; };
  answers["weights"] = [&] { return 1e3 * times.weights; };
  answers["slots"] = [&] { return static_cast<double>(stages.slot_bytes()); };
  const int status = answer_questions(step, answers);
  fleet::leave();
  return status;
}

// BERT-mini on 8 texts of 128 words; on several ranks each has its part of every layer.
inline int be_tensor_rank(int ranks) {
  pin(ranks == 1 ? 0 : std::atoi(std::getenv("RANK")));
  if (ranks > 1) fleet::init({.backend = "shm", .mesh = {.tensor = ranks}});
  const train::StepSubject subject = train::step_subject("bert_mini", {.batch = 8});
  const models::Model model = ranks > 1 ? fleet::distributed_model(subject.model) : subject.model;
  optim::Momentum optimizer = momentum_of(model);
  if (ranks > 1) optimizer = fleet::distributed_optimizer(optimizer);
  auto step = compile([&](const Tensor& input, const Tensor& target) {
    Tensor loss = subject.loss(model(input), target);
    loss.backward();
    optimizer.step();
    optimizer.clear_grad();
    return loss;
  });
  const int status = answer_questions([&] { step(subject.input, subject.target); }, {});
  if (ranks > 1) fleet::leave();
  return status;
}

// BERT-mini on 8 texts of 128 words a rank, two ranks.
inline int be_sharded_rank(const std::string& level) {
  pin(std::atoi(std::getenv("RANK")));
  fleet::init({.backend = "shm"});
  const train::StepSubject subject = train::step_subject("bert_mini", {.batch = 8});
  const models::Model model = fleet::distributed_model(subject.model);
  optim::Optimizer optimizer =
      fleet::distributed_optimizer(optim::AdamW(model.parameters(), {.lr = 0.0001}), {.sharding = level});
  auto step = compile([&](const Tensor& input, const Tensor& target) {
    Tensor loss = subject.loss(model(input), target);
    loss.backward();
    optimizer.step();
    optimizer.clear_grad();
    return loss;
  });
  const int status = answer_questions([&] { step(subject.input, subject.target); }, {});
  fleet::leave();
  return status;
}

}  // namespace bench
