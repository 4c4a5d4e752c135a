// Pipelines of stages train as one device does that adds up the gradients of as many micro-batches: every schedule, two
// to four stages, cuts by hand and by cost, last batches that do not fill their micro-batches, models with skip
// connections, tied weights and several heads.
#include "bonfire/parallel/pipeline/pipeline.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <map>
#include <thread>

#include "bonfire/base/random.h"
#include "bonfire/bonfire.h"
#include "bonfire/comm/local/local_group.h"
#include "bonfire/models/bert.h"
#include "bonfire/models/lstm_classifier.h"
#include "bonfire/models/resnet.h"
#include "bonfire/models/two_headed.h"
#include "bonfire/parallel/fleet.h"
#include "tests/support/expect_error.h"

namespace bonfire::pipeline_test {
namespace {

using pipeline::ScheduleKind;

// A model and what is done with it.
struct Net {
  nn::Module module;
  pipeline::Forward forward;  // of {input, label}
};

struct Data {
  Shape input;          // of a row
  int64_t symbols = 0;  // inputs are whole numbers below
  int64_t classes = 4;
  bool labels_rows = false;  // a label for each element of a row
};

struct Subject {
  std::function<Net()> make;
  Data data;
};

class SmallVgg : public nn::Callable<SmallVgg> {
 public:
  SmallVgg()
      : Callable("SmallVgg"),
        features_(register_module("features", make_features())),
        classifier_(
            register_module("classifier", nn::Sequential({nn::Linear({.in = 8 * 4, .out = 12}), nn::ReLU(),
                                                          nn::Dropout(0.3), nn::Linear({.in = 12, .out = 4})}))) {}
  Tensor forward(const Tensor& x) const { return classifier_(flatten(features_(x), 1)); }

