// Modules of one model on several devices: which are meant, what is computed, and what runs at the same time.
#include "bonfire/parallel/placement.h"

#include <gtest/gtest.h>

#include <set>

#include "bonfire/base/random.h"
#include "tests/parallel/placed.h"
#include "tests/support/expect_error.h"

namespace bonfire::placement_test {
namespace {

using testing::last_training_plan;
using testing::PlacedCase;
using testing::train;
using testing::Trained;
using testing::waits_for;

const Device kFirst{DeviceType::cpu, 0}, kSecond{DeviceType::cpu, 1}, kThird{DeviceType::cpu, 2};

Tensor numbers(const Shape& shape, uint64_t stream) {
  std::vector<float> values(static_cast<size_t>(shape.count()));
  for (size_t i = 0; i < values.size(); ++i) values[i] = normal_at(5, stream, i);
  return Tensor::from<float>(values, shape);
}

Tensor classes(const Shape& shape, int64_t below, uint64_t stream) {
  std::vector<int64_t> values(static_cast<size_t>(shape.count()));
  for (size_t i = 0; i < values.size(); ++i) values[i] = philox(6, stream, i).word[0] % static_cast<uint32_t>(below);
  return Tensor::from<int64_t>(values, shape);
}

std::pair<Tensor, Tensor> image_batch(int step, int64_t channels, int64_t size, int64_t count) {
  return {numbers({4, channels, size, size}, static_cast<uint64_t>(step)),
          classes({4}, count, static_cast<uint64_t>(step))};
}

template <class Model>
std::pair<nn::Module, PlacedCase::Loss> classifier(const Model& model) {
  return {model, [model](const Tensor& x, const Tensor& y) { return cross_entropy(model(x), y); }};
}

// VGG's two parts, in miniature.
class SmallVgg : public nn::Callable<SmallVgg> {
 public:
  SmallVgg() : Callable("SmallVgg") {}
  Tensor forward(const Tensor& x) const { return classifier_(flatten(avgpool_(features_(x)), 1)); }

