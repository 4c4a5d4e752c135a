#include "bonfire/train/trainer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>

#include "bonfire/base/error.h"
#include "bonfire/graph/fetched.h"
#include "bonfire/runtime/plan_cache.h"
#include "bonfire/train/checkpoint/checkpoint.h"
#include "tests/support/expect_error.h"
#include "tests/support/scratch_folder.h"
#include "tests/train/digits.h"

namespace bonfire::train::trainer_test {
namespace {

namespace fs = std::filesystem;
using bonfire::testing::ScratchFolder;

Config small(const ScratchFolder& folder, std::vector<std::string> more = {}) {
  more.insert(more.begin(), {data_of_digits(folder), "output=" + (folder / "runs").string(), "place=cpu",
                             "batch_size=32", "epochs=2", "log_freq=5", "model=lenet", "optimizer=adam", "lr=0.002"});
  return default_config(more);
}

// Notes what it is told.
class Witness final : public Reporter {
 public:
  struct Seen {
    RunBegins begin;
    std::vector<StepReport> steps;
    std::vector<EvaluationReport> evaluations;
    std::vector<std::string> notes;
  };
  Witness(Seen& seen, std::function<void(const StepReport&)> on_step) : seen_(seen), on_step_(std::move(on_step)) {}
  void begin(const RunBegins& run) override { seen_.begin = run; }
  void step(const StepReport& report) override {
    seen_.steps.push_back(report);
    if (on_step_) on_step_(report);
  }
  void evaluated(const EvaluationReport& report) override { seen_.evaluations.push_back(report); }
  void note(const std::string& text) override { seen_.notes.push_back(text); }
  void end(const RunEnds&) override {}

