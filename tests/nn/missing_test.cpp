// What a layer, a module or an optimizer cannot do without is asked for, by name.

#include <gtest/gtest.h>

#include <functional>

#include "bonfire/bonfire.h"
#include "tests/support/expect_error.h"

namespace bonfire::nn::missing_test {
namespace {

// NOLINTBEGIN(clang-diagnostic-missing-field-initializers): they are missing
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmissing-field-initializers"

TEST(MissingSizes, OfALayerAreAnErrorThatNamesIt) {
  EXPECT_ERROR(Linear({.out = 3}), ConfigError,
               "[Linear] in is 0 (was it left out?), expected at least 1: nn::Linear({.in = ...})");
  EXPECT_ERROR(Linear({.in = 3}), ConfigError, "[Linear] out is 0");
  EXPECT_ERROR(Linear({.in = -3, .out = 1}), ConfigError, "[Linear] in is -3, expected at least 1");
  EXPECT_ERROR(Conv2d({.out = 3, .kernel = {3}}), ConfigError, "[Conv2d] in is 0");
  EXPECT_ERROR(Conv2d({.in = 3, .kernel = {3}}), ConfigError, "[Conv2d] out is 0");
  EXPECT_ERROR(Conv2d({.in = 3, .out = 3}), ConfigError, "[Conv2d] kernel is []");
  EXPECT_ERROR(Conv2d({.in = 3, .out = 3, .kernel = {0, 3}}), ConfigError, "[Conv2d] kernel is 0");
  EXPECT_ERROR(Embedding({.size = 3}), ConfigError, "[Embedding] rows is 0");
  EXPECT_ERROR(Embedding({.rows = 3}), ConfigError, "[Embedding] size is 0");
  EXPECT_ERROR(BatchNorm1d({}), ConfigError, "[BatchNorm1d] channels is 0");
  EXPECT_ERROR(BatchNorm2d({}), ConfigError, "[BatchNorm2d] channels is 0");
  EXPECT_ERROR(LayerNorm({}), ConfigError, "[LayerNorm] shape is empty");
  EXPECT_ERROR(LayerNorm({.shape = {0}}), ConfigError, "[LayerNorm] shape is 0");
  EXPECT_ERROR(LSTM({.hidden = 3}), ConfigError, "[LSTM] input is 0");
  EXPECT_ERROR(LSTM({.input = 3}), ConfigError, "[LSTM] hidden is 0");
  EXPECT_ERROR(MultiheadAttention({.heads = 3}), ConfigError, "[MultiheadAttention] size is 0");
  EXPECT_ERROR(MultiheadAttention({.size = 3}), ConfigError, "[MultiheadAttention] heads is 0");
  EXPECT_ERROR(MultiheadAttention({.size = 3, .heads = 2}), ConfigError, "2 heads cannot share a size of 3");
  EXPECT_ERROR(Linear(Parameter(), Parameter()), ConfigError, "[Linear] the tied weight is undefined");
}

#pragma GCC diagnostic pop
// NOLINTEND(clang-diagnostic-missing-field-initializers)

// A layer without a bias has an undefined one.
TEST(MissingBias, IsAnErrorWhateverIsAskedOfIt) {
  Linear layer({.in = 2, .out = 2, .bias = false});
  const std::pair<const char*, std::function<void()>> asked[] = {
      {"value", [&] { layer.bias.value(); }},
      {"value", [&] { ones({2}) + layer.bias; }},
      {"value", [&] { relu(layer.bias); }},
      {"spec", [&] { layer.bias.spec(); }},
      {"shape", [&] { layer.bias.shape(); }},
      {"dtype", [&] { layer.bias.dtype(); }},
      {"device", [&] { layer.bias.device(); }},
      {"name", [&] { layer.bias.name(); }},
      {"load", [&] { layer.bias.load({}); }},
      {"save", [&] { layer.bias.save(); }},
      {"save_as_it_lies", [&] { layer.bias.save_as_it_lies({}); }},
      {"move_to", [&] { layer.bias.move_to({}); }},
      {"assign", [&] { layer.bias.assign(ones({2})); }},
      {"grad", [&] { layer.bias.grad(); }},
      {"grad_variable", [&] { layer.bias.grad_variable(); }},
      {"clear_grad", [&] { layer.bias.clear_grad(); }},
      {"requires_grad", [&] { layer.bias.requires_grad(); }},
      {"set_requires_grad", [&] { layer.bias.set_requires_grad(false); }},
      {"state", [&] { layer.bias.state(); }},
  };
  PathScope path("fc");
  for (const auto& [call, ask] : asked) {
    EXPECT_ERROR(ask(), GraphError, fmt::format("[{}] the variable is undefined in module fc", call));
  }
  EXPECT_EQ(layer(ones({1, 2})).shape(), (Shape{1, 2}));
  EXPECT_ERROR(init::zeros()(layer.bias), GraphError, "undefined");
}

class Two final : public Callable<Two> {
 public:
  explicit Two(bool passes_on) : Callable("Two"), passes_on_(passes_on) {}
  Tensor forward(const Tensor& x) const { return second_(passes_on_ ? first_(x) : Tensor()); }