 private:
  static nn::Conv2d conv(int64_t in, int64_t out) {
    return nn::Conv2d({.in = in, .out = out, .kernel = {3}, .padding = {1}});
  }
  nn::Sequential features_ = register_module(
      "features", nn::Sequential({conv(3, 8), nn::ReLU(), nn::MaxPool2d({.kernel = {2}, .stride = {2}}), conv(8, 16),
                                  nn::ReLU(), nn::MaxPool2d({.kernel = {2}, .stride = {2}})}));
  nn::AdaptiveAvgPool2d avgpool_ = register_module("avgpool", nn::AdaptiveAvgPool2d({2, 2}));
  nn::Sequential classifier_ =
      register_module("classifier", nn::Sequential({nn::Linear({.in = 64, .out = 32}), nn::ReLU(), nn::Dropout(0.5),
                                                    nn::Linear({.in = 32, .out = 10})}));
};

PlacedCase vgg() {
  return {.name = "vgg",
          .make = [] { return classifier(SmallVgg()); },
          .batch = [](int step) { return image_batch(step, 3, 12, 10); },
          .placements = {{{"features", "cpu:0"}, {"classifier", "cpu:1"}},
                         {{"features", "cpu:1"}, {"features.3", "cpu:2"}, {"avgpool", "cpu:0"}},
                         {{"*", "cpu:2"}, {"classifier.3", "cpu:1"}}}};
}

PlacedCase resnet() {
  return {.name = "resnet",
          .make =
              [] {
                return classifier(
                    models::ResNet({.blocks = {1, 1, 1, 1}, .small_images = true}, {.classes = 10, .in_channels = 3}));
              },
          .batch = [](int step) { return image_batch(step, 3, 8, 10); },
          .placements = {{{"layer3", "cpu:1"}, {"layer4", "cpu:1"}, {"fc", "cpu:1"}},
                         {{"layer2.0.conv2", "cpu:1"}, {"layer3.0.downsample", "cpu:1"}, {"layer4.0.bn1", "cpu:2"}}}};
}

PlacedCase bert() {
  return {.name = "bert",
          .make = []() -> std::pair<nn::Module, PlacedCase::Loss> {
            const models::BertForMaskedLM model(
                {.vocabulary = 50, .hidden = 32, .layers = 2, .heads = 2, .intermediate = 64, .positions = 16});
            return {model, [model](const Tensor& x, const Tensor& y) {
                      return cross_entropy(reshape(model(x), {-1, 50}), reshape(y, {-1}));
                    }};
          },
          .batch =
              [](int step) {
                const Tensor tokens = classes({3, 12}, 50, static_cast<uint64_t>(step));
                return std::pair(tokens, tokens);
              },
          // The decoder's weight is that of the embedding, which is on the first device.
          .placements = {{{"bert.encoder.layer.1", "cpu:1"}, {"cls", "cpu:1"}},
                         {{"*query", "cpu:1"}, {"*.LayerNorm", "cpu:2"}}}};
}

PlacedCase lstm() {
  return {.name = "lstm",
          .make =
              [] {
                return classifier(models::lstm_classifier(
                    {.vocabulary = 30, .embedding = 16, .hidden = 16, .layers = 2, .classes = 5}));
              },
          .batch =
              [](int step) {
                return std::pair(classes({4, 9}, 30, static_cast<uint64_t>(step)),
                                 classes({4}, 5, static_cast<uint64_t>(step)));
              },
          .placements = {{{"lstm", "cpu:1"}}, {{"embedding", "cpu:1"}, {"fc", "cpu:2"}}}};
}

PlacedCase two_headed() {
  return {.name = "two_headed",
          .make = []() -> std::pair<nn::Module, PlacedCase::Loss> {
            const models::TwoHeaded model({.classes = 10, .in_channels = 3});
            return {model, [model](const Tensor& x, const Tensor& y) {
                      const models::TwoHeadedResult result = model(x);
                      return cross_entropy(result.cls, y) + mean(square(result.box - 0.5));
                    }};
          },
          .batch = [](int step) { return image_batch(step, 3, 16, 10); },
          .placements = {{{"cls", "cpu:0"}, {"box", "cpu:1"}}, {{"cls", "cpu:1"}, {"box", "cpu:2"}}}};
}

// Two towers that exchange what they have computed, as AlexNet's do.
class Towers : public nn::Callable<Towers> {
 public:
  Towers() : Callable("Towers") {}
  Tensor forward(const Tensor& x) const {
    Tensor a = relu(one1_(x)), b = relu(two1_(x));
    Tensor c = relu(one2_(concat({a, b}, 1))), d = relu(two2_(concat({b, a}, 1)));
    return out_(concat({flatten(c, 1), flatten(d, 1)}, 1));
  }