 private:
  Seen& seen_;
  std::function<void(const StepReport&)> on_step_;
};

RunEnds run(const Config& config, Witness::Seen& seen, const std::function<void(const StepReport&)>& on_step = {}) {
  Trainer trainer(config);
  trainer.add(std::make_unique<Witness>(seen, on_step));
  trainer.add(metrics_log());
  return trainer.run();
}

std::string text_of(const fs::path& file) {
  std::ifstream stream(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

std::vector<nlohmann::json> log_of(const fs::path& run) {
  std::vector<nlohmann::json> events;
  std::ifstream stream(run / "metrics.jsonl");
  for (std::string line; std::getline(stream, line);) events.push_back(nlohmann::json::parse(line));
  return events;
}

// Errors come first, the surest of them first, out of the whole test set.
TEST(Trainer, KeepsTheMostConfidentErrorsAndCountsAllByConfidence) {
  ScratchFolder folder;
  Witness::Seen seen;
  run(small(folder, {"epochs=1", "limit=96"}), seen);
  const EvaluationReport& report = seen.evaluations.at(0);
  const std::vector<Prediction>& kept = report.predictions;
  const auto rights = std::find_if(kept.begin(), kept.end(), [](const auto& p) { return p.label == p.predicted; });
  EXPECT_GT(rights - kept.begin(), 2);
  EXPECT_TRUE(
      std::is_sorted(kept.begin(), rights, [](const auto& a, const auto& b) { return a.probability > b.probability; }));
  EXPECT_TRUE(std::all_of(rights, kept.end(), [](const auto& p) { return p.label == p.predicted; }));
  auto sum = [](const std::vector<int64_t>& counts) {
    return std::accumulate(counts.begin(), counts.end(), int64_t{0});
  };
  const int64_t all = seen.begin.test_samples, wrong = sum(report.wrong_by_confidence);
  EXPECT_EQ(sum(report.by_confidence), all);
  EXPECT_NEAR(1 - static_cast<double>(wrong) / static_cast<double>(all), report.headline(), 1e-9);
  // No error that was left out is surer than one that was kept.
  int64_t surer = 0;
  const auto last = std::min<size_t>(9, static_cast<size_t>(10 * (rights - 1)->probability));
  for (size_t i = last + 1; i < 10; ++i) surer += report.wrong_by_confidence[i];
  EXPECT_LE(surer, rights - kept.begin());
}

TEST(Trainer, AdvisesAWarmUpForLargeBatchesOnly) {
  auto notes = [](const std::vector<std::string>& more) {
    ScratchFolder folder;
    Witness::Seen seen;
    run(small(folder, more), seen);
    std::string all;
    for (const std::string& note : seen.notes) all += note + "\n";
    return all;
  };
  const std::string steps = "strategy.accumulate_steps=200";  // of 32 images
  EXPECT_NE(notes({"steps=1", steps}).find("an update is of 6,400 images"), std::string::npos);
  EXPECT_NE(notes({"steps=1", steps}).find("warmup_epochs=5"), std::string::npos);
  EXPECT_EQ(notes({"steps=1", steps, "warmup_epochs=1"}).find("warmup_epochs"), std::string::npos);
  EXPECT_EQ(notes({"steps=1", "strategy.accumulate_steps=156"}).find("warmup_epochs"), std::string::npos);
}

TEST(Trainer, TellsHowItWasStarted) {
  ScratchFolder folder;
  Witness::Seen seen;
  run(small(folder, {"steps=1"}), seen);
  EXPECT_NE(seen.begin.command.find("test_train"), std::string::npos);
  EXPECT_FALSE(seen.begin.version.empty());
}

TEST(Trainer, LearnsAndLeavesWeightsAConfigurationAndALog) {
  ScratchFolder folder;
  Witness::Seen seen;
  RunEnds end = run(
      small(folder, {"data=generated", "limit=3000", "model=mnist_cnn", "optimizer=momentum", "lr=0.02", "epochs=1"}),
      seen);
  EXPECT_GT(end.best_score, 0.8);
  EXPECT_EQ(seen.begin.steps_per_epoch, 93);
  EXPECT_EQ(seen.evaluations.size(), 1U);
  EXPECT_EQ(seen.steps.back().step, 93);
  EXPECT_LT(seen.steps.back().loss, seen.steps.front().loss / 2);
  EXPECT_TRUE(fs::exists(end.weights));
  EXPECT_EQ(damage_of(end.checkpoint), std::nullopt);
  fs::path where = seen.begin.folder;
  EXPECT_EQ(to_yaml(load_config(where / "config.yaml")), text_of(where / "config.yaml"));
  EXPECT_EQ(log_of(where).front().at("event"), "begin");
  EXPECT_EQ(log_of(where).back().at("best_top1"), end.best_score);
}

// Stops a run after step `stop`, goes on, and expects what a run that never stopped has, to the last bit.
void expect_resumed_run_is_the_same(int64_t stop, const std::vector<std::string>& more = {}) {
  ScratchFolder folder, other;
  Witness::Seen whole, first, second;
  RunEnds expected = run(small(folder, more), whole);
  RunEnds interrupted = run(small(other, more), first, [&](const StepReport& report) {
    if (report.step >= stop) Trainer::request_stop();
  });
  ASSERT_TRUE(interrupted.interrupted);
  std::vector<std::string> resume = more;
  resume.push_back("resume=" + first.begin.folder.string());
  RunEnds found = run(small(other, resume), second);
  EXPECT_EQ(second.begin.folder, first.begin.folder);
  EXPECT_GE(second.begin.first_step, stop);
  EXPECT_EQ(text_of(weights_file(found.checkpoint)), text_of(weights_file(expected.checkpoint)));
  EXPECT_EQ(text_of(optimizer_file(found.checkpoint)), text_of(optimizer_file(expected.checkpoint)));
  EXPECT_EQ(text_of(average_file(found.checkpoint)), text_of(average_file(expected.checkpoint)));
  EXPECT_EQ(text_of(found.weights), text_of(expected.weights));
  EXPECT_EQ(found.best_score, expected.best_score);

  std::vector<int64_t> steps;  // of the log: none twice, none missing
  for (const nlohmann::json& event : log_of(first.begin.folder))
    if (event.at("event") == "evaluation") steps.push_back(event.at("step"));
  EXPECT_EQ(steps, (std::vector<int64_t>{15, 30}));
}

TEST(TrainerResume, GoesOnToTheSameBitsInTheMiddleOfAnEpoch) { expect_resumed_run_is_the_same(5); }
TEST(TrainerResume, GoesOnToTheSameBitsInTheSecondEpoch) { expect_resumed_run_is_the_same(20); }
TEST(TrainerResume, GoesOnToTheSameBitsWithAccumulatedGradients) {
  expect_resumed_run_is_the_same(5, {"strategy.accumulate_steps=4", "clip_grad_norm=1"});
}

TEST(TrainerResume, GoesOnToTheSameBitsWithImagesThatAreChangedAtRandom) {
  expect_resumed_run_is_the_same(20, {"crop=padded", "flip=0.5", "random_erasing=0.3", "mixup=0.4", "num_workers=2"});
}
TEST(TrainerResume, GoesOnToTheSameBitsWithARunningMeanOfTheWeights) {
  expect_resumed_run_is_the_same(5, {"ema_decay=0.9"});
}

TEST(TrainerResume, AutoTakesTheNewestWholeCheckpointAndNamesWhatItSkipped) {
  ScratchFolder folder;
  Witness::Seen first, second, fresh;
  RunEnds end = run(small(folder, {"resume=auto"}), first);  // nothing there: begins
  fs::resize_file(weights_file(end.checkpoint), 100);
  RunEnds again = run(small(folder, {"resume=auto"}), second);
  EXPECT_EQ(second.begin.folder, first.begin.folder);
  EXPECT_EQ(second.begin.first_step, 15);
  ASSERT_EQ(second.notes.size(), 2U);
  EXPECT_NE(second.notes[0].find("step-00000030"), std::string::npos) << second.notes[0];
  EXPECT_NE(second.notes[1].find("goes on from step 15: what was saved after it is in "), std::string::npos)
      << second.notes[1];
  EXPECT_EQ(damage_of(again.checkpoint), std::nullopt);
}

TEST(TrainerResume, BeginsFromWeightsOfAnother) {
  ScratchFolder folder;
  Witness::Seen first, second;
  RunEnds end = run(small(folder), first);
  run(small(folder, {"init_from=" + end.weights.string(), "num_classes=12", "strict=false", "epochs=1"}), second);
  ASSERT_EQ(second.notes.size(), 1U);
  EXPECT_LT(second.steps.front().loss, first.steps.front().loss);
  // A run's folder stands for its best weights, or else its newest checkpoint's.
  const std::string run_folder = first.begin.folder.string();
  EXPECT_EQ(weights_in(run_folder), end.weights);
  Witness::Seen third;
  run(small(folder, {"init_from=" + run_folder, "epochs=1"}), third);
  EXPECT_TRUE(third.notes.empty());
  EXPECT_LT(third.steps.front().loss, first.steps.front().loss);
  fs::remove(end.weights);
  EXPECT_EQ(weights_in(run_folder), weights_file(end.checkpoint));
  EXPECT_EQ(weights_in(end.checkpoint), weights_file(end.checkpoint));
  EXPECT_ERROR(weights_in(folder.path()), ConfigError, "there are no weights in the folder");
  EXPECT_ERROR(run(small(folder, {"init_from=" + run_folder, "num_classes=12"}), second), DataError,
               "8 of its 10 tensors fit the model's 10, nothing is loaded\n  2 misshapen");
}

std::vector<float> values_of(const fs::path& file, const char* name) {
  nn::SafetensorsFile opened = nn::SafetensorsFile::open(file);
  const nn::TensorEntry* entry = opened.find(name);
  EXPECT_NE(entry, nullptr) << name;
  std::vector<float> values(entry == nullptr ? 0 : entry->bytes.size() / sizeof(float));
  if (entry != nullptr) std::memcpy(values.data(), entry->bytes.data(), entry->bytes.size());
  return values;
}

// The mean of the first steps by hand, from checkpoints of runs that stop one step later each.
TEST(TrainerAverage, IsTheRunningMeanOfTheWeights) {
  ScratchFolder folder;
  auto after = [&](int64_t steps) {
    Witness::Seen seen;
    RunEnds end = run(small(folder, {"ema_decay=0.99", "steps=" + std::to_string(steps)}), seen);
    return std::pair(values_of(weights_file(end.checkpoint), "fc3.bias"),
                     values_of(average_file(end.checkpoint), "fc3.bias"));
  };
  auto [first, first_mean] = after(1);
  auto [second, second_mean] = after(2);
  ASSERT_EQ(second.size(), second_mean.size());
  double share = 1 - 2.0 / 11;  // at step 1: 1 − (1 + 1) / (10 + 1)
  for (size_t i = 0; i < second.size(); ++i)
    EXPECT_NEAR(second_mean[i], first_mean[i] + (second[i] - first_mean[i]) * share, 1e-6) << i;
  EXPECT_NE(first, first_mean);
}

TEST(TrainerAverage, IsWhatIsEvaluatedAndKeptAsTheBestWeights) {
  ScratchFolder folder;
  Witness::Seen seen;
  RunEnds end = run(small(folder, {"ema_decay=0.5"}), seen);
  EXPECT_EQ(values_of(end.weights, "fc3.bias"), values_of(average_file(end.checkpoint), "fc3.bias"));
  EXPECT_NE(values_of(end.weights, "fc3.bias"), values_of(weights_file(end.checkpoint), "fc3.bias"));
  EXPECT_EQ(Trainer(load_config(seen.begin.folder / "config.yaml")).evaluate(end.weights).headline(), end.last_score);
}

TEST(TrainerAverage, BeginsFromTheWeightsOfACheckpointThatHasNone) {
  ScratchFolder folder;
  Witness::Seen first, second;
  run(small(folder, {"epochs=1"}), first);
  RunEnds end = run(small(folder, {"ema_decay=0.9", "resume=" + first.begin.folder.string()}), second);
  ASSERT_EQ(second.notes.size(), 2U);
  EXPECT_NE(second.notes[0].find("ema_decay off → 0.9"), std::string::npos) << second.notes[0];
  EXPECT_NE(second.notes[1].find("no running mean"), std::string::npos) << second.notes[1];
  EXPECT_TRUE(fs::exists(average_file(end.checkpoint)));
}

TEST(Trainer, StepsStandInForEpochs) {
  ScratchFolder folder;
  Witness::Seen seen;
  RunEnds end = run(small(folder, {"steps=17", "log_freq=1"}), seen);
  EXPECT_EQ(seen.steps.back().step, 17);
  EXPECT_EQ(seen.begin.total_steps, 17);
  ASSERT_EQ(seen.evaluations.size(), 2U);  // after the first epoch, and at the end
  EXPECT_EQ(seen.evaluations.back().step, 17);
  EXPECT_EQ(end.checkpoint.filename(), "step-00000017");
}

// At such a rate no evaluation is better than the first.
TEST(Trainer, StopsAfterSoManyEvaluationsWithoutGainAlsoWhenResumed) {
  ScratchFolder folder;
  Witness::Seen first, second;
  std::vector<std::string> settings{"optimizer=sgd", "lr=1e-20", "epochs=6", "early_stop=2"};
  RunEnds interrupted = run(small(folder, settings), first, [](const StepReport& report) {
    if (report.step >= 35) Trainer::request_stop();  // after the second evaluation
  });
  ASSERT_TRUE(interrupted.interrupted);
  settings.push_back("resume=" + first.begin.folder.string());
  RunEnds end = run(small(folder, settings), second);
  EXPECT_FALSE(end.interrupted);
  ASSERT_EQ(second.evaluations.size(), 1U);
  EXPECT_EQ(second.evaluations[0].step, 45);
  EXPECT_EQ(end.checkpoint.filename(), "step-00000045");
}

// What a run has fetched and how often it has released memory, by the library's own counters.
struct Counted {
  uint64_t fetched, releases;
  Witness::Seen seen = {};
};
Counted counted(std::vector<std::string> more) {
  ScratchFolder folder;
  more.insert(more.begin(), {"steps=12", "log_freq=3"});
  Counted count{values_fetched(), runtime::cache_statistics().releases};
  run(small(folder, more), count.seen);
  count.fetched = values_fetched() - count.fetched;
  count.releases = runtime::cache_statistics().releases - count.releases;
  return count;
}

TEST(Trainer, FetchesTheResultsOfEverySoManySteps) {
  Counted every = counted({}), fourth = counted({"strategy.fetch_frequency=4"});
  EXPECT_EQ(every.fetched - fourth.fetched, 2U * (12 - 3));  // loss and hits; of steps 1, 5 and 9 they come
  std::vector<int64_t> reported;
  for (const StepReport& step : fourth.seen.steps) reported.push_back(step.step);
  EXPECT_EQ(reported, (std::vector<int64_t>{1, 6, 9}));  // where something has come since the last report
  EXPECT_EQ(fourth.seen.steps[0].loss, every.seen.steps[0].loss);
  EXPECT_EQ(fourth.seen.evaluations.back().loss, every.seen.evaluations.back().loss);
}

TEST(Trainer, ReleasesMemoryEverySoManySubmissions) {
  Counted every = counted({"strategy.num_iteration_per_drop_scope=1"});
  Counted fourth = counted({"strategy.num_iteration_per_drop_scope=4"});
  EXPECT_GE(every.releases, 12U);
  EXPECT_NEAR(static_cast<double>(fourth.releases), static_cast<double>(every.releases) / 4, 1);
  EXPECT_EQ(fourth.seen.evaluations.back().loss, every.seen.evaluations.back().loss);
  EXPECT_NEAR(static_cast<double>(counted({}).releases), static_cast<double>(every.releases) / 100, 1);
}

TEST(Trainer, ATraceHasTheLoopTheWorkersTheNodesAndTheCheckpoints) {
  ScratchFolder folder;
  Trainer trainer(small(folder, {"epochs=1", "num_workers=1"}));
  trainer.trace_to(folder / "trace.json");
  RunEnds end = trainer.run();
  EXPECT_EQ(end.trace, folder / "trace.json");
  nlohmann::json trace = nlohmann::json::parse(text_of(folder / "trace.json"));
  std::map<int, std::string> tracks;
  std::map<std::string, int> counts;  // "track/name"
  for (const nlohmann::json& event : trace.at("traceEvents"))
    if (event.at("ph") == "M" && event.at("name") == "thread_name")
      tracks[event.at("tid")] = event.at("args").at("name");
  for (const nlohmann::json& event : trace.at("traceEvents")) {
    if (event.at("ph") != "X") continue;
    EXPECT_GE(event.at("dur").get<double>(), 0);
    EXPECT_GE(event.at("ts").get<double>(), 0);
    ++counts[tracks.at(event.at("tid")) + "/" + event.at("name").get<std::string>()];
    if (event.at("args").contains("candidate"))
      ++counts["nodes of " + event.at("args").at("module").get<std::string>()];
  }
  EXPECT_EQ(tracks.at(1), "training loop");
  EXPECT_EQ(counts["training loop/open data"], 1);
  EXPECT_EQ(counts["training loop/make model"], 1);
  EXPECT_EQ(counts["training loop/epoch 1"], 1);
  EXPECT_GE(counts["training data, worker 1/make batch"], 15);
  EXPECT_GE(counts["test data, worker 1/make batch"], 1);
  EXPECT_EQ(counts["training loop/next batch"], 15);
  EXPECT_EQ(counts["training loop/submit step"], 15);
  EXPECT_EQ(counts["training loop/evaluate"], 1);
  EXPECT_EQ(counts["training loop/copy checkpoint"], 1);
  EXPECT_EQ(counts["checkpoint writer/write step-00000015"], 1);
  EXPECT_GT(counts["nodes of conv1"], 0);
  EXPECT_GT(counts["nodes of optimizer"], 0);
}

TEST(TrainerErrors, SayWhatToDo) {
  ScratchFolder folder;
  auto message = [&](std::vector<std::string> more) {
    try {
      Witness::Seen seen;
      run(small(folder, std::move(more)), seen);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("no error");
  };
  EXPECT_EQ(message({"memory_budget=6"}),
            "[strategy] memory_budget is '6', expected bytes with their unit (6GB, 800MB, 5.5GiB), a share of the "
            "device's memory (0.8), auto or off");
  EXPECT_NE(message({"model=two_headed"}).find("two_headed learns from images with a box and a class, which are built"),
            std::string::npos)
      << message({"model=two_headed"});
  EXPECT_NE(message({"model=bert_mini", "data=" + folder.path().string()})
                .find("bert_mini reads text, " + folder.path().string() + " is no text (it has no vocab.txt)"),
            std::string::npos);
  EXPECT_NE(message({"data=" + (folder / "absent").string()}).find("train-images-idx3-ubyte"), std::string::npos);
  EXPECT_NE(message({"num_classes=5"}).find("has the label 9"), std::string::npos) << message({"num_classes=5"});
  EXPECT_NE(message({"resume=" + (folder / "absent").string()}).find("no whole checkpoint"), std::string::npos);
  EXPECT_NE(message({"place=cuda:77"}).find("cuda:77"), std::string::npos);
  EXPECT_NE(message({"batch_size=500"}).find("do not fill one batch"), std::string::npos);
  EXPECT_NE(message({"image_size=20"})
                .find("lenet cannot take images of 20 x 20; it takes 28 x 28 to 31 x 31: add image_size=28"),
            std::string::npos);
  EXPECT_NE(message({"model=mlp", "image_size=32"}).find("it takes 28 x 28 only: add image_size=28"),
            std::string::npos);
  EXPECT_FALSE(fs::exists(folder / "runs"));  // nothing had begun
  folder.put("file", "");
  EXPECT_NE(message({"output=" + (folder / "file").string()}).find("choose another output"), std::string::npos);
}

TEST(TrainerErrors, ALossThatIsNotFiniteEndsTheRunBeforeItIsSaved) {
  ScratchFolder folder;
  Witness::Seen seen;
  EXPECT_ERROR(run(small(folder, {"optimizer=sgd", "lr=1e30"}), seen), ConfigError, "use a smaller lr (now 1e+30)");
  EXPECT_FALSE(newest_checkpoint(seen.begin.folder / "checkpoints").has_value());
}

TEST(TrainerErrors, ACheckpointOfAnotherModelIsRefused) {
  ScratchFolder folder;
  Witness::Seen seen;
  run(small(folder, {"epochs=1"}), seen);
  const std::string resume = "resume=" + seen.begin.folder.string(), anyway = "resume_anyway=true";
  EXPECT_ERROR(run(small(folder, {"model=mnist_cnn", resume, anyway}), seen), ConfigError,
               "is a checkpoint of lenet, this run trains mnist_cnn; set model=lenet");
  EXPECT_ERROR(run(small(folder, {"optimizer=lamb", resume, anyway}), seen), ConfigError,
               "was trained with optimizer adam, this run has lamb; set optimizer=adam to go on");
}

}  // namespace
}  // namespace bonfire::train::trainer_test
