// BERT on text, from the configuration to the bits of its checkpoint.

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "bonfire/base/error.h"
#include "bonfire/runtime/plan.h"
#include "bonfire/runtime/plan_cache.h"
#include "bonfire/train/checkpoint/checkpoint.h"
#include "bonfire/train/tasks/masked_word_guesses.h"
#include "bonfire/train/tasks/predictor.h"
#include "bonfire/train/trainer.h"
#include "tests/support/expect_error.h"
#include "tests/support/scratch_folder.h"

namespace bonfire::train::text_training_test {
namespace {

using bonfire::testing::ScratchFolder;

constexpr const char* kPieces[] = {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "red", "fire", "blue", "sky", "now"};

// A folder with text of which every second word follows from the one before it.
void put_text(const ScratchFolder& folder) {
  std::string vocabulary;
  for (const char* piece : kPieces) vocabulary += std::string(piece) + "\n";
  folder.put("vocab.txt", vocabulary);
  std::string line;
  for (int i = 0; i < 60; ++i) line += i % 3 == 0 ? "red fire " : "blue sky ";
  folder.put("train.txt", line + "\n" + line + "now\n");
  folder.put("test.txt", line + "\n");
}

RunEnds train(const ScratchFolder& folder, std::vector<std::string> more, int64_t stop_at = 1000) {
  class Stop final : public Reporter {
   public:
    explicit Stop(int64_t step) : step_(step) {}
    void begin(const RunBegins&) override {}
    void step(const StepReport& report) override {
      if (report.step >= step_) Trainer::request_stop();
    }
    void evaluated(const EvaluationReport&) override {}
    void note(const std::string&) override {}
    void end(const RunEnds&) override {}

   private:
    int64_t step_;
  };
  more.insert(more.begin(),
              {"data=" + folder.path().string(), "output=" + (folder / "runs").string(), "place=cpu", "model=bert_mini",
               "seq_length=8", "batch_size=4", "epochs=2", "optimizer=adamw", "lr=0.001", "log_freq=1"});
  Trainer trainer(default_config(more));
  trainer.add(std::make_unique<Stop>(stop_at));
  trainer.add(metrics_log());
  trainer.add(report_page());
  return trainer.run();
}

TEST(TextTraining, LearnsAndResumesToTheSameBitsInTheMiddleOfAnEpoch) {
  ScratchFolder whole, parts;
  put_text(whole);
  put_text(parts);
  RunEnds expected = train(whole, {});
  EXPECT_GT(expected.best_score, 0.5);  // of three equally likely words at best a third would be guessed
  EXPECT_NE(whole.get("runs/1/report.html").find("sequences to train on"), std::string::npos);
  RunEnds first = train(parts, {}, 4);
  ASSERT_TRUE(first.interrupted);
  RunEnds found = train(parts, {"resume=auto"});
  EXPECT_EQ(found.best_score, expected.best_score);
  EXPECT_TRUE(parts.get("runs/1/best.safetensors") == whole.get("runs/1/best.safetensors"));
  EXPECT_EQ(found.checkpoint.filename(), expected.checkpoint.filename());

  MaskedWords words(whole / "runs/1");
  std::vector<std::vector<WordGuess>> guesses = words.guesses("Blue [MASK] [MASK]sky", 10);
  ASSERT_EQ(guesses.size(), 2U);
  models::Model model = models::make("bert_mini", {.vocabulary = 10});
  model.load(whole / "runs/1/best.safetensors");
  model.eval();
  NoGrad no_grad;
  std::vector<float> logits =  // of [CLS] blue [MASK] [MASK] sky [SEP]
      model(Tensor::from<int64_t>(std::vector<int64_t>{2, 7, 4, 4, 8, 3}, {1, 6})).to_vector<float>();
  for (size_t mask : {0U, 1U}) {
    double sum = 0;
    for (size_t i = 0; i < 10; ++i) {
      const WordGuess& guess = guesses[mask][i];
      auto piece = static_cast<size_t>(std::ranges::find(kPieces, guess.piece) - std::begin(kPieces));
      EXPECT_NEAR(guess.logit, logits.at((2 + mask) * 10 + piece), 1e-4);
      EXPECT_LE(guess.probability, guesses[mask][i == 0 ? 0 : i - 1].probability);
      sum += guess.probability;
    }
    EXPECT_NEAR(sum, 1, 1e-5);
  }
  EXPECT_ERROR(words.guesses("blue sky", 1), ConfigError, "no [MASK] in 'blue sky'");
  EXPECT_ERROR(words.guesses("[MASK] a b c d e f", 1), ConfigError,
               "9 pieces with [CLS] and [SEP], the run was trained on 8");
  EXPECT_ERROR(Predictor(whole / "runs/1"), DataError, "a run of bert_mini, which is trained for another task");
}

TEST(TextTraining, LogitsOfALargeVocabularyNeverExistAsAWhole) {
  ScratchFolder folder;
  std::string vocabulary = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n", line;
  for (int i = 0; i < 4200; ++i) vocabulary += "w" + std::to_string(i) + "\n";
  for (int i = 0; i < 1020; ++i) line += "w" + std::to_string(7 * i % 4200) + " ";
  folder.put("vocab.txt", vocabulary);
  folder.put("train.txt", line);
  folder.put("test.txt", line.substr(0, 800));
  runtime::clear_plan_cache();
  train(folder, {"seq_length=128", "batch_size=8", "steps=1"});
  std::set<std::string> ops;
  for (const auto& plan : runtime::cached_plans())
    for (const runtime::PlanNote& note : plan->notes)
      if (note.node.find("cross_entropy") != std::string::npos) ops.insert(note.node);
  EXPECT_TRUE(ops.contains("linear_cross_entropy"));
  EXPECT_FALSE(ops.contains("cross_entropy_gradient"));  // evaluation has the plain loss, and no gradient
}

TEST(TextTraining, AModelOfImagesIsRefused) {
  ScratchFolder folder;
  put_text(folder);
  EXPECT_ERROR(train(folder, {"model=lenet"}), ConfigError, "lenet reads images, ");
  EXPECT_ERROR(train(folder, {"seq_length=300"}), DataError, "tokens, expected at least 298 for one sequence");
}

}  // namespace
}  // namespace bonfire::train::text_training_test