 private:
  static nn::Conv2d conv(int64_t in, int64_t out) {
    return nn::Conv2d({.in = in, .out = out, .kernel = {3}, .stride = {2}, .padding = {1}});
  }
  nn::Conv2d one1_ = register_module("one1", conv(3, 6)), two1_ = register_module("two1", conv(3, 6)),
             one2_ = register_module("one2", conv(12, 8)), two2_ = register_module("two2", conv(12, 8));
  nn::Linear out_ = register_module("out", nn::Linear({.in = 2 * 8 * 4 * 4, .out = 10}));
};

PlacedCase towers() {
  return {.name = "towers",
          .make = [] { return classifier(Towers()); },
          .batch = [](int step) { return image_batch(step, 3, 16, 10); },
          .placements = {{{"one*", "cpu:0"}, {"two*", "cpu:1"}}, {{"one*", "cpu:1"}, {"two*", "cpu:2"}}}};
}

std::vector<PlacedCase> cases() { return {vgg(), resnet(), bert(), lstm(), two_headed(), towers()}; }

void expect_same(const Trained& placed, const Trained& whole) {
  EXPECT_EQ(placed.losses, whole.losses);
  ASSERT_EQ(placed.values.size(), whole.values.size());
  EXPECT_TRUE(placed.values == whole.values);
}

// Where layers that are fused on one device, or choose their layouts together, are parted, sums are rounded otherwise.
void expect_alike(const Trained& placed, const Trained& whole) {
  ASSERT_EQ(placed.losses.size(), whole.losses.size());
  for (size_t i = 0; i < whole.losses.size(); ++i) EXPECT_NEAR(placed.losses[i], whole.losses[i], 1e-5);
}

TEST(Placement, OfWholePartsTrainsToTheSameBitsAsOneDevice) {
  for (const PlacedCase& one : cases()) {
    SCOPED_TRACE(one.name + ": " + to_string(one.placements[0]));
    expect_same(train(one, one.placements[0]), train(one, {}));
  }
}

TEST(Placement, OfSingleLayersTrainsAsOneDevice) {
  for (const PlacedCase& one : cases()) {
    const Trained whole = train(one, {});
    for (size_t i = 1; i < one.placements.size(); ++i) {
      SCOPED_TRACE(one.name + ": " + to_string(one.placements[i]));
      expect_alike(train(one, one.placements[i]), whole);
    }
  }
}

TEST(Placement, TrainsToTheSameBitsWithoutCompile) {
  for (const PlacedCase& one : {vgg(), bert(), two_headed()}) {
    SCOPED_TRACE(one.name);
    expect_same(train(one, one.placements[0], {.compiled = false}), train(one, {}, {.compiled = false}));
  }
}

TEST(Placement, ClipsByTheNormOverAllDevices) {
  for (const PlacedCase& one : {vgg(), two_headed()}) {
    SCOPED_TRACE(one.name);
    const Trained whole = train(one, {}, {.clip = 0.1}), placed = train(one, one.placements[1], {.clip = 0.1});
    ASSERT_NE(whole.losses, train(one, {}).losses) << "nothing was clipped";
    for (size_t i = 0; i < whole.losses.size(); ++i) EXPECT_NEAR(placed.losses[i], whole.losses[i], 1e-6);
  }
}

TEST(Placement, MixedPrecisionIsThatOfOneDevice) {
  StepOptions& options = StepContext::current().options;
  options.use_amp = true;
  expect_same(train(vgg(), vgg().placements[0]), train(vgg(), {}));
  options.use_amp = false;
}

// --- programs --------------------------------------------------------------------------------------------------------

// The programs in which nodes of a module and phase are.
std::set<int> programs_of(const runtime::Plan& plan, const std::string& path) {
  std::set<int> found;
  for (const runtime::PlanNote& note : plan.notes)
    if (note.program >= 0 && note.node != "copy_to_device" && (note.path == path || note.path.starts_with(path + ".")))
      found.insert(note.program);
  return found;
}

int copies_in(const runtime::Plan& plan, Device to) {
  int count = 0;
  for (const runtime::PlanNote& note : plan.notes)
    count += note.node == "copy_to_device" && note.result.device == to ? 1 : 0;
  return count;
}

class Heads : public nn::Callable<Heads> {
 public:
  Heads() : Callable("Heads") {}
  Tensor forward(const Tensor& x, const Tensor& y) const {
    const Tensor features = tanh(body_(x));
    return cross_entropy(left_(features), y) + cross_entropy(right_(features), y) + cross_entropy(more_(features), y);
  }

