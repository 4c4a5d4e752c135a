#include "bonfire/backend/cpu/convolution/convolution_core.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "bonfire/base/random.h"

namespace bonfire::cpu::convolution_core_test {
namespace {

// An array [n, c, h, w] with its numbers as double in logical order, and as bytes in some type and layout.
struct Array {
  int64_t n, c, h, w;
  std::vector<double> numbers;

  Array(int64_t n, int64_t c, int64_t h, int64_t w, DType type, uint64_t stream) : n(n), c(c), h(h), w(w) {
    for (int64_t i = 0; i < n * c * h * w; ++i) {
      const float number = 2 * uniform_at(3, stream, i) - 1;
      numbers.push_back(type == DType::bf16 ? static_cast<float>(bfloat16(number)) : number);
    }
  }
  int64_t index(int64_t in, int64_t ic, int64_t iy, int64_t ix) const { return ((in * c + ic) * h + iy) * w + ix; }
  double& at(int64_t in, int64_t ic, int64_t iy, int64_t ix) { return numbers[index(in, ic, iy, ix)]; }
  double at(int64_t in, int64_t ic, int64_t iy, int64_t ix) const { return numbers[index(in, ic, iy, ix)]; }

  // Calls body(logical index, index in memory).
  template <class Body>
  void each(bool channels_last, const Body& body) const {
    for (int64_t in = 0; in < n; ++in)
      for (int64_t ic = 0; ic < c; ++ic)
        for (int64_t iy = 0; iy < h; ++iy)
          for (int64_t ix = 0; ix < w; ++ix) {
            const int64_t logical = index(in, ic, iy, ix);
            body(logical, channels_last ? ((in * h + iy) * w + ix) * c + ic : logical);
          }
  }
  std::vector<std::byte> to_memory(DType type, bool channels_last) const {
    std::vector<std::byte> memory(numbers.size() * size_of(type));
    dispatch(type, [&]<class T>(TypeTag<T>) {
      each(channels_last, [&](int64_t logical, int64_t place) {
        const T value = static_cast<T>(numbers[logical]);
        std::memcpy(memory.data() + place * sizeof(T), &value, sizeof(T));
      });
    });
    return memory;
  }
  void from_memory(const std::vector<std::byte>& memory, DType type, bool channels_last) {
    dispatch(type, [&]<class T>(TypeTag<T>) {
      each(channels_last, [&](int64_t logical, int64_t place) {
        T value;
        std::memcpy(&value, memory.data() + place * sizeof(T), sizeof(T));
        numbers[logical] = static_cast<double>(value);
      });
    });
  }
};

Array x_of(const Convolution& c) { return {c.batch, c.in_channels, c.in_height, c.in_width, c.type, 1}; }
Array y_of(const Convolution& c) { return {c.batch, c.out_channels, c.out_height(), c.out_width(), c.type, 2}; }
Array weight_of(const Convolution& c) {
  return {c.out_channels, c.in_channels / c.groups, c.kernel_height, c.kernel_width, c.type, 3};
}

// Calls body(n, o, oy, ox, group channel, r, s, channel of x, iy, ix) for every product of the convolution.
template <class Body>
void each_product(const Convolution& c, const Body& body) {
  const int64_t in_group = c.in_channels / c.groups, out_group = c.out_channels / c.groups;
  for (int64_t n = 0; n < c.batch; ++n)
    for (int64_t o = 0; o < c.out_channels; ++o)
      for (int64_t oy = 0; oy < c.out_height(); ++oy)
        for (int64_t ox = 0; ox < c.out_width(); ++ox)
          for (int64_t i = 0; i < in_group; ++i)
            for (int64_t r = 0; r < c.kernel_height; ++r)
              for (int64_t s = 0; s < c.kernel_width; ++s) {
                const int64_t iy = oy * c.stride_height - c.padding_height + r * c.dilation_height;
                const int64_t ix = ox * c.stride_width - c.padding_width + s * c.dilation_width;
                if (iy < 0 || iy >= c.in_height || ix < 0 || ix >= c.in_width) continue;
                body(n, o, oy, ox, i, r, s, o / out_group * in_group + i, iy, ix);
              }
}

std::string describe(const Convolution& c) {
  return fmt::format(
      "x [{}, {}, {}, {}] weight [{}, {}, {}, {}] stride {} {} padding {} {} dilation {} {} groups {} {} {}", c.batch,
      c.in_channels, c.in_height, c.in_width, c.out_channels, c.in_channels / c.groups, c.kernel_height, c.kernel_width,
      c.stride_height, c.stride_width, c.padding_height, c.padding_width, c.dilation_height, c.dilation_width, c.groups,
      name_of(c.type), c.channels_last ? "channels-last" : "row-major");
}

// `sizes` holds the sums of absolute values that bound the rounding of each number.
void expect_near(const Array& found, const Array& expected, const Array& sizes, DType sums, DType stored,
                 const std::string& what) {
  const double unit = sums == DType::f64 ? 0x1.0p-52 : 0x1.0p-23, store = stored == DType::bf16 ? 0x1.0p-8 : unit;
  int64_t wrong = 0;
  for (size_t i = 0; i < found.numbers.size(); ++i)
    wrong += !(std::abs(found.numbers[i] - expected.numbers[i]) <=
               16 * unit * (1 + sizes.numbers[i]) + store * std::abs(expected.numbers[i]));
  EXPECT_EQ(wrong, 0) << what << " of " << found.numbers.size();
}

Array zeros_like(Array array) {
  std::fill(array.numbers.begin(), array.numbers.end(), 0.0);
  return array;
}

std::vector<std::byte> workspace_for(const Convolution& c, ConvolutionPass pass, const ThreadPool& pool) {
  return std::vector<std::byte>(convolution_workspace(c, pass, pool.size()));
}

Array forward(const Convolution& c, const Array& x, const Array& weight, const Array* bias, Activation activation,
              ThreadPool& pool, const Array* residual = nullptr) {
  Array y = y_of(c);
  auto memory = y.to_memory(c.type, c.channels_last);
  auto workspace = workspace_for(c, ConvolutionPass::forward, pool);
  const auto bias_memory = bias ? bias->to_memory(c.type, false) : std::vector<std::byte>();
  const auto residual_memory = residual ? residual->to_memory(c.type, c.channels_last) : std::vector<std::byte>();
  convolution_forward(c, x.to_memory(c.type, c.channels_last).data(), weight.to_memory(c.type, c.channels_last).data(),
                      bias ? bias_memory.data() : nullptr, activation, memory.data(), workspace, pool,
                      residual ? residual_memory.data() : nullptr);
  y.from_memory(memory, c.type, c.channels_last);
  return y;
}

Array backward_data(const Convolution& c, const Array& dy, const Array& weight, const Array& old, bool accumulate,
                    ThreadPool& pool) {
  Array dx = old;
  auto memory = dx.to_memory(c.type, c.channels_last);
  auto workspace = workspace_for(c, ConvolutionPass::backward_data, pool);
  convolution_backward_data(c, dy.to_memory(c.type, c.channels_last).data(),
                            weight.to_memory(c.type, c.channels_last).data(), accumulate, memory.data(), workspace,
                            pool);
  dx.from_memory(memory, c.type, c.channels_last);
  return dx;
}

Array backward_weight(const Convolution& c, const Array& x, const Array& dy, const Array& old, bool accumulate,
                      ThreadPool& pool) {
  Array dweight = old;
  auto memory = dweight.to_memory(c.weight_gradient, c.channels_last);
  auto workspace = workspace_for(c, ConvolutionPass::backward_weight, pool);
  convolution_backward_weight(c, x.to_memory(c.type, c.channels_last).data(),
                              dy.to_memory(c.type, c.channels_last).data(), accumulate, memory.data(), workspace, pool);
  dweight.from_memory(memory, c.weight_gradient, c.channels_last);
  return dweight;
}

// Compares all three passes with plain loops in f64. `pick` decides bias, activation, and accumulation or residual.
void expect_right(const Convolution& c, uint32_t pick, int threads = 1) {
  ThreadPool pool(threads);
  const Array x = x_of(c), weight = weight_of(c), dy = y_of(c);
  const Array bias(1, c.out_channels, 1, 1, c.type, 4);
  const bool with_bias = pick & 1, relu = pick & 2, accumulate = pick & 4;
  const Array* residual = accumulate && !is_depthwise(c) ? &dy : nullptr;

  Array y = residual ? *residual : zeros_like(dy), y_size = zeros_like(dy), dx = x, dx_size = x, dweight = weight,
        dweight_size = weight;
  if (!accumulate) dx = dx_size = zeros_like(x), dweight = dweight_size = zeros_like(weight);
  for (double& size : dx_size.numbers) size = std::abs(size);
  for (double& size : dweight_size.numbers) size = std::abs(size);
  if (with_bias)
    for (int64_t i = 0; i < static_cast<int64_t>(y.numbers.size()); ++i)
      y.numbers[i] += bias.numbers[i / (y.h * y.w) % y.c];
  each_product(c, [&](int64_t n, int64_t o, int64_t oy, int64_t ox, int64_t i, int64_t r, int64_t s, int64_t channel,
                      int64_t iy, int64_t ix) {
    const double in = x.at(n, channel, iy, ix), w = weight.at(o, i, r, s), out = dy.at(n, o, oy, ox);
    y.at(n, o, oy, ox) += in * w;
    y_size.at(n, o, oy, ox) += std::abs(in * w);
    dx.at(n, channel, iy, ix) += out * w;
    dx_size.at(n, channel, iy, ix) += std::abs(out * w);
    dweight.at(o, i, r, s) += out * in;
    dweight_size.at(o, i, r, s) += std::abs(out * in);
  });
  if (relu)
    for (double& number : y.numbers) number = std::max(number, 0.0);

  const std::string what = describe(c);
  const Activation activation = relu ? Activation::relu : Activation::none;
  expect_near(forward(c, x, weight, with_bias ? &bias : nullptr, activation, pool, residual), y, y_size, c.type, c.type,
              "forward " + what);
  expect_near(backward_data(c, dy, weight, x, accumulate, pool), dx, dx_size, c.type, c.type, "dx " + what);
  expect_near(backward_weight(c, x, dy, weight, accumulate, pool), dweight, dweight_size, c.type, c.weight_gradient,
              "dweight " + what);
}

class ConvolutionCoreTest : public ::testing::TestWithParam<InstructionSet> {
 protected:
  void SetUp() override { set_instruction_set_for_test(GetParam()); }
  void TearDown() override { set_instruction_set_for_test(available_instruction_sets().back()); }
};

// Draws small whole numbers from one stream of random words.
class Draw {
 public:
  explicit Draw(uint64_t stream) : stream_(stream) {}
  int64_t between(int64_t low, int64_t high) {
    const uint64_t at = next_++;
    return low + philox(11, stream_, at / 4).word[at % 4] % (high - low + 1);
  }

