// A trainer that is given a program's own model, data, task and callbacks.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "bonfire/base/random.h"
#include "bonfire/nn/activation.h"
#include "bonfire/nn/linear.h"
#include "bonfire/nn/norm.h"
#include "bonfire/ops/elementwise.h"
#include "bonfire/ops/loss.h"
#include "bonfire/ops/reduce.h"
#include "bonfire/ops/shape_ops.h"
#include "bonfire/train/tasks/classification.h"
#include "bonfire/train/tasks/known_tasks.h"
#include "tests/support/expect_error.h"
#include "tests/support/scratch_folder.h"
#include "tests/train/as_ranks.h"
#include "tests/train/course.h"

namespace bonfire::train::own_trainer_test {
namespace {

using bonfire::testing::ScratchFolder;
using Words = std::vector<std::string>;

template <class T>
data::Array array_of(DType dtype, const std::vector<T>& values, const Shape& shape) {
  data::Array array{dtype, shape, std::vector<std::byte>(values.size() * sizeof(T))};
  std::memcpy(array.bytes.data(), values.data(), array.bytes.size());
  return array;
}

// Four numbers each, of which a sum by shares is to be said; of some samples nobody knows it (-1).
class Numbers final : public data::Dataset {
 public:
  Numbers(int64_t size, uint64_t stream, bool some_unknown = false)
      : size_(size), stream_(stream), some_unknown_(some_unknown) {}
  int64_t size() const override { return size_; }
  data::Sample get(int64_t index) const override {
    std::vector<float> values;
    float sum = 0;
    for (uint64_t i = 0; i < 4; ++i) {
      values.push_back(2 * uniform_at(3, stream_, 4 * static_cast<uint64_t>(index) + i) - 1);
      sum += 0.25F * static_cast<float>(i + 1) * (values.back() + 1);
    }
    if (some_unknown_ && index % 3 == 1) sum = -1;
    return {array_of(DType::f32, values, {4}), array_of<float>(DType::f32, {sum}, {1}), {}};
  }

 private:
  int64_t size_;
  uint64_t stream_;
  bool some_unknown_;
};

class Net : public nn::Callable<Net> {
 public:
  explicit Net(int64_t hidden = 16)
      : Callable("Net"),
        first_(register_module("first", nn::Linear({.in = 4, .out = hidden}))),
        second_(register_module("second", nn::Linear({.in = hidden, .out = 1}))) {}
  Tensor forward(const Tensor& x) const { return second_(tanh(first_(x))); }

 private:
  nn::Linear first_, second_;
};

const Metric kError{.name = "rmse", .unit = Metric::Unit::number, .higher_is_better = false};

std::shared_ptr<const Task> regression() {
  return make_task(
      {.name = "regression",
       .unit = "rows",
       .loss = [](const Outputs& outputs, const Tensor& label) { return mse_loss(outputs[0], label); },
       .metrics = {{.metric = kError,
                    .sum = [](const Outputs& outputs, const Tensor& label) { return sum(square(outputs[0] - label)); },
                    .of_mean = [](double mean) { return std::sqrt(mean); }}}});
}

// Only targets that are known count.
class RegressionOfKnown final : public Task {
 public:
  std::string name() const override { return "regression of what is known"; }
  Tensor targets(const Tensor& label) const override { return sum(greater_equal(label, 0).to(DType::i64)); }
  Tensor loss(const Outputs& outputs, const Tensor& label) const override {
    return squares(outputs, label) / maximum(targets(label).to(DType::f32), 1.0);
  }
  std::vector<Metric> metrics() const override { return {kError}; }
  std::vector<Tensor> sums(const Outputs& outputs, const Tensor& label) const override {
    return {squares(outputs, label)};
  }

