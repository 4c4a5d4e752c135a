#include "bonfire/nn/init.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "bonfire/base/error.h"
#include "bonfire/nn/convolution.h"
#include "bonfire/nn/embedding.h"
#include "bonfire/nn/linear.h"
#include "bonfire/nn/lstm.h"
#include "bonfire/nn/norm.h"
#include "tests/graph/random_slice.h"

namespace bonfire::nn::init_test {
namespace {

struct Moments {
  double mean, deviation, low, high;
};

Moments moments_of(const Variable& variable) {
  std::vector<double> values = variable.value().to_vector<double>();
  double mean = std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
  double squares = 0;
  for (double value : values) squares += (value - mean) * (value - mean);
  auto [low, high] = std::minmax_element(values.begin(), values.end());
  return {mean, std::sqrt(squares / static_cast<double>(values.size())), *low, *high};
}

// All of it lies within ±bound, fills that range and is spread evenly.
void expect_uniform(const Variable& variable, double bound) {
  Moments moments = moments_of(variable);
  EXPECT_GE(moments.low, -bound);
  EXPECT_LT(moments.high, bound);
  EXPECT_GT(moments.high, 0.97 * bound);
  EXPECT_LT(moments.low, -0.97 * bound);
  EXPECT_NEAR(moments.mean, 0, 0.05 * bound);
  EXPECT_NEAR(moments.deviation, bound / std::sqrt(3.0), 0.05 * bound);
}

void expect_normal(const Variable& variable, double deviation) {
  Moments moments = moments_of(variable);
  EXPECT_NEAR(moments.mean, 0, 0.05 * deviation);
  EXPECT_NEAR(moments.deviation, deviation, 0.05 * deviation);
  EXPECT_GT(moments.high, 2.5 * deviation);
}

TEST(Init, LinearAndConvolutionBeginAsPyTorchs) {
  Linear fc({.in = 64, .out = 1000});
  expect_uniform(fc.weight, 1 / 8.0);
  expect_uniform(fc.bias, 1 / 8.0);
  Conv2d conv({.in = 8, .out = 400, .kernel = {5}, .groups = 2});
  expect_uniform(conv.weight, 1 / 10.0);  // 4 channels of 5 × 5 go into each
  expect_uniform(conv.bias, 1 / 10.0);
}

TEST(Init, EmbeddingAndLstmBeginAsPyTorchs) {
  expect_normal(Embedding({.rows = 1000, .size = 10}).weight, 1);
  manual_seed(1);
  LSTM lstm({.input = 20, .hidden = 256});
  for (const auto& [name, parameter] : lstm.named_parameters()) {
    SCOPED_TRACE(name);
    expect_uniform(parameter, 1 / 16.0);
  }
}

TEST(Init, TheRowOfPaddingIsZero) {
  std::vector<float> values = Embedding({.rows = 3, .size = 2, .padding_index = 1}).weight.value().to_vector<float>();
  EXPECT_EQ(values[2], 0);
  EXPECT_EQ(values[3], 0);
  EXPECT_NE(values[0], 0);
  EXPECT_NE(values[4], 0);
}

TEST(Init, KaimingNormalCountsWhatGoesOut) {
  Conv2d conv({.in = 50, .out = 32, .kernel = {3}, .weight_init = init::kaiming_normal_fan_out()});
  expect_normal(conv.weight, std::sqrt(2.0 / (32 * 9)));
}

TEST(Init, NormsBeginAsTheIdentity) {
  BatchNorm2d norm({.channels = 3});
  EXPECT_EQ(norm.weight.value().to_vector<float>(), (std::vector<float>{1, 1, 1}));
  EXPECT_EQ(norm.bias.value().to_vector<float>(), (std::vector<float>{0, 0, 0}));
  EXPECT_EQ(norm.running_mean.value().to_vector<float>(), (std::vector<float>{0, 0, 0}));
  EXPECT_EQ(norm.running_var.value().to_vector<float>(), (std::vector<float>{1, 1, 1}));
}

TEST(Init, TheSameSeedGivesTheSameBits) {
  auto draw = [](uint64_t seed) {
    manual_seed(seed);
    Linear first({.in = 300, .out = 300});  // enough for several threads
    Embedding second({.rows = 300, .size = 300});
    std::vector<std::vector<std::byte>> bytes;
    for (const Variable& variable : {Variable(first.weight), Variable(first.bias), Variable(second.weight)})
      bytes.push_back(variable.save());
    return bytes;
  };
  EXPECT_EQ(draw(1), draw(1));
  EXPECT_NE(draw(1), draw(2));
}

TEST(Init, EachParameterHasNumbersOfItsOwn) {
  Linear first({.in = 3, .out = 3}), second({.in = 3, .out = 3});
  EXPECT_NE(first.weight.save(), second.weight.save());
}

TEST(Init, WhatIsSkippedIsZero) {
  init::Skip skip;
  EXPECT_EQ(Linear({.in = 2, .out = 1}).weight.value().to_vector<float>(), (std::vector<float>{0, 0}));
}

TEST(Init, EverySliceOfEveryRuleIsThatPartOfTheWhole) {
  const auto seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  const std::pair<const char*, init::Rule> rules[] = {{"zeros", init::zeros()},
                                                      {"ones", init::ones()},
                                                      {"constant", init::constant(0.3)},
                                                      {"uniform", init::uniform(-2, 3)},
                                                      {"normal", init::normal(0.5, 1)},
                                                      {"kaiming_uniform", init::kaiming_uniform()},
                                                      {"kaiming_normal", init::kaiming_normal_fan_out()},
                                                      {"xavier_uniform", init::xavier_uniform()},
                                                      {"bias_of", init::bias_of({6, 5, 4, 2})},
                                                      {"with_zero_row", init::with_zero_row(init::normal(1), 3)}};
  for (const auto& [name, rule] : rules)
    for (const Shape& shape : {Shape{6, 5, 4, 2}, Shape{12, 10}})
      for (const DType dtype : {DType::f32, DType::bf16, DType::f64}) {
        const Slice slice = testing::random_slice(random, shape);
        SCOPED_TRACE(std::string(name) + ", " + to_string(slice));
        auto make = [&, &rule = rule](const Slice& kept, bool late) {
          manual_seed(seed);
          Variable variable({shape, dtype, {}});
          if (!late) variable.keep_slice(kept);
          rule(variable);
          if (late) variable.keep_slice(kept);
          EXPECT_EQ(variable.state().buffer.storage, nullptr);  // nothing is made before it is asked for
          return variable.save_stored();
        };
        const std::vector<std::byte> all = make(Slice(shape), false);
        std::vector<std::byte> expected(static_cast<size_t>(slice.count()) * size_of(dtype));
        copy_overlaps(overlaps(Slice(shape), slice), size_of(dtype), all.data(), expected.data());
        EXPECT_EQ(make(slice, false), expected);
        EXPECT_EQ(make(slice, true), expected);
      }
}

TEST(Init, SeedAndPlaceAreThoseOfWhenTheModuleWasMade) {
  manual_seed(3);
  Linear first({.in = 4, .out = 4}), second({.in = 4, .out = 4});
  const std::vector<std::byte> second_first = second.weight.save();
  manual_seed(3);
  Linear again({.in = 4, .out = 4}), last({.in = 4, .out = 4});
  manual_seed(4);
  const std::vector<std::byte> first_second = again.weight.save();
  EXPECT_EQ(last.weight.save(), second_first);
  EXPECT_EQ(first.weight.save(), first_second);
}

TEST(Init, ARuleOfOnesOwnMayLoad) {
  Embedding table({.rows = 3, .size = 2, .padding_index = 1, .weight_init = [](const Variable& variable) {
                     const std::vector<float> values{1, 2, 3, 4, 5, 6};
                     variable.load(std::as_bytes(std::span(values)));
                   }});
  EXPECT_EQ(table.weight.value().to_vector<float>(), (std::vector<float>{1, 2, 0, 0, 5, 6}));
}

TEST(Init, AVectorHasNoFanIn) { EXPECT_THROW(init::kaiming_uniform()(Variable({{3}, DType::f32, {}})), ShapeError); }

}  // namespace
}  // namespace bonfire::nn::init_test
