#include <gtest/gtest.h>

#include <cmath>

#include "bonfire/base/error.h"
#include "bonfire/nn/activation.h"
#include "bonfire/nn/attention.h"
#include "bonfire/nn/convolution.h"
#include "bonfire/nn/embedding.h"
#include "bonfire/nn/linear.h"
#include "bonfire/nn/lstm.h"
#include "bonfire/nn/module_list.h"
#include "bonfire/nn/norm.h"
#include "bonfire/nn/pooling.h"
#include "bonfire/ops/random.h"
#include "bonfire/ops/reduce.h"
#include "bonfire/ops/shape_ops.h"

namespace bonfire::nn::layers_test {
namespace {

TEST(Layers, PrintAsPyTorchs) {
  EXPECT_EQ(to_string(Conv2d({.in = 1, .out = 20, .kernel = {5}})), "Conv2d(1, 20, kernel_size=(5, 5), stride=(1, 1))");
  EXPECT_EQ(to_string(Conv2d({.in = 4,
                              .out = 8,
                              .kernel = {3, 1},
                              .stride = {2},
                              .padding = {1, 0},
                              .dilation = {2},
                              .groups = 2,
                              .bias = false})),
            "Conv2d(4, 8, kernel_size=(3, 1), stride=(2, 2), padding=(1, 0), dilation=(2, 2), groups=2, bias=False)");
  EXPECT_EQ(to_string(LayerNorm({.shape = {256}, .eps = 1e-12})),
            "LayerNorm((256,), eps=1e-12, elementwise_affine=True)");
  EXPECT_EQ(to_string(LayerNorm({.shape = {2, 3}, .affine = false})),
            "LayerNorm((2, 3), eps=1e-05, elementwise_affine=False)");
  EXPECT_EQ(to_string(Embedding({.rows = 7, .size = 3, .padding_index = 0})), "Embedding(7, 3, padding_idx=0)");
  EXPECT_EQ(to_string(LSTM({.input = 6, .hidden = 5, .layers = 2, .batch_first = true})),
            "LSTM(6, 5, num_layers=2, batch_first=True)");
  EXPECT_EQ(to_string(LSTM({.input = 3, .hidden = 4})), "LSTM(3, 4)");
  EXPECT_EQ(to_string(LSTM({.input = 3, .hidden = 4, .layers = 2, .bias = false, .dropout = 0.5})),
            "LSTM(3, 4, num_layers=2, bias=False, dropout=0.5)");
  EXPECT_EQ(to_string(Linear({.in = 3, .out = 4, .bias = false})), "Linear(in_features=3, out_features=4, bias=False)");
  EXPECT_EQ(to_string(BatchNorm2d({.channels = 3, .momentum = 1})),
            "BatchNorm2d(3, eps=1e-05, momentum=1.0, affine=True, track_running_stats=True)");
  EXPECT_EQ(to_string(BatchNorm1d({.channels = 3, .eps = 1e-3, .affine = false})),
            "BatchNorm1d(3, eps=0.001, momentum=0.1, affine=False, track_running_stats=True)");
  EXPECT_EQ(to_string(MultiheadAttention({.size = 8, .heads = 2})),
            "MultiheadAttention(\n"
            "  (out_proj): NonDynamicallyQuantizableLinear(in_features=8, out_features=8, bias=True)\n"
            ")");
}

TEST(Layers, WithoutParametersPrintAsPyTorchs) {
  EXPECT_EQ(to_string(Dropout(0.25)), "Dropout(p=0.25, inplace=False)");
  EXPECT_EQ(to_string(Dropout(0)), "Dropout(p=0.0, inplace=False)");
  EXPECT_EQ(to_string(ReLU()), "ReLU()");
  EXPECT_EQ(to_string(ReLU({.inplace = true})), "ReLU(inplace=True)");
  EXPECT_EQ(to_string(GELU()), "GELU(approximate='none')");
  EXPECT_EQ(to_string(SiLU()), "SiLU()");
  EXPECT_EQ(to_string(Flatten()), "Flatten(start_dim=1, end_dim=-1)");
  EXPECT_EQ(to_string(MaxPool2d({.kernel = {3}, .stride = {2}})),
            "MaxPool2d(kernel_size=3, stride=2, padding=0, dilation=1, ceil_mode=False)");
  EXPECT_EQ(to_string(MaxPool2d({.kernel = {3, 2}, .stride = {2}, .padding = {1}, .ceil_mode = true})),
            "MaxPool2d(kernel_size=(3, 2), stride=2, padding=1, dilation=1, ceil_mode=True)");
  EXPECT_EQ(to_string(MaxPool2d({.kernel = {2}})),
            "MaxPool2d(kernel_size=2, stride=2, padding=0, dilation=1, ceil_mode=False)");
  EXPECT_EQ(to_string(AvgPool2d({.kernel = {2, 3}})), "AvgPool2d(kernel_size=(2, 3), stride=(2, 3), padding=0)");
  EXPECT_EQ(to_string(AdaptiveAvgPool2d({6, 6})), "AdaptiveAvgPool2d(output_size=(6, 6))");
  EXPECT_EQ(to_string(AdaptiveAvgPool2d({1})), "AdaptiveAvgPool2d(output_size=1)");
}

TEST(Layers, ListsShowEqualModulesOnceAsPyTorchs) {
  ModuleList<AnyModule> list;
  EXPECT_EQ(to_string(list), "ModuleList()");
  for (int64_t out : {2, 2, 3}) list.push_back(Linear({.in = 2, .out = out}));
  EXPECT_EQ(to_string(list),
            "ModuleList(\n"
            "  (0-1): 2 x Linear(in_features=2, out_features=2, bias=True)\n"
            "  (2): Linear(in_features=2, out_features=3, bias=True)\n"
            ")");
}

TEST(Layers, DropoutWorksOnlyWhileTraining) {
  Dropout dropout(0.5);
  Tensor x = uniform_random({1000}) + 1.0;
  auto dropped = [&] {
    int64_t zeros = 0;
    for (float value : dropout(x).to_vector<float>()) zeros += value == 0;
    return zeros;
  };
  EXPECT_GT(dropped(), 400);
  EXPECT_LT(dropped(), 600);
  dropout.eval();
  EXPECT_EQ(dropout(x).to_vector<float>(), x.to_vector<float>());
  EXPECT_THROW(Dropout(1.5), ConfigError);
}

TEST(Layers, BatchNormFollowsTheStatisticsOfItsBatches) {
  BatchNorm1d norm({.channels = 1, .momentum = 0.5});
  norm(Tensor::from<float>({1, 3}, {2, 1})).to_vector<float>();  // mean 2, unbiased variance 2
  EXPECT_FLOAT_EQ(norm.running_mean.value().item<float>(), 1);
  EXPECT_FLOAT_EQ(norm.running_var.value().item<float>(), 1.5);
  norm.eval();
  EXPECT_NEAR(norm(Tensor::from<float>({3}, {1, 1})).item<float>(), 2 / std::sqrt(1.5), 1e-5);
}

TEST(Layers, WrongOptionsAreNamed) {
  EXPECT_THROW(Conv2d({.in = 3, .out = 4, .kernel = {3}, .groups = 2}), ConfigError);
  EXPECT_THROW(Conv2d({.in = 3, .out = 4, .kernel = {}}), ConfigError);
  EXPECT_THROW(LSTM({.input = 3, .hidden = 0}), ConfigError);
  EXPECT_THROW(Embedding({.rows = 3, .size = 2, .padding_index = 3}), ConfigError);
}

TEST(MultiheadAttention, HasPyTorchsNames) {
  MultiheadAttention attention({.size = 4, .heads = 2});
  std::vector<std::string> names;
  for (const auto& [name, parameter] : attention.named_parameters()) names.push_back(name);
  EXPECT_EQ(names, (std::vector<std::string>{"in_proj_weight", "in_proj_bias", "out_proj.weight", "out_proj.bias"}));
}

// A dropout too small to drop anything must change nothing, whatever the mask.
void expect_same_mixture(const AttentionMasks& masks) {
  Tensor q = normal_random({2, 3, 8}), k = normal_random({2, 5, 8}), v = normal_random({2, 5, 8});
  std::vector<float> fused = multihead_attention(q, k, v, 2, masks).to_vector<float>();
  std::vector<float> plain = multihead_attention(q, k, v, 2, masks, 1e-12).to_vector<float>();
  for (size_t i = 0; i < fused.size(); ++i) EXPECT_NEAR(fused[i], plain[i], 1e-5) << i;
}

TEST(MultiheadAttention, DropoutAndMasksGoTogether) {
  expect_same_mixture({});
  expect_same_mixture({.causal = true});
  expect_same_mixture({.mask = Tensor::from<float>({0, -1, 2, 0, 1}, {5})});
  expect_same_mixture({.mask = greater(Tensor::from<float>({1, 0, 1, 1, 0}, {5}), 0.5), .causal = true});
}

TEST(MultiheadAttention, ACausalQueryDoesNotSeeWhatComesLater) {
  MultiheadAttention attention({.size = 4, .heads = 2});
  Tensor x = normal_random({1, 3, 4});
  Tensor changed = concat({slice(x, 1, 0, 2), slice(x, 1, 2) + 1.0}, 1);
  Tensor before = attention(x, x, x, AttentionMasks{.causal = true});
  Tensor after = attention(changed, changed, changed, AttentionMasks{.causal = true});
  EXPECT_EQ(slice(before, 1, 0, 2).to_vector<float>(), slice(after, 1, 0, 2).to_vector<float>());
  EXPECT_NE(slice(before, 1, 2).to_vector<float>(), slice(after, 1, 2).to_vector<float>());
}

TEST(MultiheadAttention, HeadsMustShareTheTokenEvenly) {
  Tensor x = normal_random({1, 3, 4});
  EXPECT_THROW(multihead_attention(x, x, x, 3), ShapeError);
}

}  // namespace
}  // namespace bonfire::nn::layers_test