 private:
  static Tensor squares(const Outputs& outputs, const Tensor& label) {
    return sum(where(greater_equal(label, 0), square(outputs[0] - label), 0.0));
  }
};

struct Fit {
  Words settings = {};
  std::shared_ptr<const Task> task = regression();
  bool some_unknown = false;
  int64_t stop_at = -1;
  int64_t hidden = 16;
  int64_t samples = 203;
  FitOptions options = {};
};

Config config_of(const ScratchFolder& folder, const Words& more) {
  Words settings{"output=" + (folder / "runs").string(),
                 "place=cpu",
                 "batch_size=16",
                 "epochs=3",
                 "optimizer=adam",
                 "lr=0.01",
                 "log_freq=1"};
  settings.insert(settings.end(), more.begin(), more.end());
  return default_config(settings);
}

void fit_as_rank(const ScratchFolder& folder, const Fit& fit, Course& course) {
  const Config config = config_of(folder, fit.settings);
  manual_seed(config.seed);
  Trainer trainer(config, Net(fit.hidden), fit.task);
  trainer.add(std::make_unique<Witness>(course, fit.stop_at));
  trainer.add(metrics_log());
  trainer.add(report_page());
  trainer.add(tensorboard_log());
  trainer.fit(std::make_shared<Numbers>(fit.samples, 0, fit.some_unknown),
              std::make_shared<Numbers>(41, 1, fit.some_unknown), fit.options);
}

Course fit_alone(const ScratchFolder& folder, const Fit& fit = {}) {
  Course course;
  fit_as_rank(folder, fit, course);
  return course;
}

Course fit_on_ranks(const ScratchFolder& folder, int ranks, const Fit& fit) {
  Course course;
  course.errors = as_ranks(ranks, [&](int rank) {
    Fit own = fit;
    own.settings.push_back("place=cpu:" + std::to_string(rank));
    fit_as_rank(folder, own, course);
  });
  for (const std::string& error : course.errors) EXPECT_EQ(error, "");
  return course;
}

void expect_same_course(const Course& found, const Course& expected) {
  ASSERT_EQ(found.steps.size(), expected.steps.size());
  for (size_t i = 0; i < found.steps.size(); ++i) {
    EXPECT_NEAR(found.steps[i].loss, expected.steps[i].loss, 2e-5 * expected.steps[i].loss + 1e-7) << "step " << i + 1;
    EXPECT_NEAR(found.steps[i].scores.at(0).value, expected.steps[i].scores.at(0).value, 1e-4) << "step " << i + 1;
  }
  ASSERT_EQ(found.evaluations.size(), expected.evaluations.size());
  for (size_t i = 0; i < found.evaluations.size(); ++i)
    EXPECT_NEAR(found.evaluations[i].score("rmse"), expected.evaluations[i].score("rmse"), 1e-4) << i;
}

double error_by_hand(const Net& model, const data::Dataset& samples) {
  NoGrad no_grad;
  double sum = 0;
  for (int64_t i = 0; i < samples.size(); ++i) {
    const data::Sample sample = samples.get(i);
    float label = 0;
    std::memcpy(&label, sample.label.bytes.data(), sizeof label);
    const double said = model(Tensor::from_bytes(sample.input.bytes, {{1, 4}, DType::f32, {}})).item();
    sum += (said - label) * (said - label);
  }
  return std::sqrt(sum / static_cast<double>(samples.size()));
}

TEST(OwnTrainer, LearnsSavesTheBestAndEvaluatesIt) {
  ScratchFolder folder;
  const auto train = std::make_shared<Numbers>(203, 0), validation = std::make_shared<Numbers>(41, 1),
             test = std::make_shared<Numbers>(37, 2);
  manual_seed(1);
  Net net;
  Trainer trainer(config_of(folder, {"epochs=25", "lr=0.05"}), net, regression());
  Course course;
  trainer.add(std::make_unique<Witness>(course, -1));
  trainer.add(report_page());
  trainer.add(metrics_log());
  const RunEnds end = trainer.fit(train, validation, {.test = test, .name = "numbers"});
  ASSERT_EQ(course.evaluations.size(), 26U);
  EXPECT_LT(end.best_score, 0.5 * course.evaluations[0].score("rmse"));
  double lowest = course.evaluations[0].score("rmse");
  for (const EvaluationReport& report : course.evaluations)
    if (report.on == EvaluationReport::On::validation) lowest = std::min(lowest, report.score("rmse"));
  EXPECT_EQ(end.best_score, lowest);  // the lower the better
  EXPECT_EQ(course.evaluations[25].on, EvaluationReport::On::test);
  EXPECT_EQ(end.test_score, course.evaluations[25].score("rmse"));
  EXPECT_ERROR(course.evaluations[0].score("top1"), ConfigError, "expected one of: rmse");

  EXPECT_NEAR(trainer.evaluate(end.weights, test).score("rmse"), *end.test_score, 1e-6);
  EXPECT_NEAR(error_by_hand(net, *test), *end.test_score, 1e-5);  // the model has the best weights now
  EXPECT_EQ(course.begin.model, "Net");
  EXPECT_EQ(course.begin.data, "numbers");
  EXPECT_EQ(course.begin.unit, "rows");
  EXPECT_EQ(course.begin.parameters, 4 * 16 + 16 + 16 + 1);
  const std::string page = folder.get("runs/1/report.html");
  for (const char* part :
       {"203 rows to train on, 41 to validate, 37 to test", "last rmse on 41 validation rows", ">rmse<"})
    EXPECT_NE(page.find(part), std::string::npos) << part;
  for (const char* part : {"top-1", "Confusion", "accuracy", "Pixels", "images"})
    EXPECT_EQ(page.find(part), std::string::npos) << part;
  EXPECT_EQ(folder.get("runs/1/config.yaml").find("model:"), std::string::npos);
  EXPECT_ERROR(require_known_task(folder / "runs/1"), ConfigError, "a program's own task (regression)");
}

TEST(OwnTrainer, ResumesToTheSameBitsInTheMiddleOfAnEpoch) {
  ScratchFolder whole, parts;
  const Words settings{"ema_decay=0.9", "drop_last=false"};
  const Course expected = fit_alone(whole, {.settings = settings});
  const Course first = fit_alone(parts, {.settings = settings, .stop_at = 17});
  ASSERT_TRUE(first.end.interrupted);
  const Course second = fit_alone(parts, {.settings = {"resume=auto", "output=" + (parts / "runs").string()}});
  EXPECT_FALSE(second.end.interrupted);
  EXPECT_EQ(second.end.best_score, expected.end.best_score);
  EXPECT_EQ(second.steps.back().loss, expected.steps.back().loss);
  for (const char* file : {"best.safetensors", "checkpoints/step-00000039/weights.safetensors",
                           "checkpoints/step-00000039/average.safetensors"})
    EXPECT_TRUE(parts.get(std::string("runs/1/") + file) == whole.get(std::string("runs/1/") + file)) << file;
}

TEST(OwnTrainer, TwoRanksTrainAsOne) {
  ScratchFolder one, two, devices;
  const Words settings{"drop_last=false", "ema_decay=0.9"};
  auto with = [&](const char* more) {
    Words all = settings;
    all.emplace_back(more);
    return Fit{.settings = all};
  };
  const Course expected = fit_alone(one, with("batch_size=16"));
  expect_same_course(fit_on_ranks(two, 2, with("batch_size=8")), expected);
  // One process, one model of the program's: each device has copies of its variables.
  expect_same_course(fit_alone(devices, with("place=cpu:0,cpu:1")), expected);
}

// A third of the samples has no target, so that batches differ in what they count for.
TEST(OwnTrainer, RanksAndMicroBatchesWeighWhatTheirTargetsDo) {
  const Fit fit{.settings = {"drop_last=false", "optimizer=sgd", "lr=0.1", "batch_size=30", "epochs=2"},
                .task = std::make_shared<RegressionOfKnown>(),
                .some_unknown = true,
                .samples = 107};
  ScratchFolder whole, parts, ranks, both;
  auto with = [&](const Words& more) {
    Fit other = fit;
    other.settings.insert(other.settings.end(), more.begin(), more.end());
    return other;
  };
  const Course expected = fit_alone(whole, fit);
  auto weights = [](const ScratchFolder& folder, int64_t step) {
    nn::SafetensorsFile file =
        nn::SafetensorsFile::open(folder / fmt::format("runs/1/checkpoints/step-{:08}/weights.safetensors", step));
    std::vector<float> all;
    for (const nn::TensorEntry& entry : file.entries()) {
      const auto* values = reinterpret_cast<const float*>(entry.bytes.data());
      all.insert(all.end(), values, values + entry.shape.count());
    }
    return all;
  };
  const std::vector<float> trained = weights(whole, 8);
  auto expect_weights = [&](const std::vector<float>& found) {
    ASSERT_EQ(found.size(), trained.size());
    for (size_t i = 0; i < found.size(); ++i) EXPECT_NEAR(found[i], trained[i], 1e-5) << i;
  };
  fit_alone(parts, with({"batch_size=10", "strategy.accumulate_steps=3"}));
  expect_weights(weights(parts, 22));
  expect_same_course(fit_on_ranks(ranks, 2, with({"batch_size=15"})), expected);
  expect_weights(weights(ranks, 8));
  fit_on_ranks(both, 2, with({"batch_size=5", "strategy.accumulate_steps=3"}));
  expect_weights(weights(both, 22));
}

TEST(OwnTrainer, CallbacksSeeStepsEvaluationsAndEpochsInTheirOrder) {
  ScratchFolder folder;
  std::string seen;
  auto note = [&](const std::string& text) { seen += text + " "; };
  Trainer trainer(config_of(folder, {"epochs=2", "batch_size=64", "eval_freq=2", "log_freq=2"}), Net(), regression());
  trainer.add({.begin = [&](const RunBegins& run) { note(run.task); },
               .step = [&](const StepReport& report) { note(fmt::format("s{}", report.step)); },
               .evaluation = [&](const EvaluationReport& report) { note(fmt::format("v{}", report.epoch)); },
               .epoch = [&](const EpochReport& report) { note(fmt::format("e{}@{}", report.epoch, report.step)); },
               .end = [&](const RunEnds&) { note("end"); }});
  trainer.fit(std::make_shared<Numbers>(192, 0), std::make_shared<Numbers>(20, 1));
  EXPECT_EQ(seen, "regression s1 s2 s3 e1@3 s4 s6 v2 e2@6 end ");

  // One of them ends the run.
  Course course;
  Trainer stopped(config_of(folder, {"epochs=50"}), Net(), regression());
  stopped.add({.epoch = [](const EpochReport& report) {
    if (report.epoch == 2) Trainer::request_stop();
  }});
  const RunEnds end = stopped.fit(std::make_shared<Numbers>(64, 0), std::make_shared<Numbers>(20, 1));
  EXPECT_TRUE(end.interrupted);
  EXPECT_EQ(end.checkpoint.filename(), "step-00000008");
}

// Whether the first number is above 0; of some samples nobody is asked (-100).
class Signs final : public data::Dataset {
 public:
  explicit Signs(uint64_t stream, bool some_ignored = false) : of_(90, stream), some_ignored_(some_ignored) {}
  int64_t size() const override { return of_.size(); }
  data::Sample get(int64_t index) const override {
    data::Sample sample = of_.get(index);
    float first = 0;
    std::memcpy(&first, sample.input.bytes.data(), sizeof first);
    const int64_t label = some_ignored_ && index % 3 == 1 ? -100 : first > 0 ? 1 : 0;
    sample.label = array_of<int64_t>(DType::i64, {label}, {});
    return sample;
  }
  std::vector<std::string> class_names() const override { return {"below", "above"}; }