 private:
  static nn::Sequential make_features() {
    nn::Sequential list;
    int64_t in = 2;
    for (int64_t out : {6, 8}) {
      list.push_back(nn::Conv2d({.in = in, .out = out, .kernel = {3}, .padding = {1}}));
      list.push_back(nn::BatchNorm2d({.channels = out}));
      list.push_back(nn::ReLU());
      list.push_back(nn::MaxPool2d({.kernel = {2}}));
      in = out;
    }
    return list;
  }
  nn::Sequential features_, classifier_;
};

template <class Model>
Net classifier_of(const Model& model) {
  return {model, [model](std::span<const Tensor> batch) -> std::vector<Tensor> {
            const Tensor logits = model(batch[0]);
            return {cross_entropy(logits, batch[1]), sum(logits.to(DType::f64))};
          }};
}

Subject small_vgg() {
  return {[] { return classifier_of(SmallVgg()); }, {.input = {2, 8, 8}}};
}
Subject small_resnet() {
  return {[] {
            return classifier_of(
                models::ResNet({.blocks = {1, 1, 1, 1}, .small_images = true}, {.classes = 4, .in_channels = 2}));
          },
          {.input = {2, 16, 16}}};
}
Subject small_lstm() {
  return {[] {
            return classifier_of(models::lstm_classifier(
                {.vocabulary = 9, .embedding = 6, .hidden = 8, .layers = 2, .classes = 4, .dropout = 0.2}));
          },
          {.input = {5}, .symbols = 9}};
}
Subject small_bert() {
  return {[]() -> Net {
            models::BertForMaskedLM model(
                {.vocabulary = 11, .hidden = 8, .layers = 2, .heads = 2, .intermediate = 12, .positions = 6});
            return {model, [model](std::span<const Tensor> batch) -> std::vector<Tensor> {
                      const Tensor mask = not_equal(batch[0], 1).to(DType::i64);
                      const Tensor logits = model(batch[0], models::BertInputs{.attention_mask = mask});
                      return {cross_entropy(reshape(logits, {-1, 11}), reshape(batch[1], {-1}))};
                    }};
          },
          {.input = {6}, .symbols = 11, .classes = 11, .labels_rows = true}};
}
Subject two_headed() {
  return {[]() -> Net {
            models::TwoHeaded model({.classes = 4, .in_channels = 2});
            return {model, [model](std::span<const Tensor> batch) -> std::vector<Tensor> {
                      const auto [cls, box] = model(batch[0]);
                      const Tensor boxes = mean(square(box));
                      return {cross_entropy(cls, batch[1]) + boxes, boxes};
                    }};
          },
          {.input = {2, 16, 16}}};
}

std::vector<Tensor> batch_of(const Data& data, int64_t rows, uint64_t number, Device device) {
  Shape shape{rows}, label_shape{rows};
  for (int64_t extent : data.input) shape.push_back(extent);
  if (data.labels_rows) label_shape = shape;
  const auto count = static_cast<size_t>(shape.count());
  std::vector<int64_t> labels(static_cast<size_t>(label_shape.count()));
  for (size_t i = 0; i < labels.size(); ++i)
    labels[i] = static_cast<int64_t>(uniform_at(8, number, i) * static_cast<float>(data.classes));
  const Tensor label = Tensor::from<int64_t>(labels, label_shape, device);
  if (data.symbols > 0) {
    std::vector<int64_t> symbols(count);
    for (size_t i = 0; i < count; ++i)
      symbols[i] = static_cast<int64_t>(uniform_at(7, number, i) * static_cast<float>(data.symbols));
    return {Tensor::from<int64_t>(symbols, shape, device), label};
  }
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) values[i] = normal_at(7, number, i);
  return {Tensor::from<float>(values, shape, device), label};
}

struct Training {
  int64_t micro_batches = 4;
  std::vector<int64_t> batches = {8, 8, 6, 8};  // rows; the third does not fill its micro-batches
  std::optional<double> clip = {};
  ScheduleKind schedule = ScheduleKind::one_f_one_b;
  std::optional<std::vector<std::string>> cut = {};
  bool adam = false;  // not where a gradient is nothing but rounding: it makes that as large as any
  int replicas = 1;
};

// All weights and buffers by name, optimizer states, and the losses of every micro-batch.
using Outcome = std::map<std::string, std::vector<double>>;

optim::Optimizer optimizer_for(const Training& run, const nn::Module& module) {
  if (run.adam) return optim::Adam(module.parameters(), {.lr = 0.003});
  return optim::Momentum(module.parameters(), {.lr = 0.05, .momentum = 0.9});
}

int64_t rows_of_micro_batch(const Training& run) {
  return (run.batches[0] + run.micro_batches - 1) / run.micro_batches;
}

Outcome on_one_device(const Subject& subject, const Training& run) {
  manual_seed(5);
  const Net net = subject.make();
  optim::Optimizer optimizer = optimizer_for(run, net.module);
  Outcome outcome;
  // Of several replicas one after the other.
  for (size_t number = 0; number < run.batches.size() * static_cast<size_t>(run.replicas); ++number) {
    const size_t b = number / static_cast<size_t>(run.replicas), replica = number % static_cast<size_t>(run.replicas);
    const std::vector<Tensor> batch = batch_of(subject.data, run.batches[b], b + 100 * replica, {});
    const uint64_t first = StepContext::current().random.step;
    int64_t done = 0;
    for (uint64_t i = 0; done < run.batches[b]; ++i) {
      const int64_t count = std::min(rows_of_micro_batch(run), run.batches[b] - done);
      const std::vector<Tensor> part{slice(batch[0], 0, done, done + count), slice(batch[1], 0, done, done + count)};
      commit();
      StepContext::current().random.step = first + i;
      const std::vector<Tensor> results = net.forward(part);
      (results[0] * (static_cast<double>(count) / static_cast<double>(run.batches[b] * run.replicas))).backward();
      commit();
      StepContext::current().random.step = first + i + 1;
      for (size_t k = 0; k < results.size(); ++k) outcome["result " + std::to_string(k)].push_back(results[k].item());
      done += count;
      StepContext::current().random.step = first + i + 1;
    }
    if (replica + 1 < static_cast<size_t>(run.replicas)) continue;
    const uint64_t next = StepContext::current().random.step;
    if (run.clip) optim::clip_grad_norm(optimizer.parameters(), *run.clip);
    optimizer.step();
    optimizer.clear_grad();
    StepContext::current().random.step = next;
  }
  for (const auto& [name, variable] : net.module.state_dict()) outcome[name] = variable.value().to_vector<double>();
  for (const auto& [name, variable] : optimizer.state()) outcome["of " + name] = variable.value().to_vector<double>();
  return outcome;
}

// What a rank holds, and whether it holds nothing else.
Outcome on_stage(const Subject& subject, const Training& run, Device device) {
  manual_seed(5);
  const Net net = subject.make();
  net.module.to(device);
  optim::Optimizer optimizer = optimizer_for(run, net.module);
  pipeline::Pipeline pipeline(
      net.module, optimizer, net.forward,
      {.micro_batches = run.micro_batches, .schedule = run.schedule, .cut = run.cut, .clip_grad_norm = run.clip});
  Outcome outcome;
  for (size_t b = 0; b < run.batches.size(); ++b) {
    const auto replica = static_cast<uint64_t>(fleet::mesh().place(Axis::data));
    const std::vector<Tensor> results =
        pipeline.train(batch_of(subject.data, run.batches[b], b + 100 * replica, device));
    for (size_t k = 0; k < results.size(); ++k)
      for (double one : results[k].to_vector<double>()) outcome["result " + std::to_string(k)].push_back(one);
  }
  synchronize();
  std::map<const VariableState*, std::string> others;
  for (const auto& [name, variable] : net.module.state_dict()) {
    if (pipeline.holds(variable) || pipeline.owns(variable)) {
      outcome[name] = variable.value().to_vector<double>();
    } else {
      others[&variable.state()] = name;
      others[&variable.grad_variable().state()] = name + "'s gradient";
      for (const auto& [state_name, state] : optimizer.state_of(variable)) others[&state.state()] = state_name;
    }
  }
  for (const auto& [state, name] : others) {
    EXPECT_FALSE(state->has_values) << name << " has values on stage " << pipeline.stage();
    EXPECT_FALSE(state->buffer && state->buffer.storage->is_allocated())
        << name << " has memory on stage " << pipeline.stage();
  }
  for (const Parameter& parameter : net.module.parameters())
    if (pipeline.holds(parameter))
      for (const auto& [name, state] : optimizer.state_of(parameter))
        outcome["of " + name] = state.value().to_vector<double>();
  return outcome;
}

std::vector<Outcome> on_stages(const Subject& subject, const Training& run, const MeshSizes& sizes,
                               std::vector<std::string>* errors = nullptr) {
  const int world = std::max(1, sizes.data) * sizes.pipeline;
  auto groups = comm::local_groups(world, {.timeout = std::chrono::seconds(60)});
  std::vector<Outcome> outcomes(static_cast<size_t>(world));
  std::vector<std::string> said(static_cast<size_t>(world));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world; ++rank)
    threads.emplace_back([&, rank] {
      const auto i = static_cast<size_t>(rank);
      fleet::join(groups[i], sizes);
      try {
        outcomes[i] = on_stage(subject, run, {DeviceType::cpu, static_cast<int16_t>(rank)});
      } catch (const Error& error) {
        said[i] = error.what();
      }
      try {
        fleet::leave();
      } catch (const Error&) {  // a rank has failed, and was named before
      }
    });
  for (std::thread& thread : threads) thread.join();
  for (size_t i = 0; i < said.size() && errors == nullptr; ++i) EXPECT_EQ(said[i], "") << "rank " << i;
  if (errors != nullptr) *errors = said;
  return outcomes;
}

