// What CUDA devices do, on a real one: submissions, captured steps, and training that follows the CPU's.
#include <gtest/gtest.h>

#include <cstdlib>

#include "bonfire/bonfire.h"
#include "bonfire/kernel/queue.h"
#include "bonfire/optim/optimizers.h"
#include "bonfire/runtime/tuning.h"
#include "tests/support/cuda_device.h"
#include "tests/support/scratch_folder.h"

namespace bonfire::device_test {
namespace {

class CudaDevice : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!cuda_device()) GTEST_SKIP() << "skipped: no CUDA device";
  }
  const Device place{DeviceType::cuda, 0};  // NOLINT(readability-identifier-naming): a fixture's
};

std::vector<float> numbers(int64_t count, uint64_t stream) {
  std::vector<float> values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i) values[i] = normal_at(3, stream, i);
  return values;
}

Tensor random_tensor(const Shape& shape, uint64_t stream, Device device) {
  return Tensor::from<float>(std::span<const float>(numbers(shape.count(), stream)), shape, device);
}

void expect_close(const std::vector<float>& a, const std::vector<float>& b, float tolerance) {
  ASSERT_EQ(a.size(), b.size());
  float largest = 0;
  for (float value : b) largest = std::max(largest, std::abs(value));
  for (size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a[i], b[i], tolerance * (1 + largest)) << "element " << i;
}

TEST_F(CudaDevice, ValuesCrossBothWays) {
  Tensor here = random_tensor({3, 5}, 1, {});
  Tensor there = here.to(place) * 2.0;
  EXPECT_EQ(there.device(), place);
  EXPECT_EQ((there.to(Device{}) - here).to_vector<float>(), here.to_vector<float>());
}

TEST_F(CudaDevice, StepIsReplayedWithOtherFeedsNumbersAndOutputs) {
  Scalar factor(1.0);
  auto step = compile([&](const Tensor& x) { return x * factor + 1.0; });
  std::vector<Tensor> kept;
  for (int i = 0; i < 6; ++i) {
    factor.set(i);
    kept.push_back(step(random_tensor({1000}, static_cast<uint64_t>(i), place)));
  }
  for (int i = 0; i < 6; ++i) {
    std::vector<float> expected = numbers(1000, static_cast<uint64_t>(i));
    for (float& value : expected) value = value * static_cast<float>(i) + 1;
    expect_close(kept[static_cast<size_t>(i)].to_vector<float>(), expected, 1e-6F);
  }
}

TEST_F(CudaDevice, LargeTranspositionsMoveEveryElement) {
  Tensor x = random_tensor({3, 517, 301}, 2, {});
  EXPECT_EQ(permute(x.to(place), {2, 0, 1}).to_vector<float>(), permute(x, {2, 0, 1}).to_vector<float>());
  EXPECT_EQ(permute(x.to(place), {0, 2, 1}).to_vector<float>(), permute(x, {0, 2, 1}).to_vector<float>());
}

// Losses of a few steps; the model and the data are the same on every device.
template <class Make>
std::vector<float> train(Make make, const Shape& image, Device device, bool amp, int steps = 5) {
  use_mixed_precision(amp);
  manual_seed(11);
  auto model = make();
  model.to(device);
  optim::Momentum optimizer(model.parameters(), {.lr = 0.001, .momentum = 0.9});
  auto step = compile([&](const Tensor& x, const Tensor& label) {
    Tensor loss = cross_entropy(model(x), label);
    loss.backward();
    optimizer.step();
    optimizer.clear_grad();
    return loss;
  });
  std::vector<int64_t> labels;
  for (int64_t i = 0; i < image[0]; ++i) labels.push_back(i % 10);
  std::vector<float> losses;
  for (int i = 0; i < steps; ++i) {
    Tensor loss = step(random_tensor(image, static_cast<uint64_t>(i % 2), device),
                       Tensor::from<int64_t>(std::span<const int64_t>(labels), {image[0]}, device));
    losses.push_back(loss.item<float>());
  }
  use_mixed_precision(false);
  return losses;
}

TEST_F(CudaDevice, MlpTrainsAsOnTheCpu) {
  auto make = [] { return models::mlp(); };
  expect_close(train(make, {32, 1, 28, 28}, place, false), train(make, {32, 1, 28, 28}, {}, false), 1e-4F);
  expect_close(train(make, {32, 1, 28, 28}, place, true), train(make, {32, 1, 28, 28}, {}, false), 2e-2F);
}