 private:
  uint64_t stream_, next_ = 0;
};

Convolution random_convolution(Draw& draw) {
  Convolution c;
  c.batch = draw.between(1, 3);
  c.groups = draw.between(0, 2) == 0 ? draw.between(2, 4) : 1;
  c.in_channels = c.groups * draw.between(1, c.groups > 1 ? 3 : 19);
  c.out_channels = c.groups * draw.between(1, c.groups > 1 ? 5 : 17);
  c.kernel_height = draw.between(1, 4);
  c.kernel_width = draw.between(1, 5);
  c.stride_height = draw.between(1, 3);
  c.stride_width = draw.between(1, 3);
  c.padding_height = draw.between(0, 3);
  c.padding_width = draw.between(0, 3);
  c.dilation_height = draw.between(1, 3);
  c.dilation_width = draw.between(1, 3);
  c.in_height = draw.between(1, 13);
  c.in_width = draw.between(1, 21);
  c.channels_last = draw.between(0, 1) == 1;
  const DType types[] = {DType::f32, DType::bf16, DType::f64};
  c.type = types[draw.between(0, 2)];
  c.weight_gradient = c.type == DType::bf16 && draw.between(0, 1) == 0 ? DType::f32 : c.type;
  return c;
}

TEST_P(ConvolutionCoreTest, RandomShapesAgreeWithPlainLoops) {
  Draw draw(1);
  for (int i = 0; i < 200 && !HasFailure(); ++i) {
    const Convolution c = random_convolution(draw);
    expect_right(c, static_cast<uint32_t>(draw.between(0, 7)), 1 + i % 2);
  }
}

TEST_P(ConvolutionCoreTest, LayersOfModelsAgreeWithPlainLoops) {
  for (bool channels_last : {false, true}) {
    // A stem, a body large enough for several slices and blocks, a strided shortcut, a strided 3x3, tiny images.
    const Convolution layers[] = {
        {.batch = 3, .in_height = 28, .in_width = 28, .out_channels = 20, .kernel_height = 5, .kernel_width = 5},
        {.batch = 2,
         .in_channels = 40,
         .in_height = 14,
         .in_width = 14,
         .out_channels = 33,
         .kernel_height = 3,
         .kernel_width = 3,
         .padding_height = 1,
         .padding_width = 1},
        {.batch = 3,
         .in_channels = 16,
         .in_height = 14,
         .in_width = 14,
         .out_channels = 32,
         .stride_height = 2,
         .stride_width = 2},
        {.batch = 2,
         .in_channels = 16,
         .in_height = 15,
         .in_width = 15,
         .out_channels = 32,
         .kernel_height = 3,
         .kernel_width = 3,
         .stride_height = 2,
         .stride_width = 2,
         .padding_height = 1,
         .padding_width = 1},
        {.batch = 9,
         .in_channels = 80,
         .in_height = 4,
         .in_width = 4,
         .out_channels = 20,
         .kernel_height = 3,
         .kernel_width = 3,
         .padding_height = 1,
         .padding_width = 1},
        {.batch = 40,
         .in_channels = 3,
         .in_height = 12,
         .in_width = 11,
         .out_channels = 6,
         .kernel_height = 3,
         .kernel_width = 3,
         .padding_height = 1,
         .padding_width = 1}};
    for (Convolution c : layers) {
      c.channels_last = channels_last;
      expect_right(c, 3, 2);
    }
  }
}

TEST_P(ConvolutionCoreTest, DepthwiseAgreesWithPlainLoops) {
  for (bool channels_last : {false, true})
    for (int64_t multiplier : {1, 2})
      for (DType type : {DType::f32, DType::bf16, DType::f64})
        expect_right({.batch = 2,
                      .in_channels = 5,
                      .in_height = 9,
                      .in_width = 8,
                      .out_channels = 5 * multiplier,
                      .kernel_height = 3,
                      .kernel_width = 3,
                      .stride_height = 2,
                      .padding_height = 1,
                      .padding_width = 2,
                      .dilation_width = 2,
                      .groups = 5,
                      .channels_last = channels_last,
                      .type = type,
                      .weight_gradient = type},
                     7, 2);
}

TEST_P(ConvolutionCoreTest, KernelsThatDoNotFitGiveNoOutputAndZeroGradients) {
  for (bool channels_last : {false, true}) {
    const Convolution c{.in_channels = 2,
                        .in_height = 2,
                        .in_width = 5,
                        .out_channels = 3,
                        .kernel_height = 3,
                        .kernel_width = 3,
                        .channels_last = channels_last};
    EXPECT_EQ(c.out_height(), 0);
    expect_right(c, 0);
    Convolution empty = c;
    empty.batch = 0;
    empty.in_height = 5;
    expect_right(empty, 0);
  }
}

TEST_P(ConvolutionCoreTest, SameBitsForAnyNumberOfThreads) {
  for (bool channels_last : {false, true}) {
    const Convolution c{.batch = 5,
                        .in_channels = 12,
                        .in_height = 24,
                        .in_width = 24,
                        .out_channels = 10,
                        .kernel_height = 3,
                        .kernel_width = 3,
                        .padding_height = 1,
                        .padding_width = 1,
                        .channels_last = channels_last};
    const Array x = x_of(c), weight = weight_of(c), dy = y_of(c);
    ThreadPool one(1);
    const Array y1 = forward(c, x, weight, nullptr, Activation::none, one);
    const Array dx1 = backward_data(c, dy, weight, x, false, one);
    const Array dweight1 = backward_weight(c, x, dy, weight, false, one);
    for (int threads : {2, 3, 4}) {
      ThreadPool pool(threads);
      EXPECT_EQ(y1.numbers, forward(c, x, weight, nullptr, Activation::none, pool).numbers);
      EXPECT_EQ(dx1.numbers, backward_data(c, dy, weight, x, false, pool).numbers);
      EXPECT_EQ(dweight1.numbers, backward_weight(c, x, dy, weight, false, pool).numbers);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(InstructionSets, ConvolutionCoreTest,
                         ::testing::ValuesIn(available_instruction_sets().begin(), available_instruction_sets().end()),
                         [](const auto& info) { return std::string(name_of(info.param)); });

}  // namespace
}  // namespace bonfire::cpu::convolution_core_test