void expect_near(const Outcome& found, const Outcome& expected, const std::string& what) {
  for (const auto& [name, values] : found) {
    ASSERT_TRUE(expected.contains(name)) << what << ", " << name;
    const std::vector<double>& wanted = expected.at(name);
    ASSERT_EQ(values.size(), wanted.size()) << what << ", " << name;
    for (size_t i = 0; i < values.size(); ++i)
      ASSERT_NEAR(values[i], wanted[i], 1e-4 * std::max(1.0, std::abs(wanted[i])))
          << what << ", " << name << " at " << i;
  }
}

// Together the stages have everything that one device has.
void expect_all(const std::vector<Outcome>& stages, const Outcome& expected, const std::string& what) {
  for (const auto& value : expected) {
    const std::string& name = value.first;
    if (name.starts_with("of step")) continue;
    EXPECT_TRUE(std::any_of(stages.begin(), stages.end(), [&](const Outcome& one) { return one.contains(name); }))
        << what << ": nobody has " << name;
  }
}

void expect_same_as_one_device(const Subject& subject, const Training& run, int stages, const std::string& what) {
  const Outcome expected = on_one_device(subject, run);
  const std::vector<Outcome> found = on_stages(subject, run, {.pipeline = stages});
  for (const Outcome& one : found) expect_near(one, expected, what);
  expect_all(found, expected, what);
}

constexpr ScheduleKind kSchedules[] = {ScheduleKind::gpipe, ScheduleKind::one_f_one_b, ScheduleKind::zero_bubble};

TEST(Pipeline, TrainsAVggLikeOneDeviceInEverySchedule) {
  for (ScheduleKind schedule : kSchedules)
    expect_same_as_one_device(small_vgg(), {.schedule = schedule, .cut = {{"features.4"}}}, 2, name_of(schedule));
}

