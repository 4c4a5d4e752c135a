// Models inside compile(): traced once, the same bits as the plain loop.

#include <gtest/gtest.h>

#include "bonfire/graph/graph.h"
#include "bonfire/models/make.h"
#include "bonfire/nn/activation.h"
#include "bonfire/nn/init.h"
#include "bonfire/nn/linear.h"
#include "bonfire/nn/sequential.h"
#include "bonfire/ops/loss.h"
#include "bonfire/ops/random.h"
#include "bonfire/optim/optimizers.h"
#include "bonfire/runtime/compile.h"

namespace bonfire::models::compiled_test {
namespace {

struct Trained {
  std::vector<float> losses;
  std::vector<std::vector<std::byte>> state;  // parameters and buffers at the end
};

Model make_model(const std::string& name) {
  if (name != "dropout") return make(name, {.classes = 4, .in_channels = 1});
  nn::Sequential net({nn::Flatten(), nn::Linear({.in = 28 * 28, .out = 16}), nn::ReLU(), nn::Dropout(0.5),
                      nn::Linear({.in = 16, .out = 4})});
  return Model(net, [net](const Tensor& x) { return std::vector<Tensor>{net(x)}; });
}

Trained train(const std::string& name, bool compiled) {
  manual_seed(3);
  Model model = make_model(name);
  optim::Momentum optimizer(model.parameters(), {.lr = 0.05});
  auto body = [&](const Tensor& image, const Tensor& label) {
    Tensor loss = cross_entropy(model(image), label);
    loss.backward();
    optimizer.step();
    optimizer.clear_grad();
    return loss;
  };
  auto step = compile(body);
  Tensor label = Tensor::from<int64_t>({0, 1, 2, 3}, {4});
  Trained result;
  for (int i = 0; i < 4; ++i) {
    std::vector<float> pixels(4 * 28 * 28);
    for (size_t k = 0; k < pixels.size(); ++k) pixels[k] = static_cast<float>((k * 7 + i) % 13) / 13;
    Tensor image = Tensor::from<float>(pixels, {4, 1, 28, 28});
    result.losses.push_back((compiled ? step(image, label) : body(image, label)).item<float>());
  }
  EXPECT_EQ(step.traced(), compiled ? 1 : 0);
  for (const auto& [path, variable] : model.state_dict()) result.state.push_back(variable.save());
  return result;
}

class CompiledModel : public ::testing::TestWithParam<const char*> {};

TEST_P(CompiledModel, TrainsToTheSameBits) {
  Trained plain = train(GetParam(), false), compiled = train(GetParam(), true);
  EXPECT_EQ(plain.losses, compiled.losses);
  EXPECT_EQ(plain.state, compiled.state);
  EXPECT_NE(plain.losses.front(), plain.losses.back());
}

// The second has batch norm, whose buffers the step assigns; the third draws random numbers.
INSTANTIATE_TEST_SUITE_P(Models, CompiledModel, ::testing::Values("mnist_cnn", "two_headed", "dropout"),
                         [](const auto& info) { return std::string(info.param); });

TEST(Models, NodesCarryThePathOfTheirModule) {
  nn::init::Skip skip;
  Model model = make("resnet18_small", {.classes = 10, .in_channels = 1});
  Tensor loss = cross_entropy(model(uniform_random({2, 1, 28, 28})), Tensor::from<int64_t>({0, 1}, {2}));
  loss.backward();
  const Value live[] = {loss.value()};
  std::string text = print_graph(*Graph::from_trace(Trace::current(), live));
  for (const char* path : {"layer2.0.conv1", "layer3.0.downsample.1", "layer4.1.bn2", "fc"})
    EXPECT_PRED_FORMAT2(::testing::IsSubstring, path, text);
}

}  // namespace
}  // namespace bonfire::models::compiled_test