TEST_F(CudaDevice, MnistCnnTrainsAsOnTheCpu) {
  auto make = [] { return models::mnist_cnn(); };
  expect_close(train(make, {16, 1, 28, 28}, place, false), train(make, {16, 1, 28, 28}, {}, false), 1e-4F);
  expect_close(train(make, {16, 1, 28, 28}, place, true), train(make, {16, 1, 28, 28}, {}, false), 2e-2F);
}

TEST_F(CudaDevice, SmallResNetTrainsAsOnTheCpu) {
  auto make = [] { return models::resnet18_small({.classes = 10, .in_channels = 1}); };
  std::vector<float> here = train(make, {8, 1, 28, 28}, {}, false, 2);
  expect_close(train(make, {8, 1, 28, 28}, place, false, 2), here, 1e-3F);
  expect_close(train(make, {8, 1, 28, 28}, place, true, 2), here, 5e-2F);
}

TEST_F(CudaDevice, TheSameSeedGivesTheSameBits) {
  auto make = [] { return models::mnist_cnn(); };
  EXPECT_EQ(train(make, {64, 1, 28, 28}, place, true, 20), train(make, {64, 1, 28, 28}, place, true, 20));
}

// More parameters than one call of the kernel takes, with gradients at other steps each.
TEST_F(CudaDevice, AdamCountsTheUpdatesOfEachParameter) {
  auto updated = [](Device device) {
    std::vector<Parameter> parameters;
    for (uint64_t i = 0; i < 200; ++i) {
      Variable variable = Variable::from<float>(std::span<const float>(numbers(5, i)), {5}, device);
      parameters.emplace_back(variable);
    }
    optim::Adam optimizer(parameters, {.lr = 0.01});
    for (size_t step = 0; step < 4; ++step) {
      Tensor loss = full({}, 0.0, DType::f32, device);
      for (size_t i = 0; i < parameters.size(); ++i)
        if (i % 4 <= step) loss = loss + sum(square(parameters[i] - 3.0));
      loss.backward();
      optimizer.step();
      optimizer.clear_grad();
    }
    std::vector<float> values;
    for (const Parameter& parameter : parameters)
      for (float value : parameter.value().to_vector<float>()) values.push_back(value);
    for (int64_t count : optimizer.state()[0].second.value().to_vector<int64_t>())
      values.push_back(static_cast<float>(count));
    return values;
  };
  expect_close(updated(place), updated({}), 1e-6F);
}

TEST_F(CudaDevice, TimesAreKeptByTheModelOfTheGpu) {
  EXPECT_FALSE(queue_of(place).model().empty());
  bonfire::testing::ScratchFolder folder;
  setenv("BONFIRE_CACHE", folder.path().c_str(), 1);
  setenv("BONFIRE_TUNE", "full", 1);
  runtime::reload_tuning();
  runtime::reorder_nanoseconds({{8, 16, 4, 4}, DType::f32, place}, {}, channels_last());
  EXPECT_NE(runtime::tuning_record().find(queue_of(place).model()), std::string::npos) << runtime::tuning_record();
  unsetenv("BONFIRE_CACHE");
  setenv("BONFIRE_TUNE", "off", 1);
  runtime::reload_tuning();
}

// Candidates of one name would count as one kernel, whose time is measured once.
TEST_F(CudaDevice, ConvolutionsInOtherLayoutsHaveOtherNames) {
  Graph graph;
  auto input = [&](const Shape& shape) {
    return GraphValue{graph.add_input(LeafKind::feed, {shape, DType::f32, place}), 0};
  };
  GraphNode* node =
      graph.add(find_op("conv2d"), {input({8, 16, 14, 14}), input({32, 16, 3, 3})},
                {{"stride", Shape{1, 1}}, {"padding", Shape{1, 1}}, {"dilation", Shape{1, 1}}, {"groups", 1}});
  const std::vector<Layout> rows(2), last(2, channels_last());
  for (const Candidate& one : candidates_for({*node, rows}))
    for (const Candidate& other : candidates_for({*node, last})) {
      if (one.output_layouts[0] == other.output_layouts[0]) continue;
      EXPECT_NE(one.name, other.name);
    }
}

TEST_F(CudaDevice, OutOfMemoryIsADeviceErrorThatSaysHowMuch) {
  try {
    Storage storage(place, size_t{1} << 50);
    FAIL() << "a petabyte was allocated";
  } catch (const DeviceError& error) {
    EXPECT_NE(std::string(error.what()).find("out of memory"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace bonfire::device_test
