#include "bonfire/nn/module.h"

#include <gtest/gtest.h>

#include "bonfire/base/error.h"
#include "bonfire/graph/graph.h"
#include "bonfire/nn/activation.h"
#include "bonfire/nn/linear.h"
#include "bonfire/nn/module_list.h"
#include "bonfire/nn/norm.h"
#include "bonfire/nn/sequential.h"
#include "bonfire/ops/elementwise.h"
#include "bonfire/ops/reduce.h"
#include "tests/support/expect_error.h"

namespace bonfire::nn::module_test {
namespace {

using Names = std::vector<std::string>;

template <class Named>
Names names_of(const Named& named) {
  Names names;
  for (const auto& [name, variable] : named) names.push_back(name);
  return names;
}

class Block : public Callable<Block> {
 public:
  explicit Block(int64_t size)
      : Callable("Block"),
        fc_(register_module("fc", Linear({.in = size, .out = size}))),
        bn_(register_module("bn", BatchNorm1d({.channels = size}))) {}
  Tensor forward(const Tensor& x) const { return relu(bn_(fc_(x))) + x; }

 private:
  Linear fc_;
  BatchNorm1d bn_;
};

class Net : public Callable<Net> {
 public:
  Net() : Callable("Net") {}
  Tensor forward(const Tensor& x) const { return out(blocks(x)); }

  Sequential blocks = register_module("blocks", Sequential({Block(3), Block(3)}));
  Linear out = register_module("out", Linear({.in = 3, .out = 2, .bias = false}));
};

TEST(Module, ParametersHaveTheirPathsAsNames) {
  Net net;
  EXPECT_EQ(names_of(net.named_parameters()),
            (Names{"blocks.0.fc.weight", "blocks.0.fc.bias", "blocks.0.bn.weight", "blocks.0.bn.bias",
                   "blocks.1.fc.weight", "blocks.1.fc.bias", "blocks.1.bn.weight", "blocks.1.bn.bias", "out.weight"}));
  EXPECT_EQ(net.parameters().size(), 9U);
  EXPECT_EQ(net.out.weight.name(), "out.weight");
  EXPECT_EQ(net.named_parameters()[4].second.name(), "blocks.1.fc.weight");
}

TEST(Module, BuffersStandAfterTheParametersOfTheirModule) {
  Net net;
  EXPECT_EQ(names_of(net.named_buffers()),
            (Names{"blocks.0.bn.running_mean", "blocks.0.bn.running_var", "blocks.0.bn.num_batches_tracked",
                   "blocks.1.bn.running_mean", "blocks.1.bn.running_var", "blocks.1.bn.num_batches_tracked"}));
  Names names = names_of(net.state_dict());
  names.resize(7);
  EXPECT_EQ(names, (Names{"blocks.0.fc.weight", "blocks.0.fc.bias", "blocks.0.bn.weight", "blocks.0.bn.bias",
                          "blocks.0.bn.running_mean", "blocks.0.bn.running_var", "blocks.0.bn.num_batches_tracked"}));
}

TEST(Module, CopiesShareWhatTheyHold) {
  Net net;
  Net copy = net;
  copy.eval();
  EXPECT_FALSE(net.training());
  EXPECT_EQ(net.out.weight, copy.out.weight);
  EXPECT_EQ(net.out.weight, net.state_dict().back().variable);
}

TEST(Module, TrainAndEvalReachEveryModuleInside) {
  Net net;
  Tensor x = Tensor::from<float>({1, 2, 3, -4, 5, 6}, {2, 3});
  net(x).to_vector<float>();
  Variable tracked = net.named_buffers()[2].variable;
  EXPECT_EQ(tracked.value().item<int64_t>(), 1);
  net.eval();
  std::vector<float> first = net(x).to_vector<float>();
  EXPECT_EQ(tracked.value().item<int64_t>(), 1);
  EXPECT_EQ(net(x).to_vector<float>(), first);
  net.train();
  net(x).to_vector<float>();
  EXPECT_EQ(tracked.value().item<int64_t>(), 2);
}

TEST(Module, FrozenParametersGetNoGradient) {
  Net net;
  net.blocks.set_requires_grad(false);
  Tensor x = Tensor::from<float>({1, 2, 3, -4, 5, 6}, {2, 3});
  sum(net(x)).backward();
  EXPECT_TRUE(net.out.weight.grad().defined());
  for (const Parameter& parameter : net.blocks.parameters()) EXPECT_FALSE(parameter.grad().defined());
}

TEST(Module, NodesCarryThePathOfTheirModule) {
  Net net;
  Tensor y = net(Tensor::from<float>({1, 2, 3, -4, 5, 6}, {2, 3}));
  const Value live[] = {y.value()};
  std::string text = print_graph(*Graph::from_trace(Trace::current(), live));
  EXPECT_PRED_FORMAT2(::testing::IsSubstring, "blocks.1.fc", text);
  EXPECT_PRED_FORMAT2(::testing::IsSubstring, "blocks.0.bn", text);
  EXPECT_PRED_FORMAT2(::testing::IsSubstring, "out", text);
}

TEST(Module, PrintsAsPyTorchsTree) {
  EXPECT_EQ(to_string(Net()),
            "Net(\n"
            "  (blocks): Sequential(\n"
            "    (0): Block(\n"
            "      (fc): Linear(in_features=3, out_features=3, bias=True)\n"
            "      (bn): BatchNorm1d(3, eps=1e-05, momentum=0.1, affine=True, track_running_stats=True)\n"
            "    )\n"
            "    (1): Block(\n"
            "      (fc): Linear(in_features=3, out_features=3, bias=True)\n"
            "      (bn): BatchNorm1d(3, eps=1e-05, momentum=0.1, affine=True, track_running_stats=True)\n"
            "    )\n"
            "  )\n"
            "  (out): Linear(in_features=3, out_features=2, bias=False)\n"
            ")");
}

// An encoder whose weight the decoder shares.
class Tied : public Callable<Tied> {
 public:
  Tied() : Callable("Tied") {}
  Tensor forward(const Tensor& x) const { return decoder(relu(encoder(x))); }

