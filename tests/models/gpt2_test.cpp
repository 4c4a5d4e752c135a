// GPT-2 beside what PyTorch has of it (golden_test.cpp): what padding, places and the head do.
#include "bonfire/models/gpt2.h"

#include <gtest/gtest.h>

#include <cmath>

#include "bonfire/base/error.h"
#include "bonfire/nn/init.h"
#include "bonfire/ops/indexing.h"
#include "bonfire/ops/loss.h"
#include "bonfire/ops/random.h"
#include "bonfire/ops/shape_ops.h"
#include "tests/support/expect_error.h"

namespace bonfire::models::gpt2_test {
namespace {

const GPT2Options kSmall{.vocabulary = 50, .layers = 2, .heads = 2, .width = 16, .context = 12, .dropout = 0};

Tensor tokens_of(const std::vector<int64_t>& values, int64_t samples) {
  return Tensor::from<int64_t>(values, {samples, static_cast<int64_t>(values.size()) / samples});
}

std::vector<int64_t> some_tokens(int64_t count) {
  std::vector<int64_t> tokens;
  for (int64_t i = 0; i < count; ++i) tokens.push_back(7 * i % 50);
  return tokens;
}

GPT2LMHeadModel seeded(const GPT2Options& options) {
  manual_seed(5);
  return gpt2(options);
}

// Filler behind a text changes nothing in front of it: what `bonfire predict` relies on.
TEST(Gpt2, LooksAtNothingThatComesLater) {
  const GPT2LMHeadModel model = seeded(kSmall);
  model.eval();
  NoGrad no_grad;
  std::vector<int64_t> tokens = some_tokens(12);
  const std::vector<float> all = model(tokens_of(tokens, 1)).to_vector<float>();
  for (size_t length : {1U, 5U, 11U}) {
    std::vector<int64_t> other = tokens;
    for (size_t i = length; i < other.size(); ++i) other[i] = 3;
    const std::vector<float> changed = model(tokens_of(other, 1)).to_vector<float>();
    for (size_t i = 0; i < length * 50; ++i) ASSERT_NEAR(changed[i], all[i], 1e-5) << "place " << i / 50;
    EXPECT_GT(std::fabs(changed[length * 50] - all[length * 50]), 1e-6);
  }
}

TEST(Gpt2, GivesTheLogitsOfSomePlacesAlone) {
  const GPT2LMHeadModel model = seeded(kSmall);
  model.eval();
  NoGrad no_grad;
  const Tensor tokens = tokens_of(some_tokens(20), 2);
  const std::vector<int64_t> places{3, 19, 10};
  const std::vector<float> all = model(tokens).to_vector<float>();
  const std::vector<float> some = model.logits_at(tokens, Tensor::from<int64_t>(places, {3})).to_vector<float>();
  ASSERT_EQ(some.size(), 150U);
  for (size_t i = 0; i < 150; ++i) EXPECT_NEAR(some[i], all[static_cast<size_t>(places[i / 50]) * 50 + i % 50], 1e-5);
}

// The rows that make the head's product a multiple of 64 are in no result, no gradient and no checkpoint.
TEST(Gpt2, AMultipleOfRowsInTheHeadChangesNothing) {
  GPT2Options padded = kSmall;
  padded.head_multiple = 64;
  std::vector<std::vector<float>> logits, gradients;
  for (const GPT2Options& options : {kSmall, padded}) {
    const GPT2LMHeadModel model = seeded(options);
    const Tensor result = model(tokens_of(some_tokens(24), 2));
    EXPECT_EQ(result.shape(), (Shape{2, 12, 50}));
    Tensor loss = cross_entropy(flatten(result, 0, 1), flatten(tokens_of(some_tokens(24), 2)));
    loss.backward();
    logits.push_back(result.to_vector<float>());
    std::vector<float>& all = gradients.emplace_back();
    for (const Parameter& parameter : model.parameters())
      for (float value : parameter.grad().to_vector<float>()) all.push_back(value);
    EXPECT_EQ(model.state_dict().front().name, "transformer.wte.weight");
    EXPECT_EQ(model.state_dict().front().variable.shape(), (Shape{50, 16}));
    EXPECT_EQ(model.state_dict().back().name, "lm_head.weight");
    EXPECT_EQ(model.state_dict().back().variable.shape(), (Shape{50, 16}));
  }
  ASSERT_EQ(logits[0].size(), logits[1].size());
  for (size_t i = 0; i < logits[0].size(); ++i) ASSERT_NEAR(logits[0][i], logits[1][i], 1e-5);
  ASSERT_EQ(gradients[0].size(), gradients[1].size());
  for (size_t i = 0; i < gradients[0].size(); ++i) ASSERT_NEAR(gradients[0][i], gradients[1][i], 1e-5);
}

// 0.02, but for what is added to the sum that goes through all layers: 0.02 / √(2 layers).
TEST(Gpt2, BeginsWithTheDeviationsOfTheOriginal) {
  manual_seed(1);
  const GPT2LMHeadModel model = gpt2({.vocabulary = 256, .layers = 8, .heads = 2, .width = 64, .context = 64});
  for (const auto& [name, parameter] : model.named_parameters()) {
    const std::vector<float> values = parameter.value().to_vector<float>();
    double squares = 0;
    for (float value : values) squares += static_cast<double>(value) * value;
    const double deviation = std::sqrt(squares / static_cast<double>(values.size()));
    if (parameter.shape().rank() == 1) {
      EXPECT_EQ(deviation, name.find("ln_") != std::string::npos && name.ends_with("weight") ? 1 : 0) << name;
    } else {
      EXPECT_NEAR(deviation, name.find("c_proj") != std::string::npos ? 0.005 : 0.02, 0.001) << name;
    }
  }
}

TEST(Gpt2, WhatDoesNotFitIsNamed) {
  EXPECT_ERROR(gpt2({.heads = 5}), ConfigError, "5 heads cannot share a width of 768");
  EXPECT_ERROR(gpt2({.layers = 0}), ConfigError, "layers");
  EXPECT_ERROR(seeded(kSmall)(tokens_of(some_tokens(13), 1)), ShapeError, "expected [N, T] with at most 12 tokens");
}

}  // namespace
}  // namespace bonfire::models::gpt2_test
