#include "bonfire/backend/cpu/convolution/winograd.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "bonfire/base/random.h"

namespace bonfire::cpu::winograd_test {
namespace {

using Floats = std::vector<float>;
using Doubles = std::vector<double>;

Floats random_floats(int64_t count, uint64_t stream) {
  Floats numbers;
  for (int64_t i = 0; i < count; ++i) numbers.push_back(2 * uniform_at(5, stream, i) - 1);
  return numbers;
}

Convolution layer(int64_t batch, int64_t in, int64_t height, int64_t width, int64_t out, int64_t padding,
                  int64_t kernel = 3) {
  return {.batch = batch,
          .in_channels = in,
          .in_height = height,
          .in_width = width,
          .out_channels = out,
          .kernel_height = kernel,
          .kernel_width = kernel,
          .padding_height = padding,
          .padding_width = padding,
          .channels_last = true};
}

int64_t x_count(const Convolution& c) { return c.batch * c.in_height * c.in_width * c.in_channels; }
int64_t y_count(const Convolution& c) { return c.batch * c.out_height() * c.out_width() * c.out_channels; }
int64_t taps(const Convolution& c) { return c.kernel_height * c.kernel_width; }
int64_t weight_count(const Convolution& c) { return c.out_channels * taps(c) * c.in_channels; }

// Everything in channels-last order.
struct Operands {
  Floats x, weight, dy;
  explicit Operands(const Convolution& c)
      : x(random_floats(x_count(c), 1)), weight(random_floats(weight_count(c), 2)), dy(random_floats(y_count(c), 3)) {}
};

struct Passes {
  Floats y, dx, dweight;
};

// All passes, on numbers of type T in memory.
template <class T>
void run_passes(const Convolution& c, int tile, int threads, const ConvolutionEpilogue& epilogue,
                const std::vector<T>& x, const std::vector<T>& weight, const std::vector<T>& dy, std::vector<T>& y,
                std::vector<T>& dx, std::vector<T>& dweight) {
  ThreadPool pool(threads);
  auto workspace = [&](ConvolutionPass pass) {
    return std::vector<std::byte>(winograd_workspace(c, pass, tile, threads), std::byte{0xFF});
  };
  auto forward = workspace(ConvolutionPass::forward), data = workspace(ConvolutionPass::backward_data),
       weights = workspace(ConvolutionPass::backward_weight);
  winograd_forward(c, tile, x.data(), weight.data(), epilogue, y.data(), forward, pool);
  winograd_backward_data(c, tile, dy.data(), weight.data(), dx.data(), data, pool);
  winograd_backward_weight(c, tile, x.data(), dy.data(), dweight.data(), weights, pool);
}

Passes run(const Convolution& c, int tile, const Operands& in, int threads, const ConvolutionEpilogue& epilogue = {}) {
  const float garbage = std::nanf("");
  Passes out{Floats(in.dy.size(), garbage), Floats(in.x.size(), garbage), Floats(in.weight.size(), garbage)};
  run_passes(c, tile, threads, epilogue, in.x, in.weight, in.dy, out.y, out.dx, out.dweight);
  return out;
}

using Halves = std::vector<bfloat16>;
Halves narrowed(const Floats& numbers) {
  Halves halves;
  for (float number : numbers) halves.push_back(bfloat16(number));
  return halves;
}
Floats widened(const Halves& halves) {
  Floats numbers;
  for (bfloat16 half : halves) numbers.push_back(static_cast<float>(half));
  return numbers;
}

Passes run_bf16(const Convolution& c, int tile, const Operands& in, int threads, const Floats& bias,
                const Floats& residual) {
  const bfloat16 garbage(std::nanf(""));
  Halves y(in.dy.size(), garbage), dx(in.x.size(), garbage), dweight(in.weight.size(), garbage);
  const Halves own_bias = narrowed(bias), own_residual = narrowed(residual);
  run_passes(c, tile, threads, {.bias = own_bias.data(), .residual = own_residual.data(), .relu = true}, narrowed(in.x),
             narrowed(in.weight), narrowed(in.dy), y, dx, dweight);
  return {widened(y), widened(dx), widened(dweight)};
}

// The same by plain loops in f64.
struct Expected {
  Doubles y, dx, dweight;