 private:
  static nn::Sequential head() {
    return nn::Sequential({nn::Linear({.in = 8, .out = 16}), nn::ReLU(), nn::Linear({.in = 16, .out = 10})});
  }
  nn::Linear body_ = register_module("body", nn::Linear({.in = 6, .out = 8}));
  nn::Sequential left_ = register_module("left", head()), right_ = register_module("right", head()),
                 more_ = register_module("more", head());
};

PlacedCase heads() {
  return {.name = "heads",
          .make = []() -> std::pair<nn::Module, PlacedCase::Loss> {
            const Heads model;
            return {model, [model](const Tensor& x, const Tensor& y) { return model(x, y); }};
          },
          .batch =
              [](int step) {
                return std::pair(numbers({5, 6}, static_cast<uint64_t>(step)),
                                 classes({5}, 10, static_cast<uint64_t>(step)));
              },
          .placements = {}};
}

TEST(PlacedPrograms, BranchesThatDoNotDependOnEachOtherDoNotWait) {
  train(heads(), {{"right", "cpu:1"}, {"more", "cpu:1"}});
  const std::shared_ptr<runtime::Plan> plan = last_training_plan();
  // The head beside the body is as free of it as the others are: forward and backward.
  const std::set<int> left = programs_of(*plan, "left"), right = programs_of(*plan, "right");
  ASSERT_FALSE(left.empty());
  ASSERT_FALSE(right.empty());
  for (int a : left)
    for (int b : right) {
      EXPECT_FALSE(waits_for(*plan, a, b)) << runtime::print_plan(*plan);
      EXPECT_FALSE(waits_for(*plan, b, a)) << runtime::print_plan(*plan);
    }
  EXPECT_LE(plan->programs.size(), 5U) << runtime::print_plan(*plan);
}

TEST(PlacedPrograms, AValueThatManyReadOnAnotherDeviceIsCopiedOnce) {
  train(heads(), {{"right", "cpu:1"}, {"more", "cpu:1"}});
  const std::shared_ptr<runtime::Plan> plan = last_training_plan();
  EXPECT_EQ(copies_in(*plan, kSecond), 2) << print_plan(*plan);  // features, labels
  EXPECT_EQ(copies_in(*plan, kFirst), 3) << print_plan(*plan);   // two losses, and one gradient of both heads
}

TEST(PlacedPrograms, AModelOnOneDeviceIsOneProgram) {
  train(heads(), {{"*", "cpu:1"}}, {.device = kSecond});
  EXPECT_EQ(last_training_plan()->programs.size(), 1U);
}

TEST(PlacedPrograms, AChainHasAProgramForEachStretchOnADevice) {
  train(vgg(), {{"classifier", "cpu:1"}});
  const std::shared_ptr<runtime::Plan> plan = last_training_plan();
  EXPECT_LE(plan->programs.size(), 5U) << print_plan(*plan);
  // The input's gradient goes back before the classifier's weights are updated.
  EXPECT_EQ(plan->programs[0].program->device, kFirst);
  EXPECT_TRUE(plan->programs[0].after.empty());
}

TEST(PlacedPrograms, MemoryOfCrossingsIsUsedAgain) {
  auto crossing_bytes = [](int layers) {
    Tensor x = numbers({64, 64}, 1);
    for (int i = 0; i < layers; ++i) x = tanh(tanh(x).to(i % 2 == 0 ? kSecond : kFirst));
    x.to_vector<float>();
    const std::shared_ptr<runtime::Plan> plan = runtime::cached_plans()[0];
    size_t bytes = 0;
    for (const TensorSpec& crossing : plan->crossings) bytes += crossing.bytes();
    return bytes;
  };
  EXPECT_GT(crossing_bytes(4), 0U);
  EXPECT_EQ(crossing_bytes(12), crossing_bytes(4));
}

// --- which modules are meant ---------------------------------------------------------------------------------------

std::map<std::string, int> indices(const nn::Module& model) {
  std::map<std::string, int> found;
  for (const auto& [name, variable] : model.state_dict()) found[name] = variable.device().index;
  return found;
}

TEST(PlacementNames, TheLongestMatchCounts) {
  const SmallVgg model;
  place(model, {{"*", "cpu:1"}, {"features", "cpu:2"}, {"features.3", "cpu:3"}});
  std::map<std::string, int> found = indices(model);
  EXPECT_EQ(found["features.0.weight"], 2);
  EXPECT_EQ(found["features.3.bias"], 3);
  EXPECT_EQ(found["classifier.0.weight"], 1);
  place(model, {{"features", "cpu:0"}, {"*.3", "cpu:2"}});  // shorter than what the whole is covered by
  found = indices(model);
  EXPECT_EQ(found["features.3.bias"], 0);
  EXPECT_EQ(found["classifier.3.bias"], 2);
  EXPECT_EQ(found["classifier.0.bias"], 1);  // nobody speaks of it
}

TEST(PlacementNames, WhatMatchesNothingIsAnErrorWithWhatThereIs) {
  const SmallVgg model;
  EXPECT_ERROR(place(model, {{"feature", "cpu:1"}}), ConfigError, "'feature' matches no module");
  EXPECT_ERROR(place(model, {{"feature", "cpu:1"}}), ConfigError, "the nearest is 'features'");
  EXPECT_ERROR(place(model, {{"feature", "cpu:1"}}), ConfigError, "avgpool, classifier, classifier.0");
  EXPECT_ERROR(place(model, {{"features.0.weight", "cpu:1"}}), ConfigError, "matches no module");
  EXPECT_ERROR(place(model, {{"classifier", "cpu:1"}, {"nothing*", "cpu:1"}}), ConfigError, "'nothing*'");
  EXPECT_EQ(indices(model)["classifier.0.weight"], 0);  // nothing was moved
}

TEST(PlacementNames, ADeviceThatIsNotThereIsAnErrorWithThoseThatAre) {
  const SmallVgg model;
  EXPECT_ERROR(place(model, {{"features", "cuda:7"}}), DeviceError, "cpu:0");
  EXPECT_ERROR(place(model, {{"features", "tpu"}}), ConfigError, "tpu");
}

TEST(PlacementNames, TwoThatAreEquallyLongAreAnError) {
  const SmallVgg model;
  EXPECT_ERROR(place(model, {{"feat*", "cpu:1"}, {"*ures", "cpu:2"}}), ConfigError, "which is as long");
}

// --- modules ---------------------------------------------------------------------------------------------------------

TEST(PlacedModules, TakeWhatTheyAreGivenToTheirDevice) {
  const nn::Linear layer({.in = 3, .out = 2});
  EXPECT_EQ(layer.device(), std::nullopt);
  layer.to("cpu:1");
  EXPECT_EQ(layer.device(), kSecond);
  EXPECT_EQ(layer(numbers({4, 3}, 1)).device(), kSecond);
  const nn::Sequential pair({nn::Linear({.in = 3, .out = 2}), nn::ReLU()});
  pair.to(kThird);
  EXPECT_EQ(pair.submodule("1").device(), std::nullopt);  // it computes where its input is
  pair.submodule("1").to(kSecond);
  EXPECT_EQ(pair(numbers({4, 3}, 1)).device(), kSecond);
  EXPECT_ERROR(pair.submodule("2"), ConfigError, "it holds 0, 1");
}

TEST(PlacedModules, ACompiledStepFollowsAModuleThatMoves) {
  const nn::Sequential model({nn::Linear({.in = 3, .out = 3}), nn::Tanh()});
  auto step = compile([&](const Tensor& x) { return model(x); });
  const Tensor x = numbers({2, 3}, 1);
  const std::vector<float> before = step(x).to_vector<float>();
  for (const char* device : {"cpu:1", "cpu:2", "cpu:0"}) {
    model.submodule("1").to(device);
    EXPECT_EQ(to_string(step(x).device()), device);
    EXPECT_EQ(step(x).to_vector<float>(), before);
  }
}

TEST(PlacedModules, OperandsOutsideOfModulesMeetWhereSomethingWasComputed) {
  const Tensor computed = tanh(numbers({3}, 1).to(kSecond)), label = numbers({3}, 2);
  EXPECT_EQ((label * computed).device(), kSecond);
  EXPECT_EQ((computed + tanh(label)).device(), kSecond);
  EXPECT_ERROR(numbers({3}, 1) + Tensor::from<float>({1, 2, 3}, {3}, kSecond), ShapeError, "to(device)");
}

TEST(PlacedModules, DataParallelInOneProcessRefusesThem) {
  const SmallVgg model;
  model.submodule("classifier").to(kSecond);
  EXPECT_ERROR(DataParallel(model, std::vector<Device>{kFirst, kSecond}), ConfigError, "leave the placement out");
}

}  // namespace
}  // namespace bonfire::placement_test