TEST(Pipeline, TrainsInFourStagesOfAnySize) {
  for (ScheduleKind schedule : kSchedules)
    expect_same_as_one_device(
        small_vgg(), {.clip = 0.5, .schedule = schedule, .cut = {{"features.1", "features.6", "classifier.3"}}}, 4,
        name_of(schedule));
}

TEST(Pipeline, CutsByItselfWhereTheStagesCostTheSame) {
  for (int stages : {2, 3}) expect_same_as_one_device(small_vgg(), {}, stages, std::to_string(stages) + " stages");
}

TEST(Pipeline, TrainsAResNetWithItsSkipConnections) {
  expect_same_as_one_device(small_resnet(), {.micro_batches = 2, .batches = {4, 4}, .cut = {{"layer2"}}}, 2,
                            "two stages");
}

TEST(Pipeline, TrainsABertWhoseFirstAndLastStageShareItsWords) {
  for (ScheduleKind schedule : kSchedules)
    expect_same_as_one_device(small_bert(), {.clip = 0.3, .schedule = schedule, .cut = {{"bert.encoder.layer.1"}}}, 2,
                              name_of(schedule));
  expect_same_as_one_device(small_bert(),
                            {.clip = 0.3, .cut = {{"bert.encoder", "bert.encoder.layer.1", "cls.predictions.decoder"}}},
                            4, "four stages");
}

TEST(Pipeline, TrainsHeadsInStagesOfTheirOwn) {
  expect_same_as_one_device(two_headed(), {.cut = {{"cls", "box"}}}, 3,
                            "a head in the second stage, a head in the third");
  expect_same_as_one_device(two_headed(), {.schedule = ScheduleKind::zero_bubble, .cut = {{"conv3"}}}, 2,
                            "zero bubble");
}

TEST(Pipeline, TrainsAnLstm) {
  for (ScheduleKind schedule : kSchedules)
    expect_same_as_one_device(small_lstm(), {.schedule = schedule, .cut = {{"lstm", "fc"}}, .adam = true}, 3,
                              name_of(schedule));
}

// Running statistics and losses are each replica's own.
TEST(Pipeline, OfTwoReplicasAveragesTheirGradients) {
  const Training run{.clip = 0.5, .cut = {{"conv3"}}, .replicas = 2};
  const Outcome expected = on_one_device(two_headed(), run);
  for (Outcome& one : on_stages(two_headed(), run, {.data = 2, .pipeline = 2})) {
    std::erase_if(one, [](const auto& named) {
      return named.first.starts_with("result") || named.first.find("running") != std::string::npos ||
             named.first.find("num_batches") != std::string::npos;
    });
    expect_near(one, expected, "two replicas of two stages");
  }
}

// --- memory ---------------------------------------------------

TEST(Pipeline, KeepsLessOf1F1BThanOfGPipe) {
  auto bytes_of = [](ScheduleKind schedule) {
    std::vector<size_t> bytes(2);
    auto groups = comm::local_groups(2, {.timeout = std::chrono::seconds(60)});
    std::vector<std::thread> threads;
    for (int rank = 0; rank < 2; ++rank)
      threads.emplace_back([&, rank] {
        const auto i = static_cast<size_t>(rank);
        const Device device{DeviceType::cpu, static_cast<int16_t>(rank)};
        fleet::join(groups[i], {.pipeline = 2});
        const Subject subject = small_vgg();
        const Net net = subject.make();
        net.module.to(device);
        optim::Optimizer optimizer = optim::SGD(net.module.parameters(), {.lr = 0.1});
        pipeline::Pipeline pipeline(net.module, optimizer, net.forward,
                                    {.micro_batches = 8, .schedule = schedule, .cut = {{"features.4"}}});
        pipeline.train(batch_of(subject.data, 8, 1, device));
        bytes[i] = pipeline.slot_bytes();
        fleet::leave();
      });
    for (std::thread& thread : threads) thread.join();
    return bytes;
  };
  const std::vector<size_t> all = bytes_of(ScheduleKind::gpipe), few = bytes_of(ScheduleKind::one_f_one_b);
  EXPECT_LE(few[0] * 2, all[0]);  // 2 and 3 slots instead of 8
  EXPECT_LE(few[1] * 2, all[1]);
}

// --- what cannot be -------------------------------------------

std::vector<std::string> errors_of(const Subject& subject, const Training& run, int stages) {
  std::vector<std::string> errors;
  on_stages(subject, run, {.pipeline = stages}, &errors);
  return errors;
}

