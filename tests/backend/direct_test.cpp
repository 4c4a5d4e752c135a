#include "bonfire/backend/cpu/convolution/direct.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "bonfire/base/random.h"

namespace bonfire::cpu::direct_test {
namespace {

template <class T>
std::vector<T> random_numbers(int64_t count, uint64_t stream) {
  std::vector<T> numbers;
  for (int64_t i = 0; i < count; ++i) numbers.push_back(static_cast<T>(2 * uniform_at(5, stream, i) - 1));
  return numbers;
}

int64_t x_count(const Convolution& c) { return c.batch * c.in_height * c.in_width * c.in_channels; }
int64_t y_count(const Convolution& c) { return c.batch * c.out_height() * c.out_width() * c.out_channels; }
int64_t weight_count(const Convolution& c) {
  return c.out_channels * c.in_channels / c.groups * c.kernel_height * c.kernel_width;
}

std::string describe(const Convolution& c) {
  return fmt::format(
      "x [{}, {}, {}, {}], {} kernels of {} x {}, stride {} {}, padding {} {}, dilation {} {}, groups {}", c.batch,
      c.in_channels, c.in_height, c.in_width, c.out_channels, c.kernel_height, c.kernel_width, c.stride_height,
      c.stride_width, c.padding_height, c.padding_width, c.dilation_height, c.dilation_width, c.groups);
}

template <class T>
struct Operands {
  std::vector<T> x, weight, dy, bias, residual;
  explicit Operands(const Convolution& c)
      : x(random_numbers<T>(x_count(c), 1)),
        weight(random_numbers<T>(weight_count(c), 2)),
        dy(random_numbers<T>(y_count(c), 3)),
        bias(random_numbers<T>(c.out_channels, 4)),
        residual(random_numbers<T>(y_count(c), 5)) {}
};

template <class T>
struct Passes {
  std::vector<T> y, dx, dweight;  // dx is empty where direct.h does not serve it
};

// Memory is full of NaN beforehand.
template <class T>
Passes<T> run_direct(const Convolution& c, const Operands<T>& in, int threads) {
  const T garbage = static_cast<T>(NAN);
  ThreadPool pool(threads);
  auto workspace = [&](ConvolutionPass pass) {
    return std::vector<std::byte>(direct_workspace(c, pass, threads), std::byte{0xFF});
  };
  Passes<T> out{std::vector<T>(in.dy.size(), garbage), {}, std::vector<T>(in.weight.size(), garbage)};
  auto forward = workspace(ConvolutionPass::forward), weight = workspace(ConvolutionPass::backward_weight);
  direct_forward(c, in.x.data(), in.weight.data(),
                 {.bias = in.bias.data(), .residual = in.residual.data(), .relu = true}, out.y.data(), forward, pool);
  direct_backward_weight(c, in.x.data(), in.dy.data(), out.dweight.data(), weight, pool);
  if (direct_serves(c, ConvolutionPass::backward_data)) {
    auto data = workspace(ConvolutionPass::backward_data);
    out.dx.assign(in.x.size(), garbage);
    direct_backward_data(c, in.dy.data(), in.weight.data(), out.dx.data(), data, pool);
  }
  return out;
}

// The same by convolution_core.h.
template <class T>
Passes<T> run_core(const Convolution& c, const Operands<T>& in) {
  ThreadPool pool(1);
  auto workspace = [&](ConvolutionPass pass) { return std::vector<std::byte>(convolution_workspace(c, pass, 1)); };
  Passes<T> out{std::vector<T>(in.dy.size()), std::vector<T>(in.x.size()), std::vector<T>(in.weight.size())};
  auto forward = workspace(ConvolutionPass::forward), data = workspace(ConvolutionPass::backward_data),
       weight = workspace(ConvolutionPass::backward_weight);
  convolution_forward(c, in.x.data(), in.weight.data(), in.bias.data(), Activation::none, out.y.data(), forward, pool);
  for (size_t i = 0; i < out.y.size(); ++i)
    out.y[i] = static_cast<T>(std::max(0.0F, static_cast<float>(out.y[i]) + static_cast<float>(in.residual[i])));
  convolution_backward_data(c, in.dy.data(), in.weight.data(), false, out.dx.data(), data, pool);
  convolution_backward_weight(c, in.x.data(), in.dy.data(), false, out.dweight.data(), weight, pool);
  return out;
}

template <class T>
void expect_near(const std::vector<T>& found, const std::vector<T>& expected, const std::string& what) {
  ASSERT_EQ(found.size(), expected.size()) << what;
  const float tolerance = std::is_same_v<T, float> ? 1e-5F : 1e-2F;
  float largest = 1;
  for (T number : expected) largest = std::max(largest, std::abs(static_cast<float>(number)));
  int64_t wrong = 0;
  for (size_t i = 0; i < found.size(); ++i)
    wrong += !(std::abs(static_cast<float>(found[i]) - static_cast<float>(expected[i])) <= tolerance * largest);
  EXPECT_EQ(wrong, 0) << what << ", of " << found.size();
}

template <class T>
void expect_right_as(const Convolution& c, int threads) {
  ASSERT_TRUE(direct_serves(c, ConvolutionPass::forward)) << describe(c);
  const Operands<T> operands(c);
  const Passes<T> found = run_direct(c, operands, threads), expected = run_core(c, operands);
  expect_near(found.y, expected.y, "y, " + describe(c));
  expect_near(found.dweight, expected.dweight, "dweight, " + describe(c));
  if (!found.dx.empty()) expect_near(found.dx, expected.dx, "dx, " + describe(c));
}

void expect_right(Convolution c, int threads) {
  expect_right_as<float>(c, threads);
  c.type = c.weight_gradient = DType::bf16;
  expect_right_as<bfloat16>(c, threads);
}

class DirectTest : public ::testing::TestWithParam<InstructionSet> {
 protected:
  void SetUp() override { set_instruction_set_for_test(GetParam()); }
  void TearDown() override { set_instruction_set_for_test(available_instruction_sets().back()); }
};

// Draws small whole numbers from one stream of random words.
class Draw {
 public:
  int64_t between(int64_t low, int64_t high) {
    const uint64_t at = next_++;
    return low + philox(13, 1, at / 4).word[at % 4] % (high - low + 1);
  }