  Expected(const Convolution& c, const Operands& in) : y(in.dy.size()), dx(in.x.size()), dweight(in.weight.size()) {
    const int64_t C = c.in_channels;
    int64_t at_y = 0;
    for (int64_t n = 0; n < c.batch; ++n)
      for (int64_t oy = 0; oy < c.out_height(); ++oy)
        for (int64_t ox = 0; ox < c.out_width(); ++ox)
          for (int64_t o = 0; o < c.out_channels; ++o, ++at_y)
            for (int64_t tap = 0; tap < taps(c); ++tap) {
              const int64_t iy = oy + tap / c.kernel_width - c.padding_height;
              const int64_t ix = ox + tap % c.kernel_width - c.padding_width;
              if (iy < 0 || iy >= c.in_height || ix < 0 || ix >= c.in_width) continue;
              const int64_t at_x = ((n * c.in_height + iy) * c.in_width + ix) * C, at_weight = (o * taps(c) + tap) * C;
              add(in, at_x, at_weight, at_y, C);
            }
  }

  void add(const Operands& in, int64_t at_x, int64_t at_weight, int64_t at_y, int64_t channels) {
    const double gradient = in.dy[at_y];
    double sum = 0;
    for (int64_t i = 0; i < channels; ++i) {
      const double pixel = in.x[at_x + i], weight = in.weight[at_weight + i];
      sum += pixel * weight;
      dx[at_x + i] += gradient * weight;
      dweight[at_weight + i] += gradient * pixel;
    }
    y[at_y] += sum;
  }
};

// |found - expected| / |expected|
double error_of(const Floats& found, const Doubles& expected) {
  double difference = 0, norm = 0;
  for (size_t i = 0; i < found.size(); ++i) {
    difference += (found[i] - expected[i]) * (found[i] - expected[i]);
    norm += expected[i] * expected[i];
  }
  return std::sqrt(difference / norm);
}

double bound_of(const Convolution& c, int tile) { return tile == 2 && c.kernel_height == 3 ? 1e-6 : 4e-6; }

std::vector<int> tiles_of(const Convolution& c) {
  std::vector<int> tiles;
  for (int tile : {2, 4})
    if (winograd_serves(c, tile)) tiles.push_back(tile);
  EXPECT_EQ(tiles.size(), c.kernel_height == 3 ? 2U : 1U);
  return tiles;
}

void expect_right(const Convolution& c, int threads) {
  const Operands operands(c);
  const Expected expected(c, operands);
  for (int tile : tiles_of(c)) {
    const Passes found = run(c, tile, operands, threads);
    const std::string what =
        fmt::format("F({}, {}) x [{}, {}, {}, {}] to {}, padding {}", tile, c.kernel_height, c.batch, c.in_channels,
                    c.in_height, c.in_width, c.out_channels, c.padding_height);
    EXPECT_LE(error_of(found.y, expected.y), bound_of(c, tile)) << "y, " << what;
    EXPECT_LE(error_of(found.dx, expected.dx), bound_of(c, tile)) << "dx, " << what;
    EXPECT_LE(error_of(found.dweight, expected.dweight), bound_of(c, tile)) << "dweight, " << what;
  }
}

class WinogradTest : public ::testing::TestWithParam<InstructionSet> {
 protected:
  void SetUp() override { set_instruction_set_for_test(GetParam()); }
  void TearDown() override { set_instruction_set_for_test(available_instruction_sets().back()); }
};

TEST_P(WinogradTest, ErrorStaysInBoundsForLayersOfModels) {
  expect_right(layer(1, 64, 56, 56, 16, 1), 2);
  expect_right(layer(2, 32, 28, 28, 64, 1), 2);
  expect_right(layer(3, 128, 14, 14, 32, 1), 1);
  expect_right(layer(5, 64, 7, 7, 64, 1), 2);
  expect_right(layer(9, 256, 4, 4, 48, 1), 2);
  expect_right(layer(1, 512, 4, 4, 256, 1), 2);  // more weights than pixels
  expect_right(layer(5, 20, 12, 12, 20, 0, 5), 2);
  expect_right(layer(1, 64, 27, 27, 32, 2, 5), 2);
}

TEST_P(WinogradTest, ServesOddSizesAnyPaddingAndAnyChannelCount) {
  for (int64_t padding : {0, 1, 2, 3})
    for (int64_t height : {3, 4, 5, 9})
      for (int64_t width : {3, 6, 7}) expect_right(layer(2, 17, height, width, 9, padding), 1);
  for (int64_t padding : {0, 1, 4, 5})
    for (int64_t height : {5, 8}) expect_right(layer(2, 7, height, 6, 18, padding, 5), 2);
  for (int64_t in : {1, 3, 8, 20, 33})
    for (int64_t out : {1, 2, 16, 50}) expect_right(layer(1, in, 6, 5, out, 1), 2);
  expect_right(layer(1, 4, 1, 1, 4, 1), 2);  // all but one pixel of each patch lie outside
}

TEST_P(WinogradTest, ManyBlocksOfTilesGiveWhatOneGives) { expect_right(layer(40, 20, 13, 12, 19, 1), 2); }

TEST_P(WinogradTest, EpilogueAddsBiasAndResidualBeforeRelu) {
  const Convolution c = layer(2, 10, 7, 6, 21, 1);
  const Operands operands(c);
  Expected expected(c, operands);
  const Floats bias = random_floats(c.out_channels, 7), residual = random_floats(y_count(c), 8);
  for (int64_t i = 0; i < y_count(c); ++i)
    expected.y[i] = std::max(0.0, expected.y[i] + bias[i % c.out_channels] + residual[i]);
  for (int tile : tiles_of(c)) {
    const Floats y = run(c, tile, operands, 1, {.bias = bias.data(), .residual = residual.data(), .relu = true}).y;
    EXPECT_LE(error_of(y, expected.y), bound_of(c, tile));
    for (float number : y) ASSERT_GE(number, 0);
  }
}

// Products of bf16 are those of the same numbers in f32, rounded at the end.
TEST_P(WinogradTest, Bf16GivesWhatF32GivesRounded) {
  for (const Convolution& wide : {layer(2, 17, 9, 7, 9, 1), layer(3, 32, 14, 14, 48, 1), layer(1, 512, 4, 4, 256, 1),
                                  layer(2, 7, 8, 6, 18, 2, 5)}) {
    Convolution narrow = wide;
    narrow.type = narrow.weight_gradient = DType::bf16;
    Operands operands(wide);
    for (Floats* numbers : {&operands.x, &operands.weight, &operands.dy})
      for (float& number : *numbers) number = static_cast<float>(bfloat16(number));
    const Floats bias = widened(narrowed(random_floats(wide.out_channels, 7)));
    const Floats residual = widened(narrowed(random_floats(y_count(wide), 8)));
    for (int tile : tiles_of(narrow)) {
      const Passes expected =
          run(wide, tile, operands, 2, {.bias = bias.data(), .residual = residual.data(), .relu = true});
      const Passes found = run_bf16(narrow, tile, operands, 2, bias, residual);
      EXPECT_EQ(found.y, widened(narrowed(expected.y)));
      EXPECT_EQ(found.dx, widened(narrowed(expected.dx)));
      EXPECT_EQ(found.dweight, widened(narrowed(expected.dweight)));
    }
  }
}

// What a ReLU and a max pooling leave: most numbers are zero, and some channels have next to none.
void thin_out(Floats& numbers, int64_t channels, uint64_t stream) {
  for (size_t i = 0; i < numbers.size(); ++i) {
    const int64_t channel = static_cast<int64_t>(i) % channels;
    const float density = channel % 4 == 0 ? 0.005F : channel % 4 == 1 ? 0.05F : 0.5F;
    if (uniform_at(9, stream, i) >= density) numbers[i] = 0;
  }
}

// Adam makes a full step of a gradient that is noise: where direct sums give zero there must be none.
TEST_P(WinogradTest, KeepsEveryZeroOfTheGradientByTheWeight) {
  for (const Convolution& c : {layer(17, 24, 3, 3, 20, 1), layer(3, 33, 13, 10, 17, 1), layer(5, 20, 12, 12, 20, 0, 5),
                               layer(2, 9, 8, 7, 12, 2, 5), layer(1, 8, 5, 5, 8, 3), layer(40, 12, 6, 6, 12, 0)}) {
    Operands operands(c);
    thin_out(operands.x, c.in_channels, 1);
    thin_out(operands.dy, c.out_channels, 2);
    const Expected expected(c, operands);
    for (int tile : tiles_of(c))
      for (int threads : {1, 2}) {
        const Floats found = run(c, tile, operands, threads).dweight;
        int64_t zeros = 0, lost = 0, invented = 0;
        for (size_t i = 0; i < found.size(); ++i) {
          zeros += expected.dweight[i] == 0 ? 1 : 0;
          lost += expected.dweight[i] == 0 && found[i] != 0 ? 1 : 0;
          invented += expected.dweight[i] != 0 && found[i] == 0 ? 1 : 0;
        }
        EXPECT_GT(zeros, 0);
        EXPECT_EQ(lost, 0) << "of " << zeros << " zeros, F(" << tile << ", " << c.kernel_height << ")";
        EXPECT_EQ(invented, 0);
      }
  }
}

// Where nothing is seen there is nothing but the bias, in the gradient by the input too.
TEST_P(WinogradTest, ResultsThatSeeOnlyZerosAreZero) {
  for (const Convolution& c : {layer(2, 24, 11, 9, 20, 1), layer(2, 12, 12, 12, 20, 0, 5), layer(1, 8, 5, 5, 8, 3)}) {
    Operands operands(c);
    auto clear_pixels = [](Floats& numbers, int64_t channels) {
      for (size_t i = 0; i < numbers.size(); ++i)
        if (uniform_at(9, 3, i / static_cast<size_t>(channels)) < 0.95F) numbers[i] = 0;
    };
    clear_pixels(operands.x, c.in_channels);
    clear_pixels(operands.dy, c.out_channels);
    const Expected expected(c, operands);
    for (int tile : tiles_of(c)) {
      const Passes found = run(c, tile, operands, 2);
      int64_t zeros = 0;
      for (size_t i = 0; i < found.y.size(); ++i) {
        EXPECT_EQ(found.y[i] == 0, expected.y[i] == 0) << "y " << i;
        zeros += expected.y[i] == 0 ? 1 : 0;
      }
      for (size_t i = 0; i < found.dx.size(); ++i) EXPECT_EQ(found.dx[i] == 0, expected.dx[i] == 0) << "dx " << i;
      EXPECT_GT(zeros, 0);
    }
  }
}

TEST_P(WinogradTest, SameBitsForAnyNumberOfThreads) {
  const Convolution c = layer(7, 24, 15, 14, 40, 1);
  const Operands operands(c);
  for (int tile : tiles_of(c)) {
    const Passes one = run(c, tile, operands, 1);
    for (int threads : {2, 3, 5}) {
      const Passes several = run(c, tile, operands, threads);
      EXPECT_EQ(one.y, several.y);
      EXPECT_EQ(one.dx, several.dx);
      EXPECT_EQ(one.dweight, several.dweight);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(InstructionSets, WinogradTest,
                         ::testing::ValuesIn(available_instruction_sets().begin(), available_instruction_sets().end()),
                         [](const auto& info) { return std::string(name_of(info.param)); });

TEST(Winograd, ServesOnlyUndilatedSquareKernelsWithStride1) {
  const Convolution served = layer(1, 8, 8, 8, 8, 1);
  EXPECT_TRUE(winograd_serves(served, 2));
  Convolution other = served;
  other.stride_width = 2;
  EXPECT_FALSE(winograd_serves(other, 2));
  other = served;
  other.dilation_height = 2;
  EXPECT_FALSE(winograd_serves(other, 2));
  other = served;
  other.kernel_width = 5;
  EXPECT_FALSE(winograd_serves(other, 2));
  other.kernel_height = 7;
  other.kernel_width = 7;
  EXPECT_FALSE(winograd_serves(other, 2));
  other = served;
  other.groups = 2;
  EXPECT_FALSE(winograd_serves(other, 2));
  other = served;
  other.channels_last = false;
  EXPECT_FALSE(winograd_serves(other, 2));
  other = served;
  other.type = DType::f64;
  EXPECT_FALSE(winograd_serves(other, 2));
  other = served;
  other.weight_gradient = DType::bf16;
  EXPECT_FALSE(winograd_serves(other, 2));
}

}  // namespace
}  // namespace bonfire::cpu::winograd_test
