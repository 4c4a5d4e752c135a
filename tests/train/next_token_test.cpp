// GPT-2 on running text: from the configuration to the bits of its checkpoint, and on to a text of its own.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <set>
#include <thread>

#include "bonfire/base/error.h"
#include "bonfire/comm/local/local_group.h"
#include "bonfire/parallel/fleet.h"
#include "bonfire/runtime/plan.h"
#include "bonfire/runtime/plan_cache.h"
#include "bonfire/train/tasks/token_writer.h"
#include "bonfire/train/trainer.h"
#include "tests/support/expect_error.h"
#include "tests/support/scratch_folder.h"

namespace bonfire::train::next_token_test {
namespace {

using bonfire::testing::ScratchFolder;
using Words = std::vector<std::string>;

const std::string kPairs = BONFIRE_SOURCE_DIR "/tests/golden/byte_pairs";

// 23 bytes that come again and again: sequences of 16 begin at each of them.
std::string text_of(int lines) {
  std::string text;
  for (int i = 0; i < lines; ++i) text += i % 2 == 0 ? "abc def ghi\n" : "jkl mno pq\n";
  return text;
}

Words settings_of(const ScratchFolder& folder, const std::string& data, const Words& more) {
  Words all{"data=" + data,     "output=" + (folder / "runs").string(),
            "place=cpu",        "model=gpt2",
            "layers=2",         "heads=2",
            "width=32",         "context=32",
            "dropout=0",        "seq_length=16",
            "batch_size=8",     "epochs=2",
            "optimizer=adamw",  "lr=0.01",
            "weight_decay=0.1", "weight_decay_of=matrices",
            "clip_grad_norm=1", "log_freq=1"};
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

struct Heard {
  RunEnds end;
  std::vector<double> losses;
  std::vector<EvaluationReport> evaluations;
  RunBegins begin;
};

Heard train(const Words& settings, int64_t stop_at = 100000) {
  Heard heard;
  Trainer trainer(default_config(settings));
  trainer.add({.begin = [&](const RunBegins& run) { heard.begin = run; },
               .step =
                   [&](const StepReport& report) {
                     heard.losses.push_back(report.loss);
                     EXPECT_NEAR(report.scores.at(0).value, std::exp(report.loss), 1e-3 * std::exp(report.loss));
                     if (report.step >= stop_at) Trainer::request_stop();
                   },
               .evaluation = [&](const EvaluationReport& report) { heard.evaluations.push_back(report); }});
  heard.end = trainer.run();
  return heard;
}

std::string written(const TokenWriter& writer, const std::string& prompt, const WritingOptions& options) {
  std::string text;
  writer.write(prompt, options, [&](std::string_view bytes) { text += bytes; });
  return text;
}

TEST(NextToken, LearnsTextByHeartResumesToTheSameBitsAndGoesOnWithIt) {
  ScratchFolder whole, parts;
  for (const ScratchFolder* folder : {&whole, &parts}) folder->put("book.txt", text_of(260));
  const Heard all = train(settings_of(whole, whole / "book.txt", {"test_share=0.2", "epochs=10"}));
  EXPECT_EQ(all.begin.unit, "sequences");
  EXPECT_LT(all.end.best_score, 1.2);  // perplexity: nothing in this text is a surprise but its first words
  const EvaluationReport& last = all.evaluations.back();
  EXPECT_NEAR(last.score("perplexity"), std::exp(last.loss), 1e-6 * std::exp(last.loss));
  EXPECT_GT(last.score("top1"), 0.9);
  const Heard first = train(settings_of(parts, parts / "book.txt", {"test_share=0.2", "epochs=10"}), 5);
  ASSERT_TRUE(first.end.interrupted);
  train({"resume=" + (parts / "runs/1").string()});
  EXPECT_TRUE(parts.get("runs/1/best.safetensors") == whole.get("runs/1/best.safetensors"));

  const TokenWriter writer(whole / "runs/1");
  EXPECT_EQ(written(writer, "abc def ghi\njk", {.tokens = 21}), "l mno pq\nabc def ghi\n");
  EXPECT_EQ(written(writer, "abc def ghi\njk", {.tokens = 4, .temperature = 1, .top_k = 1}), "l mn");
  EXPECT_ERROR(written(writer, "", {}), ConfigError, "the prompt is empty");
  EXPECT_ERROR(written(writer, "a", {.tokens = 0}), ConfigError, "tokens is 0");
  EXPECT_ERROR(written(writer, "a", {.temperature = -1}), ConfigError, "temperature is -1");
  EXPECT_ERROR(written(writer, "a", {.top_k = 2}), ConfigError, "top_k has no effect without a temperature");
  const std::filesystem::path checkpoint = all.end.checkpoint;
  EXPECT_EQ(run_of(checkpoint), std::filesystem::absolute(whole / "runs/1"));
  EXPECT_EQ(run_of(whole / "runs/1/best.safetensors"), std::filesystem::absolute(whole / "runs/1"));
  EXPECT_EQ(run_of(whole / "runs/1"), whole / "runs/1");
  EXPECT_ERROR(run_of(whole / "book.txt"), ConfigError, "is in no run's folder");
  EXPECT_EQ(written(TokenWriter(run_of(checkpoint), checkpoint), "abc de", {.tokens = 4}), "f gh");
  EXPECT_NEAR(Trainer(load_config(whole / "runs/1/config.yaml")).evaluate(all.end.weights).headline(),
              all.end.best_score, 1e-6);
}

// Of each length that a model is given there is one plan, not one of each token.
TEST(NextToken, WritingManyTokensMakesFewPlans) {
  ScratchFolder folder;
  folder.put("book.txt", text_of(60));
  train(settings_of(folder, folder / "book.txt", {"steps=1", "context=128", "seq_length=128", "batch_size=2"}));
  const TokenWriter writer(folder / "runs/1");
  runtime::clear_plan_cache();
  EXPECT_EQ(written(writer, "abc", {.tokens = 150}).size(), 150U);
  EXPECT_EQ(runtime::cached_plans().size(), 3U);  // 32, 64 and 128 tokens
}

TEST(NextToken, AFolderHasItsVocabularyBesideItsText) {
  ScratchFolder folder;
  for (const char* name : {"vocab.json", "merges.txt"})
    std::filesystem::copy_file(std::filesystem::path(kPairs) / name, folder / name);
  std::string text;
  for (int i = 0; i < 60; ++i) text += "The fire burns low. It wasn't theirs; 火。\n<|endoftext|>";
  folder.put("train.txt", text);
  folder.put("test.txt", "The fire burns low. It wasn't theirs; 火。\n");
  const Heard run = train(settings_of(folder, folder.path(), {"epochs=30"}));
  EXPECT_NE(run.begin.data.find("(601 pieces)"), std::string::npos) << run.begin.data;
  const TokenWriter writer(folder / "runs/1");
  EXPECT_EQ(written(writer, "The fire burns low. It wasn't", {.tokens = 60}),
            " theirs; 火。\n");  // up to <|endoftext|>
  EXPECT_ERROR(train(settings_of(folder, folder.path(), {"test_share=0.3"})), ConfigError, "test_share has no effect");
}

TEST(NextToken, TokensAreDrawnAsTheTemperatureSays) {
  const std::vector<float> logits{1.0F, 3.0F, 2.0F, -1.0F};
  EXPECT_EQ(choose_token(logits, {}, 0), 1);
  std::vector<double> shares(4), of_two(4);
  constexpr int kDraws = 20000;
  for (int i = 0; i < kDraws; ++i) {
    const auto number = static_cast<uint64_t>(i);
    shares[static_cast<size_t>(choose_token(logits, {.temperature = 2, .seed = 3}, number))] += 1.0 / kDraws;
    of_two[static_cast<size_t>(choose_token(logits, {.temperature = 2, .top_k = 2, .seed = 3}, number))] +=
        1.0 / kDraws;
  }
  double sum = 0, two = std::exp(1.5) + std::exp(1.0);
  for (float logit : logits) sum += std::exp(logit / 2);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_NEAR(shares[i], std::exp(logits[i] / 2) / sum, 0.015);
    EXPECT_NEAR(of_two[i], i == 1 || i == 2 ? std::exp(logits[i] / 2) / two : 0, 0.015);
  }
  EXPECT_EQ(choose_token(logits, {.temperature = 2, .seed = 4}, 7),
            choose_token(logits, {.temperature = 2, .seed = 4}, 7));
}

// Two ranks with half the batch each take the steps of one.
TEST(NextToken, TwoRanksTrainAsOneDoes) {
  ScratchFolder one, two;
  for (const ScratchFolder* folder : {&one, &two}) folder->put("book.txt", text_of(100));
  const Heard alone = train(settings_of(one, one / "book.txt", {"steps=6"}));
  auto groups = comm::local_groups(2, {.timeout = std::chrono::seconds(60)});
  std::vector<std::vector<double>> losses(2);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank)
    threads.emplace_back([&, rank] {
      fleet::join(groups[static_cast<size_t>(rank)]);
      Trainer trainer(default_config(
          settings_of(two, two / "book.txt", {"steps=6", "batch_size=4", "place=cpu:" + std::to_string(rank)})));
      trainer.add(
          {.step = [&](const StepReport& report) { losses[static_cast<size_t>(rank)].push_back(report.loss); }});
      trainer.run();
      fleet::leave();
    });
  for (std::thread& thread : threads) thread.join();
  ASSERT_EQ(losses[0].size(), alone.losses.size());
  for (size_t i = 0; i < alone.losses.size(); ++i) EXPECT_NEAR(losses[0][i], alone.losses[i], 1e-4 * alone.losses[i]);
}

TEST(NextToken, MixedPrecisionHasNearlyTheSameLosses) {
  ScratchFolder folder;
  folder.put("book.txt", text_of(100));
  const Heard full = train(settings_of(folder, folder / "book.txt", {"steps=6"}));
  const Heard mixed = train(settings_of(folder, folder / "book.txt", {"steps=6", "strategy.use_amp=true"}));
  double farthest = 0;
  for (size_t i = 0; i < full.losses.size(); ++i) {
    EXPECT_NEAR(mixed.losses[i], full.losses[i], 0.02 * full.losses[i]);
    farthest = std::max(farthest, std::fabs(mixed.losses[i] - full.losses[i]));
  }
  EXPECT_GT(farthest, 1e-6) << "nothing was computed in bf16";
}

// Perplexity is told of training steps too, and yet the logits are not kept for it.
TEST(NextToken, LogitsOfALargeVocabularyNeverExistAsAWhole) {
  ScratchFolder folder;
  const auto json = [&] {  // GPT-2's form, with pieces that nothing merges to
    std::ifstream file(kPairs + "/vocab.json");
    std::string text{std::istreambuf_iterator<char>(file), {}};
    text.resize(text.rfind('}'));
    for (int i = 601; i < 5000; ++i)
      text += ", \"" + std::string("unused") + std::to_string(i) + "\": " + std::to_string(i);
    return text + "}";
  }();
  folder.put("vocab.json", json);
  std::filesystem::copy_file(kPairs + "/merges.txt", folder / "merges.txt");
  folder.put("train.txt", text_of(900));
  folder.put("test.txt", text_of(4));
  runtime::clear_plan_cache();
  train(settings_of(folder, folder.path(), {"steps=1", "context=128", "seq_length=128", "batch_size=8"}));
  std::set<std::string> ops;
  for (const auto& plan : runtime::cached_plans())
    for (const runtime::PlanNote& note : plan->notes)
      if (note.node.find("cross_entropy") != std::string::npos) ops.insert(note.node);
  EXPECT_TRUE(ops.contains("linear_cross_entropy"));
  EXPECT_FALSE(ops.contains("cross_entropy_gradient"));
}

TEST(NextToken, WhatDoesNotFitIsRefused) {
  ScratchFolder folder;
  folder.put("book.txt", text_of(60));
  auto refused = [&](const Words& more) { train(settings_of(folder, folder / "book.txt", more)); };
  EXPECT_ERROR(refused({"seq_length=64"}), ConfigError, "seq_length is 64, above the model's context of 32");
  EXPECT_ERROR(refused({"lower_case=false"}), ConfigError, "lower_case is for WordPiece");
  EXPECT_ERROR(refused({"image_size=8"}), ConfigError, "image_size is for images, and gpt2 reads running text");
  EXPECT_ERROR(refused({"data=" + (folder / "none").string()}), DataError,
               "none' is neither a text file nor a folder with a train.txt");
  EXPECT_ERROR(refused({"width=33"}), ConfigError, "2 heads cannot share a width of 33");
  const std::string output = "output=" + (folder / "runs").string();
  EXPECT_ERROR(train({output, "layers=2"}), ConfigError, "layers is for gpt2, not for mnist_cnn");
  EXPECT_ERROR(train({output, "dropout=0.5", "model=bert_mini"}), ConfigError,
               "dropout is for gpt2, not for bert_mini");
  EXPECT_ERROR(train({output, "weight_decay_of=matrices"}), ConfigError,
               "weight_decay_of has no effect without weight_decay");
  EXPECT_ERROR(train({output, "model=bert_mini", "seq_length=600"}), ConfigError, "bert_mini reads at most 512 tokens");
}

}  // namespace
}  // namespace bonfire::train::next_token_test