 private:
  uint64_t next_ = 0;
};

Convolution random_convolution(Draw& draw, bool depthwise) {
  Convolution c{.channels_last = true};
  do {
    c.batch = draw.between(1, 3);
    c.in_channels = depthwise ? draw.between(2, 37) : draw.between(1, 4);
    c.out_channels = depthwise ? c.in_channels : draw.between(1, 70);
    c.groups = depthwise ? c.in_channels : 1;
    c.kernel_height = draw.between(1, 5);
    c.kernel_width = draw.between(1, 7);
    c.stride_height = draw.between(1, 3);
    c.stride_width = draw.between(1, 3);
    c.padding_height = draw.between(0, 3);
    c.padding_width = draw.between(0, 3);
    c.dilation_height = draw.between(1, 2);
    c.dilation_width = draw.between(1, 3);
    c.in_height = draw.between(1, 15);
    c.in_width = draw.between(1, 37);
  } while (c.out_height() * c.out_width() == 0);
  return c;
}

TEST_P(DirectTest, RandomShapesGiveWhatProductsGive) {
  Draw draw;
  for (int i = 0; i < 60 && !HasFailure(); ++i) expect_right(random_convolution(draw, i % 2 == 0), 1 + i % 3);
}

TEST_P(DirectTest, FirstLayersOfModelsGiveWhatProductsGive) {
  Convolution mnist{.batch = 3, .in_height = 28, .in_width = 28, .out_channels = 20, .channels_last = true};
  mnist.kernel_height = mnist.kernel_width = 5;
  expect_right(mnist, 2);
  Convolution resnet{.batch = 1, .in_channels = 3, .in_height = 65, .in_width = 64, .out_channels = 64};
  resnet.kernel_height = resnet.kernel_width = 7;
  resnet.stride_height = resnet.stride_width = 2;
  resnet.padding_height = resnet.padding_width = 3;
  resnet.channels_last = true;
  expect_right(resnet, 2);
}

TEST_P(DirectTest, SameBitsForAnyNumberOfThreads) {
  Draw draw;
  for (bool depthwise : {false, true}) {
    Convolution c = random_convolution(draw, depthwise);
    c.batch = 7;
    c.in_height = c.in_width = 30;
    const Operands<float> operands(c);
    const Passes<float> one = run_direct(c, operands, 1);
    for (int threads : {2, 3, 5}) {
      const Passes<float> several = run_direct(c, operands, threads);
      EXPECT_EQ(one.y, several.y);
      EXPECT_EQ(one.dx, several.dx);
      EXPECT_EQ(one.dweight, several.dweight);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(InstructionSets, DirectTest,
                         ::testing::ValuesIn(available_instruction_sets().begin(), available_instruction_sets().end()),
                         [](const auto& info) { return std::string(name_of(info.param)); });

TEST(Direct, LeavesManyChannelsToProducts) {
  Convolution c{.in_channels = 3, .in_height = 8, .in_width = 8, .out_channels = 8, .channels_last = true};
  EXPECT_TRUE(direct_serves(c, ConvolutionPass::forward));
  EXPECT_TRUE(direct_serves(c, ConvolutionPass::backward_weight));
  EXPECT_FALSE(direct_serves(c, ConvolutionPass::backward_data));
  c.in_channels = 8;
  EXPECT_FALSE(direct_serves(c, ConvolutionPass::forward));
  c.groups = 8;
  EXPECT_TRUE(direct_serves(c, ConvolutionPass::backward_data));
  c.type = c.weight_gradient = DType::f64;
  EXPECT_FALSE(direct_serves(c, ConvolutionPass::forward));
}

}  // namespace
}  // namespace bonfire::cpu::direct_test
