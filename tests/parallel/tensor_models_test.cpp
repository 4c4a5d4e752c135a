// Models that ranks along the tensor axis share, by the plans that the models bring: they train as on one device, and
// each rank holds its part alone.
#include <cmath>

#include "bonfire/base/glob.h"
#include "bonfire/bonfire.h"
#include "bonfire/parallel/tensor_split.h"
#include "tests/parallel/on_mesh.h"
#include "tests/support/pinned_kernels.h"

namespace bonfire::tensor_models_test {
namespace {

using Weights = std::map<std::string, std::vector<double>>;

struct Course {
  std::vector<double> losses;
  Weights weights;  // and buffers, whole
};

struct Trained {
  models::Model model;
  std::function<Tensor(const std::vector<Tensor>& outputs, int step, Device device)> loss;
  std::function<Tensor(int step, Device device)> input;
};
using Make = std::function<Trained()>;

struct Settings {
  double clip = 0.5;
  bool average = false;
  int steps = 10;
  // Adam divides gradients by their own size: where one is 0 but for rounding (the bias of a convolution before a batch
  // norm) it makes whole steps of that.
  bool adam = true;
  bool mixed_precision = false;
  std::vector<nn::Split> split = {};  // empty: as the model's plan says
};

Tensor picture(const Shape& shape, int step, Device device) {
  std::vector<float> values(static_cast<size_t>(shape.count()));
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = std::sin(0.37F * static_cast<float>(i * static_cast<size_t>(step + 3) % 1009));
  return Tensor::from<float>(values, shape, device);
}

Tensor labels(int64_t count, int64_t classes, int step, Device device) {
  std::vector<int64_t> values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = static_cast<int64_t>(i * 5 + static_cast<size_t>(step)) % classes;
  return Tensor::from<int64_t>(values, {count}, device);
}

void require_own_part_alone(const nn::Module& model, const optim::Optimizer& optimizer,
                            const std::vector<nn::Split>& split) {
  const int parts = fleet::mesh().size(Axis::tensor);
  const fleet::TensorSplits splits = fleet::tensor_splits(model, split, parts);
  ASSERT_FALSE(splits.shared.empty());
  for (const fleet::SharedOut& one : splits.shared) {
    const int64_t count = one.variable.shape().count() / parts;
    EXPECT_EQ(one.variable.slice(), one.slice(fleet::mesh().place(Axis::tensor), parts)) << one.name;
    EXPECT_EQ(one.variable.stored_spec().shape.count(), count) << one.name;
    if (!one.variable.requires_grad()) continue;
    EXPECT_EQ(one.variable.grad_variable().stored_spec().shape.count(), count) << one.name;
    for (const auto& [name, state] : optimizer.state())
      if (name.starts_with(one.variable.name() + ".")) {
        EXPECT_EQ(state.stored_spec().shape.count(), count) << name;
      }
  }
}

Course train(const Make& make, const Settings& settings, Device device) {
  manual_seed(11);
  StepContext::current().options.use_amp = settings.mixed_precision;  // of this thread, which ends with the run
  const Trained trained = make();
  models::Model model = trained.model;
  model.to(device);
  const bool shares = fleet::mesh().size(Axis::tensor) > 1;
  model = fleet::distributed_model(model, {.split = shares ? settings.split : std::vector<nn::Split>()});
  optim::Optimizer optimizer = optim::Momentum(model.parameters(), {.lr = 0.02});
  if (settings.adam) optimizer = optim::AdamW(model.parameters(), {.lr = 0.003});
  optimizer = fleet::distributed_optimizer(optimizer);
  std::optional<optim::WeightAverage> average;
  if (settings.average) average.emplace(model, optimizer, 0.9);
  Course course;
  for (int step = 0; step < settings.steps; ++step) {
    const Tensor loss = trained.loss(model.outputs(trained.input(step, device)), step, device);
    loss.backward();
    if (settings.clip > 0) optim::clip_grad_norm(optimizer.parameters(), settings.clip);
    optimizer.step();
    optimizer.clear_grad();
    course.losses.push_back(loss.item());
  }
  if (shares) require_own_part_alone(model, optimizer, settings.split);
  for (const auto& [name, variable] : average ? average->state() : model.state_dict())
    course.weights[name] = fleet::gather(variable).to_vector<double>();
  return course;
}

void expect_near(const Course& found, const Course& expected, double tolerance) {
  ASSERT_EQ(found.losses.size(), expected.losses.size());
  for (size_t i = 0; i < found.losses.size(); ++i)
    EXPECT_NEAR(found.losses[i], expected.losses[i], tolerance * std::abs(expected.losses[i])) << "step " << i + 1;
  for (const auto& [name, values] : expected.weights) {
    const std::vector<double>& own = found.weights.at(name);
    ASSERT_EQ(own.size(), values.size()) << name;
    double largest = 1e-2, apart = 0;
    for (size_t i = 0; i < values.size(); ++i) {
      largest = std::max(largest, std::abs(values[i]));
      apart = std::max(apart, std::abs(own[i] - values[i]));
    }
    EXPECT_LE(apart, 10 * tolerance * largest) << name;
  }
}

void expect_as_on_one_device(const Make& make, const std::vector<int>& degrees, const Settings& settings = {},
                             double tolerance = 1e-4) {
  const testing::PinnedKernels pinned;
  Course expected;
  testing::on_mesh(1, {}, [&](Device device) { expected = train(make, settings, device); });
  ASSERT_FALSE(expected.losses.empty());
  EXPECT_NE(expected.losses.front(), expected.losses.back());
  for (int parts : degrees) {
    SCOPED_TRACE(fmt::format("{} ranks", parts));
    std::vector<Course> found(static_cast<size_t>(parts));
    testing::on_mesh(parts, {.tensor = parts},
                     [&](Device device) { found[static_cast<size_t>(device.index)] = train(make, settings, device); });
    for (const Course& one : found) expect_near(one, expected, tolerance);
  }
}

Trained classifier(const models::Model& model, const Shape& image, int64_t classes) {
  return {model,
          [=](const std::vector<Tensor>& outputs, int step, Device device) {
            Tensor loss = cross_entropy(outputs[0], labels(image[0], classes, step, device));
            if (outputs.size() > 1) loss = loss + mse_loss(outputs[1], picture({image[0], 4}, step, device));
            return loss;
          },
          [=](int step, Device device) { return picture(image, step, device); }};
}

Trained small_bert() {
  const int64_t vocabulary = 64;
  const models::BertForMaskedLM bert(
      {.vocabulary = vocabulary, .hidden = 32, .layers = 2, .heads = 4, .intermediate = 64, .positions = 16});
  return {models::Model(bert, [bert](const Tensor& tokens) { return std::vector<Tensor>{bert(tokens)}; }),
          [=](const std::vector<Tensor>& outputs, int step, Device device) {
            const Tensor logits = reshape(outputs[0], {4 * 8, vocabulary});
            return cross_entropy(logits, labels(4 * 8, vocabulary, step, device), {.ignore_index = 3});
          },
          [=](int step, Device device) {
            return reshape(labels(4 * 8, vocabulary, step + 7, device), {4, 8});
          }};
}

TEST(TensorModels, MlpTrainsAsOnOneDevice) {
  expect_as_on_one_device(
      [] {
        return classifier(models::mlp({.inputs = 36, .hidden = {32, 24}, .classes = 10}), {8, 1, 6, 6}, 10);
      },
      {2, 4});
}

TEST(TensorModels, BertTrainsAsOnOneDeviceWithDropout) { expect_as_on_one_device(small_bert, {2, 4}); }

TEST(TensorModels, TheRunningMeanOfWeightsIsOfParts) {
  expect_as_on_one_device(small_bert, {2}, {.average = true, .steps = 4});
}

TEST(TensorModels, MixedPrecisionDiffersByItsRoundingAlone) {
  expect_as_on_one_device(small_bert, {2, 4}, {.steps = 5, .adam = false, .mixed_precision = true}, 0.02);
}

TEST(TensorModels, LeNetWhoseChannelsDoNotDivideKeepsThoseWhole) {
  expect_as_on_one_device([] { return classifier(models::lenet(), {4, 1, 28, 28}, 10); }, {2, 4}, {.steps = 4});
}

TEST(TensorModels, TwoHeadedNetTrainsAsOnOneDevice) {
  expect_as_on_one_device(
      [] {
        return classifier(models::make("two_headed"), {4, 3, 16, 16}, 10);
      },
      {2, 4}, {.adam = false});
}

TEST(TensorModels, ResNetTrainsAsOnOneDevice) {
  expect_as_on_one_device(
      [] {
        return classifier(models::resnet18_small({.classes = 10}), {4, 3, 8, 8}, 10);
      },
      {2}, {.steps = 2, .adam = false}, 1e-3);
}

TEST(TensorModels, VggTrainsAsOnOneDevice) {
  // Input channels of the convolutions and the features after them, at small width: the plan of VGG.
  expect_as_on_one_device(
      [] {
        nn::Sequential net({nn::Conv2d({.in = 3, .out = 8, .kernel = {3}, .padding = {1}}), nn::ReLU(),
                            nn::Conv2d({.in = 8, .out = 8, .kernel = {3}, .padding = {1}}), nn::ReLU(),
                            nn::MaxPool2d({.kernel = {2}}),
                            nn::Conv2d({.in = 8, .out = 16, .kernel = {3}, .padding = {1}}), nn::ReLU(),
                            nn::AdaptiveAvgPool2d({2, 2}), nn::Flatten(), nn::Linear({.in = 64, .out = 32}), nn::ReLU(),
                            nn::Dropout(0.5), nn::Linear({.in = 32, .out = 10})});
        return classifier(net, {4, 3, 8, 8}, 10);
      },
      {2, 4}, {.split = {{"0.*", 0}, {"2.weight", 1}, {"5.*", 0}, {"9.weight", 1}}});
}

// --- what ranks are told -------------------------------------------------------------------------------------------

std::string error_with(const std::vector<nn::Split>& splits) {
  const auto errors = testing::errors_on_mesh(2, {.tensor = 2}, [&](Device device) {
    models::Mlp model({.inputs = 4, .hidden = {6, 4}, .classes = 3});
    model.to(device);
    fleet::distributed_model(model, {.split = splits});
  });
  EXPECT_EQ(errors[0], errors[1]);
  return errors[0];
}

TEST(TensorSplits, SayWhatIsWrong) {
  EXPECT_NE(
      error_with({{"*.wieght", 0}}).find("'*.wieght' matches nothing of the model; there are: fc1.weight, fc1.bias"),
      std::string::npos);
  EXPECT_NE(
      error_with({{"fc3.weight", 0}}).find("axis 0 of fc3.weight [3, 4] cannot be shared out evenly among 2 ranks"),
      std::string::npos);
  EXPECT_NE(error_with({{"fc1.bias", 1}}).find("expected an axis from 0 to 0"), std::string::npos);
  EXPECT_EQ(error_with({{"fc*.weight", 1}, {"fc1.weight", 0}}), "");
}

TEST(TensorSplits, TheLongestPathCounts) {
  const models::Mlp model({.inputs = 4, .hidden = {6, 4}, .classes = 4});
  const std::vector<nn::Split> splits{{"*", 0}, {"fc*.weight", 1}, {"*.weight", 0}};
  for (const fleet::SharedOut& one : fleet::tensor_splits(model, splits, 2).shared)
    EXPECT_EQ(one.axis, one.name.ends_with("weight") ? 1 : 0) << one.name;
}

TEST(TensorSplits, AnOptimizerThatIsMadeTooEarlyIsRefused) {
  const auto errors = testing::errors_on_mesh(2, {.tensor = 2}, [&](Device device) {
    models::Mlp model({.inputs = 4, .hidden = {6, 4}, .classes = 4});
    model.to(device);
    const optim::SGD optimizer(model.parameters(), {.lr = 0.1});
    fleet::distributed_model(model);
  });
  EXPECT_NE(errors[0].find("call distributed_model before an optimizer is made"), std::string::npos) << errors[0];
}

TEST(TensorSplits, StarsStandForAnyText) {
  EXPECT_TRUE(base::matches("*.query.weight", "layer.0.query.weight"));
  EXPECT_TRUE(base::matches("a*b*c", "abxbc"));
  EXPECT_TRUE(base::matches("fc1.weight*", "fc1.weight"));
  EXPECT_FALSE(base::matches("fc1", "fc1.weight"));
  EXPECT_FALSE(base::matches("*.bias", "fc1.weight"));
}

}  // namespace
}  // namespace bonfire::tensor_models_test