void expect_on_all(const std::vector<std::string>& errors, const std::string& text) {
  for (const std::string& error : errors) EXPECT_NE(error.find(text), std::string::npos) << error;
}

TEST(Pipeline, RefusesACutThatCannotBe) {
  expect_on_all(errors_of(small_vgg(), {.cut = {{"features.40"}}}, 2),
                "cut names 'features.40', and the step runs through no such module; there are features.0, features.1");
  expect_on_all(errors_of(small_vgg(), {.cut = {{"features"}}}, 2), "with which the first stage would begin too");
  expect_on_all(errors_of(small_vgg(), {.cut = {{"classifier", "classifier.0"}}}, 3), "where a stage begins already");
  expect_on_all(errors_of(small_vgg(), {.cut = {{"classifier", "features.4"}}}, 3), "the step runs through it before");
  expect_on_all(errors_of(small_vgg(), {.cut = {{"classifier"}}}, 3), "the mesh has 3 stages: name 2");
  expect_on_all(errors_of(small_resnet(), {.cut = {{"layer1.0.conv2"}}}, 2),
                "goes through 'layer1.0.relu', which computes on both sides");
}

TEST(Pipeline, OfStagesWithOtherSchedulesOrCutsBeginsOnNone) {
  auto run_both = [](const pipeline::PipelineOptions& first, const pipeline::PipelineOptions& second) {
    auto groups = comm::local_groups(2, {.timeout = std::chrono::seconds(60)});
    std::vector<std::string> errors(2);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < 2; ++rank)
      threads.emplace_back([&, rank] {
        const auto i = static_cast<size_t>(rank);
        const Device device{DeviceType::cpu, static_cast<int16_t>(rank)};
        fleet::join(groups[i], {.pipeline = 2});
        try {
          const Subject subject = small_vgg();
          const Net net = subject.make();
          net.module.to(device);
          optim::Optimizer optimizer = optim::SGD(net.module.parameters(), {.lr = 0.1});
          pipeline::Pipeline pipeline(net.module, optimizer, net.forward, rank == 0 ? first : second);
          pipeline.train(batch_of(subject.data, 8, 1, device));
        } catch (const Error& error) {
          errors[i] = error.what();
        }
        try {
          fleet::leave();
        } catch (const Error&) {  // named above
        }
      });
    for (std::thread& thread : threads) thread.join();
    return errors;
  };
  const pipeline::PipelineOptions usual{.micro_batches = 4, .cut = {{"classifier"}}};
  pipeline::PipelineOptions other = usual;
  other.schedule = ScheduleKind::gpipe;
  expect_on_all(run_both(usual, other), "pipeline.schedule is 1f1b on rank 0 and gpipe on rank 1");
  other = usual;
  other.cut = {{"features.4"}};
  expect_on_all(run_both(usual, other), "pipeline.cut is classifier on rank 0 and features.4 on rank 1");
}

TEST(Pipeline, NamesStageAndPlaceInTheScheduleWhereAnotherStageIsGone) {
  auto groups = comm::local_groups(2, {.timeout = std::chrono::seconds(60)});
  std::string error;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank)
    threads.emplace_back([&, rank] {
      const Device device{DeviceType::cpu, static_cast<int16_t>(rank)};
      fleet::join(groups[static_cast<size_t>(rank)], {.pipeline = 2});
      try {
        const Subject subject = small_vgg();
        const Net net = subject.make();
        net.module.to(device);
        optim::Optimizer optimizer = optim::SGD(net.module.parameters(), {.lr = 0.1});
        pipeline::Pipeline pipeline(net.module, optimizer, net.forward, {.micro_batches = 4, .cut = {{"classifier"}}});
        for (int step = 0; step < 5; ++step) {
          pipeline.train(batch_of(subject.data, 8, 1, device))[0].to_vector<double>();
          if (rank == 1 && step == 1) StepContext::current().tell_failure("this stage ends");
          if (rank == 1 && step == 1) break;
        }
      } catch (const Error& found) {
        if (rank == 0) error = found.what();
      }
      try {
        fleet::leave();
      } catch (const Error&) {  // named above
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_NE(error.find("[pipeline] stage 0 of 2, "), std::string::npos) << error;
  EXPECT_NE(error.find("of its schedule ("), std::string::npos) << error;
  EXPECT_NE(error.find("this stage ends"), std::string::npos) << error;
}

}  // namespace
}  // namespace bonfire::pipeline_test