 private:
  Numbers of_;
  bool some_ignored_;
};

class TwoOutputs : public nn::Callable<TwoOutputs> {
 public:
  explicit TwoOutputs(int64_t classes = 2)
      : Callable("TwoOutputs"), fc_(register_module("fc", nn::Linear({.in = 4, .out = classes}))) {}
  std::vector<Tensor> forward(const Tensor& x) const {
    const Tensor logits = fc_(norm_(x));
    return {logits, x};
  }

 private:
  nn::BatchNorm1d norm_ = register_module("norm", nn::BatchNorm1d({.channels = 4}));
  nn::Linear fc_;
};

// A model with several outputs, integers as labels, classes that have names: what the known tasks are made of.
TEST(OwnTrainer, AnyModuleAndAClassificationOfItsOwn) {
  ScratchFolder folder;
  Trainer trainer(config_of(folder, {"epochs=8", "lr=0.05"}), TwoOutputs(), classification({.classes = 2}));
  Course course;
  trainer.add(std::make_unique<Witness>(course, -1));
  trainer.add(metrics_log());
  trainer.add(report_page());
  const RunEnds end = trainer.fit(std::make_shared<Signs>(0), std::make_shared<Signs>(1));
  EXPECT_GT(end.best_score, 0.9);
  EXPECT_EQ(course.evaluations.back().confusion.size(), 4U);
  EXPECT_NE(folder.get("runs/1/report.html").find(">above</th>"), std::string::npos);
}

TEST(OwnTrainer, SamplesThatTheLossIgnoresCountForNothing) {
  ScratchFolder folder;
  Trainer trainer(config_of(folder, {"epochs=8", "lr=0.05"}), TwoOutputs(),
                  classification({.classes = 2, .ignores = true}));
  Course course;
  trainer.add(std::make_unique<Witness>(course, -1));
  trainer.fit(std::make_shared<Signs>(0, true), std::make_shared<Signs>(1, true));
  const EvaluationReport& last = course.evaluations.back();
  ASSERT_EQ(last.confusion.size(), 4U);
  const int64_t right = last.confusion[0] + last.confusion[3], wrong = last.confusion[1] + last.confusion[2];
  EXPECT_EQ(right + wrong, 60);  // of 90
  EXPECT_DOUBLE_EQ(last.score("top1"), static_cast<double>(right) / 60);
  EXPECT_GT(last.score("top1"), 0.75);
  EXPECT_TRUE(std::isfinite(last.loss));
}

TEST(OwnTrainer, AModelWithOtherOutputsThanClassesIsRefused) {
  ScratchFolder folder;
  Trainer trainer(config_of(folder, {"epochs=1"}), TwoOutputs(3), classification({.classes = 2}));
  EXPECT_ERROR(trainer.fit(std::make_shared<Signs>(0), std::make_shared<Signs>(1)), ConfigError,
               "expected logits [N, 2]; give the model as many outputs");
}

TEST(OwnTrainer, WhatHasNoMeaningOrDoesNotFitIsRefused) {
  ScratchFolder folder;
  auto make = [&](const Words& more, std::shared_ptr<const Task> task = regression()) {
    Trainer trainer(config_of(folder, more), Net(), std::move(task));
  };
  EXPECT_ERROR(make({"model=lenet"}), ConfigError, "model has no meaning here");
  EXPECT_ERROR(make({"data=photos"}), ConfigError, "data has no meaning here");
  EXPECT_ERROR(make({"mixup=0.2"}), ConfigError, "mixup has no meaning here");
  Config config = config_of(folder, {});
  config.validation_share = 0.1;
  EXPECT_ERROR(Trainer(config, Net(), regression()), ConfigError, "validation_share has no meaning here");
  EXPECT_ERROR(make({}, nullptr), ConfigError, "given no task");
  EXPECT_ERROR(make_task({.name = "nothing", .loss = {}}), ConfigError, "has no loss");
  auto loss = [](const Outputs& outputs, const Tensor& label) { return mse_loss(outputs[0], label); };
  EXPECT_ERROR(make({}, make_task({.name = "t", .loss = loss, .metrics = {{.metric = {.name = "step"}, .sum = loss}}})),
               ConfigError, "a metric is called 'step'");
  Trainer own(config_of(folder, {}), Net(), regression());
  EXPECT_ERROR(own.run(), ConfigError, "call fit()");
  EXPECT_ERROR(own.evaluate("weights.safetensors"), ConfigError, "evaluate(weights, samples)");
  const auto numbers = std::make_shared<Numbers>(20, 0), none = std::make_shared<Numbers>(0, 0);
  EXPECT_ERROR(own.fit(numbers, nullptr), ConfigError, "no validation data");
  EXPECT_ERROR(own.fit(none, numbers), DataError, "the training data has no samples");
  EXPECT_ERROR(Trainer(config_of(folder, {})).fit(numbers, numbers), ConfigError, "call run()");
}

TEST(OwnTrainer, ARunIsGoneOnWithByItsOwnProgramOnly) {
  ScratchFolder folder;
  ASSERT_TRUE(fit_alone(folder, {.stop_at = 5}).end.interrupted);
  const Words resume{"resume=" + (folder / "runs/1").string()};
  EXPECT_ERROR(fit_alone(folder, {.settings = resume, .samples = 204}), ConfigError, "the training data was");
  EXPECT_ERROR(fit_alone(folder, {.settings = resume, .hidden = 17}), ConfigError, "the program trained Net (hash");
  EXPECT_ERROR(fit_alone(folder, {.settings = resume, .task = std::make_shared<RegressionOfKnown>()}), ConfigError,
               "for regression and trains Net");
  Words by_name = resume;
  by_name.insert(by_name.end(), {"place=cpu", "output=" + (folder / "runs").string()});
  EXPECT_ERROR(Trainer(default_config(by_name)).run(), ConfigError, "of a program's own model and data (Net");
}

}  // namespace
}  // namespace bonfire::train::own_trainer_test
