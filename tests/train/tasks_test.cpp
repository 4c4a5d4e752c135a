// The tasks of bonfire train, from the configuration to what is predicted: each that has no test of its own learns more
// than chance in a short run, goes on where it stopped, and trains on two ranks as on one.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <numeric>
#include <sstream>

#include "bonfire/data/boxed_glyphs.h"
#include "bonfire/data/sequences.h"
#include "bonfire/train/report/png.h"
#include "bonfire/train/tasks/boxes.h"
#include "bonfire/train/tasks/class_judge.h"
#include "bonfire/train/tasks/known_tasks.h"
#include "tests/support/expect_error.h"
#include "tests/support/scratch_folder.h"
#include "tests/train/as_ranks.h"
#include "tests/train/course.h"
#include "tests/train/program.h"

namespace bonfire::train::tasks_test {
namespace {

using bonfire::testing::Program;
using bonfire::testing::ScratchFolder;
using Words = std::vector<std::string>;

Words with(Words settings, const Words& more) {
  settings.insert(settings.end(), more.begin(), more.end());
  return settings;
}

const Words kBoxRun{"model=two_headed", "limit=4000", "epochs=5",       "batch_size=32",
                    "optimizer=adamw",  "lr=0.004",   "schedule=cosine"};
const Words kSequenceRun{"model=lstm_classifier", "seq_length=8", "epochs=3",        "batch_size=64",
                         "optimizer=adam",        "lr=0.005",     "clip_grad_norm=1"};

void train_as_rank(const ScratchFolder& folder, const Words& settings, int64_t stop_at, Course& course) {
  Trainer trainer(default_config(with({"place=cpu", "output=" + (folder / "runs").string()}, settings)));
  trainer.add(std::make_unique<Witness>(course, stop_at));
  trainer.add(metrics_log());
  trainer.add(tensorboard_log());
  trainer.add(report_page());
  trainer.run();
}

Course train(const ScratchFolder& folder, const Words& settings, int64_t stop_at = -1) {
  Course course;
  train_as_rank(folder, settings, stop_at, course);
  return course;
}

std::string printed(const ScratchFolder& folder, const Words& arguments, int status = 0) {
  Program program(arguments, folder / "output");
  EXPECT_EQ(program.wait(), status) << program.output();
  return program.output();
}

void expect_parts(const std::string& text, const Words& there, const Words& not_there = {}) {
  for (const std::string& part : there) EXPECT_NE(text.find(part), std::string::npos) << part;
  for (const std::string& part : not_there) EXPECT_EQ(text.find(part), std::string::npos) << part;
}

// A few steps: stopped in the middle and gone on with to the same bits, and on two ranks to the same losses.
void expect_same_when_stopped_and_on_two_ranks(const Words& settings) {
  const Words few = with(settings, {"limit=203", "epochs=2", "drop_last=false", "log_freq=1", "lr=0.001"});
  ScratchFolder whole, parts, two;
  const Course expected = train(whole, with(few, {"batch_size=32"}));
  ASSERT_TRUE(train(parts, with(few, {"batch_size=32"}), 9).end.interrupted);
  const Course resumed = train(parts, {"resume=auto"});
  EXPECT_EQ(resumed.end.best_score, expected.end.best_score);
  for (const char* file : {"runs/1/best.safetensors", "runs/1/checkpoints/step-00000014/weights.safetensors"})
    EXPECT_TRUE(parts.get(file) == whole.get(file)) << file;

  Course found;
  for (const std::string& error : as_ranks(2, [&](int rank) {
         train_as_rank(
             two, with(few, {"batch_size=16", "strategy.sync_batch_norm=true", "place=cpu:" + std::to_string(rank)}),
             -1, found);
       }))
    EXPECT_EQ(error, "");
  ASSERT_EQ(found.steps.size(), expected.steps.size());
  for (size_t i = 0; i < found.steps.size(); ++i) {
    const double loss = expected.steps[i].loss;
    EXPECT_NEAR(found.steps[i].loss, loss, 1e-3 * loss) << "step " << i + 1;
    EXPECT_EQ(found.steps[i].scores.size(), expected.steps[i].scores.size());
  }
  ASSERT_EQ(found.evaluations.size(), 2U);
  auto labels = [](const EvaluationReport& report) {  // every sample once
    int64_t all = 0;
    for (int64_t count : report.confusion) all += count;
    return all;
  };
  EXPECT_NEAR(found.evaluations[1].headline(), expected.evaluations[1].headline(), 0.005);
  EXPECT_EQ(labels(found.evaluations[1]), labels(expected.evaluations[1]));
  EXPECT_EQ(labels(found.evaluations[1]), expected.begin.test_samples);
}

TEST(BoxTask, LearnsWhatIsWhereAndSaysSo) {
  ScratchFolder folder;
  const Course course = train(folder, kBoxRun);
  const EvaluationReport& last = course.evaluations.back();
  EXPECT_EQ(last.scores[0].metric.name, "mean_iou");
  EXPECT_EQ(course.end.best_score, last.headline());
  EXPECT_GT(last.score("mean_iou"), 0.5);  // one box for all: below 0.25
  EXPECT_GT(last.score("top1"), 0.25);     // chance: 0.1
  EXPECT_EQ(last.predictions[0].image.shape, (Shape{48, 48, 1}));
  expect_parts(folder.get("runs/1/report.html"),
               {"mean IoU on 2,000 test images", "Confusion matrix", "Test images", ">mean IoU<", "top-1 on the test"},
               {"top-5", "%</b><span>last mean IoU"});
  nlohmann::json evaluation;
  std::istringstream log(folder.get("runs/1/metrics.jsonl"));
  for (std::string line; std::getline(log, line);) {
    nlohmann::json event = nlohmann::json::parse(line);
    if (event.at("event") == "evaluation") evaluation = event;
    if (event.at("event") == "step") {
      EXPECT_TRUE(event.contains("mean_iou")) << line;
    }
    if (event.at("event") == "end") {
      EXPECT_EQ(event.at("best_mean_iou"), course.end.best_score);
    }
  }
  EXPECT_EQ(evaluation.at("mean_iou"), last.score("mean_iou"));

  const std::string run = (folder / "runs/1").string();
  const auto said = nlohmann::json::parse(printed(folder, {"eval", run, "--json"}));
  EXPECT_NEAR(said.at("mean_iou").get<double>(), last.score("mean_iou"), 1e-6);
  EXPECT_NEAR(said.at("top1").get<double>(), last.score("top1"), 1e-6);

  // Of twenty test images the boxes that are predicted lie over the right ones, about as in the evaluation.
  data::BoxedGlyphs images({.split = data::Split::test, .size = 20});
  Words arguments{"predict", run, "--json"};
  for (int64_t i = 0; i < images.size(); ++i) {
    const data::Sample sample = images.get(i);
    const std::string name = std::to_string(i) + ".png";
    folder.put(name, encode_png(sample.input.bytes, sample.input.shape));
    arguments.push_back((folder / name).string());
  }
  std::istringstream lines(printed(folder, arguments));
  int64_t i = 0;
  double overlap = 0;
  for (std::string line; std::getline(lines, line); ++i) {
    const auto answer = nlohmann::json::parse(line);
    EXPECT_EQ(answer.at("guesses").size(), 3U);
    const auto box = answer.at("box").get<std::vector<float>>();
    const data::BoxLabel label = data::box_label_of(images.get(i));
    overlap += overlap_of(Tensor::from<float>(box, {1, 4}),
                          Tensor::from<float>(std::vector<float>(label.box.begin(), label.box.end()), {1, 4}))
                   .to_vector<float>()[0];
  }
  ASSERT_EQ(i, images.size());
  EXPECT_GT(overlap / static_cast<double>(i), 0.3);
  EXPECT_NE(printed(folder, {"predict", run, (folder / "0.png").string()}).find("; box from "), std::string::npos);
}

TEST(BoxTask, GoesOnWhereItStoppedAndTrainsOnTwoRanks) { expect_same_when_stopped_and_on_two_ranks(kBoxRun); }

TEST(BoxTask, OverlapIsTheAreaThatIsSharedOverTheAreaThatIsCovered) {
  const std::vector<float> boxes{0, 0, 2, 2, /**/ 0, 0, 1, 1, /**/ 0, 0, 1, 1, /**/ 1, 1, 0, 0, /**/ 0, 0, 4, 4},
      others{1, 0, 3, 2, /**/ 0, 0, 1, 1, /**/ 2, 2, 3, 3, /**/ 0, 0, 1, 1, /**/ 1, 1, 2, 3};
  const std::vector<float> found =
      overlap_of(Tensor::from<float>(boxes, {5, 4}), Tensor::from<float>(others, {5, 4})).to_vector<float>();
  const float expected[] = {2.0F / 6, 1, 0, 0, 2.0F / 16};
  for (size_t i = 0; i < 5; ++i) EXPECT_NEAR(found[i], expected[i], 1e-6) << i;
}

TEST(SequenceTask, LearnsTheRuleAndSaysSo) {
  ScratchFolder folder;
  const Course course = train(folder, kSequenceRun);
  const EvaluationReport& last = course.evaluations.back();
  EXPECT_GT(last.headline(), 0.9);  // chance: 0.2; whoever only counts letters has little more
  EXPECT_EQ(last.confusion.size(), 25U);
  expect_parts(folder.get("runs/1/report.html"),
               {"sequences to train on", "Confusion matrix", "<th>taken for</th>", " &gt; ", "top-1 on 1,000 test"},
               {"<img", "Pixels", "top-5", "images"});
  const std::string run = (folder / "runs/1").string();
  const auto said = nlohmann::json::parse(printed(folder, {"eval", run, "--json"}));
  EXPECT_NEAR(said.at("top1").get<double>(), course.end.best_score, 1e-6);

  data::Sequences test({.split = data::Split::test, .size = 60, .length = 8});
  Words arguments{"predict", run, "--json", "--top", "2"};
  for (int64_t i = 0; i < test.size(); ++i) {
    std::string words;
    const data::Sample sample = test.get(i);
    for (size_t at = 0; at < sample.input.bytes.size(); at += sizeof(int64_t)) {
      int64_t token = 0;
      std::memcpy(&token, sample.input.bytes.data() + at, sizeof token);
      words += data::Sequences::symbols()[static_cast<size_t>(token)] + " ";
    }
    arguments.push_back(words);
  }
  std::istringstream lines(printed(folder, arguments));
  int64_t i = 0, right = 0;
  for (std::string line; std::getline(lines, line); ++i) {
    const auto guesses = nlohmann::json::parse(line).at("guesses");
    ASSERT_EQ(guesses.size(), 2U);
    right += guesses[0].at("class") == test.label(i) ? 1 : 0;
  }
  ASSERT_EQ(i, test.size());
  EXPECT_GT(static_cast<double>(right) / static_cast<double>(i), 0.8);
  EXPECT_NE(printed(folder, {"predict", run, "a z"}, 1).find("'z' is none of the symbols"), std::string::npos);
  EXPECT_NE(printed(folder, {"predict", run}, 1).find("symbols with spaces between them"), std::string::npos);
}

TEST(SequenceTask, GoesOnWhereItStoppedAndTrainsOnTwoRanks) { expect_same_when_stopped_and_on_two_ranks(kSequenceRun); }

TEST(ClassJudge, PassesOverWhatTheLossIgnoresAndRefusesWhatIsNoClass) {
  const data::Glyphs samples({.size = 4});
  auto confusion = [&](const std::vector<float>& logits, int64_t columns, const std::vector<int64_t>& labels) {
    const std::unique_ptr<Judge> judge = class_judge(samples, {.classes = 2, .ignores = true});
    const auto rows = static_cast<int64_t>(labels.size());
    std::vector<int64_t> indices(labels.size());
    std::iota(indices.begin(), indices.end(), 0);
    judge->add({Tensor::from<float>(logits, {rows, columns})}, Tensor::from<int64_t>(labels, {rows}), indices);
    EvaluationReport report;
    judge->finish(report);
    return report.confusion;
  };
  EXPECT_EQ(confusion({1, 0, 0, 1, 1, 0}, 2, {0, -100, 1}), (std::vector<int64_t>{1, 0, 1, 0}));
  EXPECT_ERROR(confusion({1, 0, 0, 1}, 2, {0, 2}), DataError, "sample 1 has the label 2, expected 0 to 1 of 2 classes");
  EXPECT_ERROR(confusion({1, 0}, 2, {-1}), DataError, "sample 0 has the label -1");
  EXPECT_ERROR(confusion({1, 0, 0}, 3, {0}), ConfigError, "expected logits [N, 2]; give the model as many outputs");
}

// Every model has a task that is in the list, and what does not fit it is refused with what does.
TEST(KnownTasks, AWrongPairingSaysWhatFits) {
  for (const std::string& name : models::names()) EXPECT_EQ(known_task_of(name).name, models::task_of(name));
  ScratchFolder folder;
  folder.put("vocab.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n");
  auto open = [&](const Words& settings) { open_data(default_config(settings)); };
  const std::string data = "data=" + folder.path().string();
  EXPECT_ERROR(open({"model=two_headed", data}), ConfigError, "or a model that it is for (bert_mini, bert_base)");
  EXPECT_ERROR(open({"model=lstm_classifier", data}), ConfigError, "reads sequences of symbols, ");
  EXPECT_ERROR(open({"model=lstm_classifier", "data=/photos"}), ConfigError,
               "sequences with a rule, which are built in");
  EXPECT_ERROR(open({"model=two_headed", "flip=0.5"}), ConfigError, "reads images with a box and a class");
  EXPECT_ERROR(open({"model=two_headed", "seq_length=9"}), ConfigError, "seq_length is for text");
  EXPECT_ERROR(open({"model=lstm_classifier", "image_size=9"}), ConfigError, "image_size is for images");
}

std::string file_of(const std::string& model) { return BONFIRE_SOURCE_DIR "/configs/" + model + ".yaml"; }

TEST(KnownTasks, TheirConfigurationsTrain) {
  for (const char* name : {"two_headed", "lstm_classifier"}) {
    SCOPED_TRACE(name);
    ScratchFolder folder;
    printed(folder,
            {"train", file_of(name), "place=cpu", "limit=256", "epochs=1", "output=" + (folder / "runs").string()});
    EXPECT_EQ(load_config(folder / "runs/1/config.yaml").model, name);
    EXPECT_TRUE(std::filesystem::exists(folder / "runs/1/checkpoints/step-00000004/weights.safetensors"));
  }
}

TEST(KnownTasks, TheirConfigurationsAreThere) {
  for (const char* name : {"two_headed", "lstm_classifier"}) {
    const Config config = load_config(file_of(name));
    EXPECT_EQ(config.model, name);
    EXPECT_GT(open_data(config).train->size(), 5000);
  }
}

}  // namespace
}  // namespace bonfire::train::tasks_test