  Linear encoder = register_module("encoder", Linear({.in = 3, .out = 3}));
  Linear decoder = register_module("decoder", Linear(encoder.weight, {}));
};

TEST(Module, TiedWeightsCountOnceAndAddUpTheirGradients) {
  Tied tied;
  EXPECT_EQ(names_of(tied.named_parameters()), (Names{"encoder.weight", "encoder.bias"}));
  EXPECT_EQ(names_of(tied.state_dict()), (Names{"encoder.weight", "encoder.bias", "decoder.weight"}));
  EXPECT_EQ(tied.decoder.weight.name(), "encoder.weight");

  Tensor x = Tensor::from<float>({1, 2, 3}, {1, 3});
  sum(tied(x)).backward();
  std::vector<float> both = tied.encoder.weight.grad().to_vector<float>();

  // The same net with two weights of equal value: the tied gradient is the sum of theirs.
  Linear encoder({.in = 3, .out = 3}), decoder({.in = 3, .out = 3, .bias = false});
  encoder.load_state_dict(tied.encoder.state_dict());
  decoder.weight.load(tied.encoder.weight.save());
  sum(decoder(relu(encoder(x)))).backward();
  std::vector<float> first = encoder.weight.grad().to_vector<float>();
  std::vector<float> second = decoder.weight.grad().to_vector<float>();
  for (size_t i = 0; i < both.size(); ++i) EXPECT_FLOAT_EQ(both[i], first[i] + second[i]);
}

class BadNames : public Module {
 public:
  explicit BadNames(const std::string& second) : Module("BadNames") {
    register_module("fc", Linear({.in = 1, .out = 1}));
    register_buffer(second, Variable({{1}, DType::f32, {}}));
  }
};

TEST(Module, NamesThatCannotBeToldApartAreErrors) {
  EXPECT_NO_THROW(BadNames("buffer"));
  EXPECT_THROW(BadNames("fc"), ConfigError);
  EXPECT_THROW(BadNames(""), ConfigError);
  EXPECT_THROW(BadNames("fc.weight"), ConfigError);
}

TEST(Module, MovesToAnotherDevice) {
  Net net;
  Tensor x = Tensor::from<float>({1, 2, 3, -4, 5, 6}, {2, 3});
  net.eval();
  std::vector<float> here = net(x).to_vector<float>();
  Device there = parse_device("cpu:1");
  net.to(there);
  for (const auto& [name, variable] : net.state_dict()) EXPECT_EQ(variable.device(), there) << name;
  EXPECT_EQ(net(x.to(there)).to_vector<float>(), here);
}

TEST(ModuleList, NamesItsModulesByNumber) {
  ModuleList<Linear> list;
  ModuleList<Linear> copy = list;
  for (int i = 0; i < 2; ++i) list.push_back(Linear({.in = 1, .out = 1, .bias = false}));
  EXPECT_EQ(copy.size(), 2U);
  EXPECT_EQ(copy[1].name(), "1");
  EXPECT_EQ(names_of(list.named_parameters()), (Names{"0.weight", "1.weight"}));
  EXPECT_ERROR(list[2], ShapeError, "index 2 is out of range for ModuleList, which holds 2 modules");
}

TEST(Sequential, RunsItsModulesInOrder) {
  Linear first({.in = 1, .out = 1, .weight_init = init::ones(), .bias_init = init::ones()});
  Sequential net({first, ReLU(), Linear({.in = 1, .out = 1, .bias = false, .weight_init = init::uniform(2, 2)})});
  EXPECT_EQ(net(Tensor::from<float>({-3, 4}, {2, 1})).to_vector<float>(), (std::vector<float>{0, 10}));
  EXPECT_EQ(net.size(), 3U);
  EXPECT_EQ(net[2].name(), "2");
  EXPECT_ERROR(net[9], ShapeError, "index 9 is out of range for Sequential, which holds 3 modules");
  EXPECT_ERROR(net[static_cast<size_t>(-1)], ShapeError, "index -1 is out of range");
  EXPECT_ERROR(Sequential()[0], ShapeError, "which holds 0 modules");
}

}  // namespace
}  // namespace bonfire::nn::module_test
