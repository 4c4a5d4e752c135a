// Rows for pooling, batch norm and image input.

#include <algorithm>
#include <cmath>
#include <limits>

#include "bonfire/base/error.h"
#include "bonfire/ops/batch_norm.h"
#include "bonfire/ops/creation.h"
#include "bonfire/ops/elementwise_functions.h"
#include "bonfire/ops/image.h"
#include "bonfire/ops/pooling.h"
#include "tests/ops/op_case.h"

namespace bonfire::op_test::cases_image {

namespace {

// ---- pooling ----

struct PoolCase {
  Shape x;  // [N, C, H, W]
  Shape kernel, stride, padding;
  bool ceil_mode = false, count_include_pad = true;
  Shape out;  // {OH, OW}

  Shape y() const { return {x[0], x[1], out[0], out[1]}; }
};

// Calls visit(h, w) for the pixels of window (oh, ow), and returns how many places it has with padding.
template <class Visit>
int64_t visit_window(const PoolCase& c, int64_t oh, int64_t ow, const Visit& visit) {
  int64_t top = oh * c.stride[0] - c.padding[0], left = ow * c.stride[1] - c.padding[1], places = 0;
  for (int64_t h = top; h < top + c.kernel[0]; ++h)
    for (int64_t w = left; w < left + c.kernel[1]; ++w) {
      if (h < c.x[2] + c.padding[0] && w < c.x[3] + c.padding[1]) ++places;
      if (h >= 0 && h < c.x[2] && w >= 0 && w < c.x[3]) visit(h, w);
    }
  return places;
}

Reference pool_reference(const PoolCase& c, bool maximum) {
  return [c, maximum](const std::vector<Numbers>& in) {
    Numbers y;
    for (int64_t plane = 0; plane < c.x[0] * c.x[1]; ++plane)
      for (int64_t oh = 0; oh < c.out[0]; ++oh)
        for (int64_t ow = 0; ow < c.out[1]; ++ow) {
          double best = -std::numeric_limits<double>::infinity(), sum = 0;
          int64_t inside = 0;
          int64_t places = visit_window(c, oh, ow, [&](int64_t h, int64_t w) {
            double value = in[0][(plane * c.x[2] + h) * c.x[3] + w];
            best = std::max(best, value);
            sum += value;
            ++inside;
          });
          y.push_back(maximum ? best : sum / static_cast<double>(c.count_include_pad ? places : inside));
        }
    return y;
  };
}

OpCase max_pool_row(const std::string& name, const PoolCase& c) {
  return {.name = "max_pool2d/" + name,
          .inputs = {distinct_floats(c.x)},
          .call =
              [c](const Inputs& x) {
                return max_pool2d(
                    x[0], {.kernel = c.kernel, .stride = c.stride, .padding = c.padding, .ceil_mode = c.ceil_mode});
              },
          .shapes = {c.y()},
          .reference = pool_reference(c, true)};
}

OpCase avg_pool_row(const std::string& name, const PoolCase& c) {
  return {.name = "avg_pool2d/" + name,
          .inputs = {floats(c.x)},
          .call =
              [c](const Inputs& x) {
                return avg_pool2d(x[0], {.kernel = c.kernel,
                                         .stride = c.stride,
                                         .padding = c.padding,
                                         .ceil_mode = c.ceil_mode,
                                         .count_include_pad = c.count_include_pad});
              },
          .shapes = {c.y()},
          .reference = pool_reference(c, false),
          .twice = true};
}

const bool pool_rows = add_op_cases({
    max_pool_row("2x2", {{2, 3, 4, 6}, {2, 2}, {2, 2}, {0, 0}, false, true, {2, 3}}),
    max_pool_row("overlapping", {{1, 2, 7, 5}, {3, 3}, {2, 2}, {1, 1}, false, true, {4, 3}}),
    max_pool_row("oblong", {{2, 1, 5, 6}, {1, 3}, {2, 1}, {0, 1}, false, true, {3, 6}}),
    max_pool_row("ceil_mode", {{1, 2, 6, 5}, {3, 2}, {2, 2}, {0, 0}, true, true, {3, 3}}),
    max_pool_row("ceil_mode_drops_a_window_in_the_padding", {{1, 1, 3, 3}, {2, 2}, {2, 2}, {1, 1}, true, true, {2, 2}}),
    max_pool_row("channels_beyond_a_block", {{1, 67, 4, 4}, {2, 2}, {2, 2}, {0, 0}, false, true, {2, 2}}),
    max_pool_row("one_pixel", {{1, 1, 1, 1}, {1, 1}, {1, 1}, {0, 0}, false, true, {1, 1}}),
    max_pool_row("empty_batch", {{0, 2, 4, 4}, {2, 2}, {2, 2}, {0, 0}, false, true, {2, 2}}),
    avg_pool_row("2x2", {{2, 3, 4, 6}, {2, 2}, {2, 2}, {0, 0}, false, true, {2, 3}}),
    avg_pool_row("padding_counts", {{1, 2, 7, 5}, {3, 3}, {2, 2}, {1, 1}, false, true, {4, 3}}),
    avg_pool_row("padding_does_not_count", {{1, 2, 7, 5}, {3, 3}, {2, 2}, {1, 1}, false, false, {4, 3}}),
    avg_pool_row("ceil_mode", {{1, 2, 6, 5}, {3, 2}, {2, 2}, {1, 1}, true, true, {4, 3}}),
    avg_pool_row("ceil_mode_padding_does_not_count", {{1, 2, 6, 6}, {3, 3}, {2, 2}, {1, 1}, true, false, {4, 4}}),
    avg_pool_row("empty_batch", {{0, 2, 4, 4}, {2, 2}, {2, 2}, {0, 0}, false, true, {2, 2}}),
});

Reference adaptive_reference(Shape x, Shape out) {
  return [x, out](const std::vector<Numbers>& in) {
    Numbers y;
    auto begin = [&](int axis, int64_t i) { return i * x[axis + 2] / out[axis]; };
    auto end = [&](int axis, int64_t i) { return ((i + 1) * x[axis + 2] + out[axis] - 1) / out[axis]; };
    for (int64_t plane = 0; plane < x[0] * x[1]; ++plane)
      for (int64_t oh = 0; oh < out[0]; ++oh)
        for (int64_t ow = 0; ow < out[1]; ++ow) {
          double sum = 0, places = 0;
          for (int64_t h = begin(0, oh); h < end(0, oh); ++h)
            for (int64_t w = begin(1, ow); w < end(1, ow); ++w, ++places) sum += in[0][(plane * x[2] + h) * x[3] + w];
          y.push_back(sum / places);
        }
    return y;
  };
}

OpCase adaptive_row(const std::string& name, Shape x, Shape out) {
  return {.name = "adaptive_avg_pool2d/" + name,
          .inputs = {floats(x)},
          .call = [out](const Inputs& in) { return adaptive_avg_pool2d(in[0], out); },
          .shapes = {{x[0], x[1], out[0], out[1]}},
          .reference = adaptive_reference(x, out),
          .twice = true};
}

const bool adaptive_rows = add_op_cases({
    adaptive_row("global", {2, 3, 7, 5}, {1, 1}),
    adaptive_row("even", {1, 2, 6, 8}, {3, 2}),
    adaptive_row("uneven_windows_overlap", {2, 1, 7, 5}, {3, 4}),
    adaptive_row("larger_than_the_input", {1, 2, 2, 3}, {5, 3}),
    adaptive_row("empty_batch", {0, 2, 4, 4}, {1, 1}),
});

// ---- batch norm ----

struct ChannelView {
  int64_t outer, channels, inner;
  explicit ChannelView(const Shape& x)
      : outer(x[0]), channels(x[1]), inner(x.count() / std::max<int64_t>(x[0] * x[1], 1)) {}
  int64_t channel_of(size_t element) const { return static_cast<int64_t>(element) / inner % channels; }
  double per_channel() const { return static_cast<double>(outer * inner); }
};

struct Moments {
  Numbers mean, variance;
};

Moments moments_of(const ChannelView& view, const Numbers& x) {
  Moments m{Numbers(static_cast<size_t>(view.channels)), Numbers(static_cast<size_t>(view.channels))};
  for (size_t i = 0; i < x.size(); ++i) m.mean[view.channel_of(i)] += x[i] / view.per_channel();
  for (size_t i = 0; i < x.size(); ++i)
    m.variance[view.channel_of(i)] += std::pow(x[i] - m.mean[view.channel_of(i)], 2) / view.per_channel();
  return m;
}

constexpr double kEps = 1e-5;

Numbers normalized(const ChannelView& view, const Numbers& x, const Moments& m, const Numbers& weight,
                   const Numbers& bias) {
  Numbers y;
  for (size_t i = 0; i < x.size(); ++i) {
    int64_t c = view.channel_of(i);
    y.push_back((x[i] - m.mean[c]) / std::sqrt(m.variance[c] + kEps) * weight[c] + bias[c]);
  }
  return y;
}

OpCase batch_norm_row(const std::string& name, Shape x) {
  return {.name = "batch_norm/" + name,
          .inputs = {floats(x, -1, 2), floats({x[1]}, 0.5, 1.5), floats({x[1]})},
          .call = [](const Inputs& in) { return batch_norm(in[0], in[1], in[2], {}, {}, {.eps = kEps}); },
          .shapes = {x},
          .reference =
              [x](const std::vector<Numbers>& in) {
                ChannelView view(x);
                return normalized(view, in[0], moments_of(view, in[0]), in[1], in[2]);
              },
          .bf16_tolerance = 3e-2};
}

Moments running_statistics(int64_t channels) {
  Moments m;
  for (int64_t c = 0; c < channels; ++c) {
    m.mean.push_back(0.1 * static_cast<double>(c) - 0.2);
    m.variance.push_back(0.5 + 0.25 * static_cast<double>(c));
  }
  return m;
}

OpCase batch_norm_inference_row(const std::string& name, Shape x) {
  auto call = [](const Inputs& in) {
    Moments m = running_statistics(in[0].size(1));
    auto mean = Variable::from<double>(std::span<const double>(m.mean), {in[0].size(1)}, in[0].device());
    auto variance = Variable::from<double>(std::span<const double>(m.variance), {in[0].size(1)}, in[0].device());
    return batch_norm(in[0], in[1], in[2], mean, variance, {.training = false, .eps = kEps});
  };
  return {.name = "batch_norm/" + name,
          .inputs = {floats(x), floats({x[1]}, 0.5, 1.5), floats({x[1]})},
          .call = call,
          .shapes = {x},
          .reference = [x](const std::vector<Numbers>& in) {
            return normalized(ChannelView(x), in[0], running_statistics(x[1]), in[1], in[2]);
          }};
}

const bool batch_norm_rows = add_op_cases({
    batch_norm_row("images", {3, 4, 5, 3}),
    batch_norm_row("matrix", {7, 5}),
    batch_norm_row("sequence", {2, 3, 9}),
    batch_norm_row("one_channel", {4, 1, 3, 3}),
    batch_norm_row("many_channels", {2, 37, 2, 2}),
    batch_norm_row("one_image", {1, 3, 4, 4}),
    batch_norm_row("empty_batch", {0, 3, 4, 4}),
    batch_norm_inference_row("running_statistics", {3, 4, 5, 3}),
    batch_norm_inference_row("running_statistics_of_one_row", {1, 5}),
});

// The statistics op by itself, of numbers whose mean is far from zero.
const bool statistics_rows = add_op_cases({
    {.name = "batch_norm_statistics/far_from_zero",
     .inputs = {floats({3, 4, 5, 7}, 1000, 1001)},
     .call =
         [](const Inputs& in) { return Tensor(trace_op_all(find_op("batch_norm_statistics"), std::vector{in[0]})[1]); },
     .shapes = {{4}},
     .reference =
         [](const std::vector<Numbers>& in) {
           return moments_of(ChannelView({3, 4, 5, 7}), in[0]).variance;
         },
     .differentiable = false,
     .runs_in_bf16 = false},
});

// ---- images ----

// Values are in image_test.cpp: the op computes in f32 only.
OpCase image_row(const std::string& name, bool channels_last, DType dtype) {
  Shape pixels = channels_last ? Shape{2, 5, 7, 3} : Shape{2, 3, 5, 7};
  auto call = [=](const Inputs& in) {
    return normalize_image(in[0], in[1].to(DType::f32), in[2].to(DType::f32),
                           {.channels_last = channels_last, .dtype = dtype});
  };
  return {
      .name = "normalize_image/" + name,
      .inputs = {integers(pixels, 0, 256, DType::u8), constant_floats({3}, 0.3, 0.6), constant_floats({3}, 0.2, 0.3)},
      .call = call,
      .shapes = {{2, 3, 5, 7}},
      .dtypes = {dtype},
      .differentiable = false,
      .runs_in_bf16 = false};
}

const bool image_rows = add_op_cases({
    image_row("planes", false, DType::f32),
    image_row("interleaved", true, DType::f32),
    image_row("to_bf16", true, DType::bf16),
});

// ---- errors ----

const bool errors = add_error_cases({
    error_case<ShapeError>("max_pool2d/kernel_too_large",
                           [] {
                             max_pool2d(zeros({1, 1, 2, 2}), {.kernel = {3, 3}});
                           },
                           {"[max_pool2d]", "[3, 3]", "[1, 1, 2, 2]"}),
    error_case<ShapeError>("max_pool2d/padding",
                           [] {
                             max_pool2d(zeros({1, 1, 8, 8}), {.kernel = {2, 2}, .padding = {2, 2}});
                           },
                           {"[max_pool2d]", "padding [2, 2]", "half"}),
    error_case<ShapeError>("max_pool2d/rank",
                           [] {
                             max_pool2d(zeros({8, 8}), {.kernel = {2}});
                           },
                           {"[max_pool2d]", "rank 2", "4"}),
    error_case<ShapeError>("max_pool2d/no_kernel",
                           [] {
                             max_pool2d(zeros({1, 1, 8, 8}), {.kernel = {}});
                           },
                           {"[max_pool2d]", "kernel is []"}),
    error_case<ShapeError>("avg_pool2d/integers",
                           [] {
                             avg_pool2d(zeros({1, 1, 8, 8}, DType::i32), {.kernel = {2}});
                           },
                           {"[avg_pool2d]", "floating"}),
    error_case<ShapeError>("adaptive_avg_pool2d/no_pixels",
                           [] {
                             adaptive_avg_pool2d(zeros({1, 1, 0, 8}), {1, 1});
                           },
                           {"[adaptive_avg_pool2d]", "[1, 1, 0, 8]"}),
    error_case<ShapeError>("batch_norm/rank", [] { batch_norm(zeros({5}), {}, {}, {}, {}); }, {"[batch_norm]", "[5]"}),
    error_case<ShapeError>("batch_norm/one_value",
                           [] {
                             batch_norm(zeros({1, 3}), {}, {}, {}, {});
                           },
                           {"[batch_norm]", "more than one value", "[1, 3]"}),
    error_case<ShapeError>("batch_norm/weight",
                           [] {
                             batch_norm(zeros({4, 3}), zeros({4}), zeros({3}), {}, {});
                           },
                           {"[batch_norm_normalize]", "weight", "[4]", "[3]"}),
    error_case<GraphError>("batch_norm/no_running_statistics",
                           [] {
                             batch_norm(zeros({4, 3}), {}, {}, {}, {}, {.training = false});
                           },
                           {"[batch_norm]", "running"}),
    error_case<ShapeError>("normalize_image/type",
                           [] {
                             normalize_image(zeros({1, 3, 2, 2}), zeros({3}), ones({3}));
                           },
                           {"[normalize_image]", "pixels", "u8"}),
    error_case<ShapeError>("normalize_image/channels",
                           [] {
                             normalize_image(zeros({1, 3, 2, 2}, DType::u8), zeros({2}), ones({2}));
                           },
                           {"[normalize_image]", "mean", "[2]", "[3]"}),
});

}  // namespace

}  // namespace bonfire::op_test::cases_image
