#include "bonfire/models/make.h"

#include <gtest/gtest.h>

#include <map>

#include "bonfire/base/error.h"
#include "bonfire/models/mnist.h"
#include "bonfire/nn/init.h"
#include "bonfire/ops/creation.h"
#include "bonfire/ops/random.h"

namespace bonfire::models::make_test {
namespace {

int64_t count_of(const nn::Module& model) {
  int64_t count = 0;
  for (const Parameter& parameter : model.parameters()) count += parameter.shape().count();
  return count;
}

TEST(Models, HaveAsManyParametersAsTheirOriginals) {
  const std::map<std::string, int64_t> expected{
      {"alexnet", 61'100'840},   {"vgg11", 132'863'336},     {"vgg11_bn", 132'868'840}, {"vgg13", 133'047'848},
      {"vgg13_bn", 133'053'736}, {"vgg16", 138'357'544},     {"vgg16_bn", 138'365'992}, {"vgg19", 143'667'240},
      {"vgg19_bn", 143'678'248}, {"resnet18", 11'689'512},   {"resnet34", 21'797'672},  {"resnet50", 25'557'032},
      {"resnet101", 44'549'160}, {"bert_base", 109'514'298}, {"gpt2", 124'439'808},     {"mnist_cnn", 13'750},
  };
  nn::init::Skip skip;  // counts need no numbers
  for (const auto& [name, count] : expected) EXPECT_EQ(count_of(make(name)), count) << name;
}

TEST(Models, EveryNameMakesAModelThatRuns) {
  for (const std::string& name : names()) {
    if (name.starts_with("vgg1") && name != "vgg11") continue;  // the same code as vgg11, and large
    if (name == "bert_base" || name == "resnet101") continue;
    SCOPED_TRACE(name);
    nn::init::Skip skip;
    bool reads_text = name.starts_with("lstm") || name.starts_with("bert") || name == "gpt2";
    Model model = make(name, {.classes = 7, .in_channels = 1, .vocabulary = 50, .layers = 2});
    model.eval();
    NoGrad no_grad;
    int64_t side = name == "alexnet" ? 64 : name == "vgg11" || name == "two_headed" ? 32 : 28;
    Tensor input = reads_text ? ones({2, 6}, DType::i64) : uniform_random({2, 1, side, side});
    Tensor logits = model(input);
    Shape expected = reads_text && !name.starts_with("lstm") ? Shape{2, 6, 50} : Shape{2, 7};
    EXPECT_EQ(logits.shape(), expected);
    logits.to_vector<float>();
    EXPECT_EQ(model.outputs(input).size(), name == "two_headed" ? 2U : 1U);
  }
}

TEST(Models, AnyModuleIsAModel) {
  class Pair : public nn::Callable<Pair> {
   public:
    Pair() : Callable("Pair") {}
    std::vector<Tensor> forward(const Tensor& x) const { return {x, x}; }
  };
  EXPECT_EQ(Model(Pair()).outputs(ones({2})).size(), 2U);
  const Model plain = mlp();
  EXPECT_EQ(plain.parameters().size(), mlp().parameters().size());
  EXPECT_EQ(plain.outputs(ones({1, 1, 28, 28}))[0].shape(), (Shape{1, 10}));
  EXPECT_EQ(task_of("lenet"), "image_classification");
  EXPECT_EQ(task_of("two_headed"), "boxes");
}

TEST(Models, ANameThatIsNotThereGetsASuggestion) {
  try {
    make("resnet81");
    FAIL() << "resnet81 was made";
  } catch (const ConfigError& error) {
    EXPECT_STREQ(error.what(), "[models] there is no model called 'resnet81'; did you mean 'resnet18'?");
  }
}

}  // namespace
}  // namespace bonfire::models::make_test