 private:
  bool passes_on_;
  Linear first_ = register_module("first", Linear({.in = 2, .out = 2}));
  Linear second_ = register_module("second", Linear({.in = 2, .out = 2}));
};

TEST(UndefinedInputs, OfModulesAreErrorsThatNameTheModule) {
  Sequential net({Two(true), Two(false)});
  EXPECT_ERROR(net(ones({1, 2})), GraphError, "[linear] x is an undefined tensor in module 1.second; give it a value");
  const std::pair<const char*, AnyModule> layers[] = {{"linear", Linear({.in = 2, .out = 2})},
                                                      {"conv2d", Conv2d({.in = 2, .out = 2, .kernel = {1}})},
                                                      {"embedding", Embedding({.rows = 2, .size = 2})},
                                                      {"batch_norm", BatchNorm2d({.channels = 2})},
                                                      {"layer_norm", LayerNorm({.shape = {2}})},
                                                      {"linear", MultiheadAttention({.size = 2, .heads = 1})},
                                                      {"max_pool2d", MaxPool2d({.kernel = {2}})},
                                                      {"avg_pool2d", AvgPool2d({.kernel = {2}})},
                                                      {"adaptive_avg_pool2d", AdaptiveAvgPool2d({1, 1})},
                                                      {"relu", ReLU()},
                                                      {"gelu", GELU()},
                                                      {"identity", Identity()},
                                                      {"dropout", Dropout(0.5)},
                                                      {"flatten", Flatten()}};
  for (const auto& [call, layer] : layers) {
    Sequential one({layer});
    EXPECT_ERROR(one(Tensor()), GraphError, fmt::format("[{}] ", call));
    EXPECT_ERROR(one(Tensor()), GraphError, "undefined tensor in module 0");
  }
  LSTM lstm({.input = 2, .hidden = 2});
  EXPECT_ERROR(lstm(Tensor()), GraphError, "[lstm] x is an undefined tensor");
}

class WithoutParameter final : public Callable<WithoutParameter> {
 public:
  WithoutParameter() : Callable("WithoutParameter") { register_parameter("weight", Parameter()); }
};

TEST(UndefinedParameters, AreRefusedByModulesAndOptimizers) {
  EXPECT_ERROR(WithoutParameter(), ConfigError, "[module] parameter 'weight' of WithoutParameter is undefined");
  const std::vector<Variable> none(1);
  EXPECT_ERROR(optim::SGD(none, {.lr = 0.1}), ConfigError, "[sgd] a parameter is undefined");
  EXPECT_ERROR(optim::Adam(none, {.lr = 0.1}), ConfigError, "[adam] a parameter is undefined");
  EXPECT_ERROR(optim::clip_grad_norm(none, 1.0), ConfigError, "[clip_grad_norm] a parameter is undefined");
}

}  // namespace
}  // namespace bonfire::nn::missing_test
