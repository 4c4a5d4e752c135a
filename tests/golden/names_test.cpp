// Bonfire's models have the parameters and buffers of their PyTorch originals, in the same order.
#include <gtest/gtest.h>

#include "bonfire/models/make.h"
#include "bonfire/nn/init.h"
#include "tests/golden/golden.h"

namespace bonfire::golden::names_test {
namespace {

using Named = std::vector<std::pair<std::string, std::vector<int64_t>>>;  // name and shape

class GoldenNames : public ::testing::TestWithParam<const char*> {};

TEST_P(GoldenNames, AreThoseOfTheModel) {
  Model expected = load_model(GetParam());
  nn::init::Skip skip;  // names need no numbers
  models::ModelOptions options{
      .classes = expected.classes, .in_channels = expected.input_shape[1], .vocabulary = expected.vocabulary};
  if (expected.layers > 0)
    options.layers = expected.layers, options.heads = expected.heads, options.width = expected.width,
    options.context = expected.context;
  models::Model model = models::make(expected.name, options);
  Named expected_parameters, parameters;
  for (const Parameter& parameter : expected.parameters)
    expected_parameters.emplace_back(parameter.name, parameter.shape);
  for (const auto& [name, parameter] : model.named_parameters()) {
    const Shape& shape = parameter.shape();
    parameters.emplace_back(name, std::vector<int64_t>(shape.begin(), shape.end()));
  }
  EXPECT_EQ(parameters, expected_parameters);

  std::vector<std::string> expected_buffers, buffers;
  for (const Buffer& buffer : expected.buffers) expected_buffers.push_back(buffer.name);
  for (const nn::NamedVariable& buffer : model.named_buffers())
    if (!buffer.name.ends_with("num_batches_tracked")) buffers.push_back(buffer.name);
  EXPECT_EQ(buffers, expected_buffers);
}

INSTANTIATE_TEST_SUITE_P(Models, GoldenNames,
                         ::testing::Values("mnist_cnn", "lenet", "mlp", "resnet18_small", "vgg11_bn", "alexnet",
                                           "two_headed", "lstm_classifier", "bert_mini", "gpt2"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace bonfire::golden::names_test
