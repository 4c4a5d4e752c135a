#include "bonfire/backend/cpu/convolution/convolution_core_depthwise.h"

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "bonfire/backend/cpu/gemm/gemm_driver.h"
#include "bonfire/base/error.h"

namespace bonfire::cpu {

namespace {

template <class Element>
using SumOf = std::conditional_t<std::is_same_v<Element, double>, double, float>;

// One channel of one image: element (y, x) is data[y * row + x * col].
template <class Element>
struct Plane {
  Element* data;
  int64_t row, col;
};

template <class Element>
Plane<Element> plane(Element* image, const Convolution& c, int64_t channels, int64_t height, int64_t width, int64_t n,
                     int64_t channel) {
  image += n * channels * height * width + channel * (c.channels_last ? 1 : height * width);
  return {image, c.channels_last ? width * channels : width, c.channels_last ? channels : 1};
}

template <class Element>
auto x_plane(Element* x, const Convolution& c, int64_t n, int64_t channel) {
  return plane(x, c, c.in_channels, c.in_height, c.in_width, n, channel);
}
template <class Element>
auto y_plane(Element* y, const Convolution& c, int64_t n, int64_t channel) {
  return plane(y, c, c.out_channels, c.out_height(), c.out_width(), n, channel);
}

// The columns of y for which tap s lies inside x.
struct Columns {
  int64_t begin, end;
  Columns(const Convolution& c, int64_t s) {
    const int64_t shift = s * c.dilation_width - c.padding_width;  // x = column * stride + shift
    begin = std::clamp<int64_t>(shift >= 0 ? 0 : (-shift + c.stride_width - 1) / c.stride_width, 0, c.out_width());
    end = c.in_width <= shift
              ? begin
              : std::clamp<int64_t>((c.in_width - shift - 1) / c.stride_width + 1, begin, c.out_width());
  }
};

template <class Acc>
Acc activated(Acc value, Activation activation) {
  if (activation == Activation::relu) return value < 0 ? Acc{0} : value;
  if (activation == Activation::gelu_tanh)
    return value / 2 *
           (1 + std::tanh(static_cast<Acc>(0.79788456080286535588) *
                          (value + static_cast<Acc>(0.044715) * value * value * value)));
  return value;
}

// Each task has one row of sums to itself.
template <class Acc>
Acc* row_of(const Convolution& c, std::span<std::byte> workspace, int64_t slot) {
  const int64_t width = std::max(c.out_width(), c.in_width);
  BONFIRE_CHECK(workspace.size() >= static_cast<size_t>((slot + 1) * width) * sizeof(Acc));
  return reinterpret_cast<Acc*>(workspace.data()) + slot * width;
}

template <class Body>
void by_type(DType type, const Body& body) {
  if (type == DType::f64)
    body(double{});
  else if (type == DType::bf16)
    body(bfloat16{});
  else
    body(float{});
}

// Weights are [out_channels, kernel_height, kernel_width] in either layout.
template <class Element>
void forward_row(const Convolution& c, const Plane<const Element>& x, const Element* weight, int64_t oy,
                 SumOf<Element>* sum) {
  for (int64_t r = 0; r < c.kernel_height; ++r) {
    const int64_t iy = oy * c.stride_height - c.padding_height + r * c.dilation_height;
    if (iy < 0 || iy >= c.in_height) continue;
    for (int64_t s = 0; s < c.kernel_width; ++s) {
      const Columns columns(c, s);
      const Element* from = x.data + iy * x.row;
      const int64_t shift = s * c.dilation_width - c.padding_width;
      const SumOf<Element> w = weight[r * c.kernel_width + s];
      for (int64_t ox = columns.begin; ox < columns.end; ++ox)
        sum[ox] += w * static_cast<SumOf<Element>>(from[(ox * c.stride_width + shift) * x.col]);
    }
  }
}

template <class Element>
void backward_data_row(const Convolution& c, const Plane<const Element>& dy, const Element* weight, int64_t iy,
                       SumOf<Element>* sum) {
  for (int64_t r = 0; r < c.kernel_height; ++r) {
    const int64_t scaled = iy + c.padding_height - r * c.dilation_height;
    if (scaled < 0 || scaled % c.stride_height != 0 || scaled / c.stride_height >= c.out_height()) continue;
    const Element* from = dy.data + scaled / c.stride_height * dy.row;
    for (int64_t s = 0; s < c.kernel_width; ++s) {
      const Columns columns(c, s);
      const int64_t shift = s * c.dilation_width - c.padding_width;
      const SumOf<Element> w = weight[r * c.kernel_width + s];
      for (int64_t ox = columns.begin; ox < columns.end; ++ox)
        sum[ox * c.stride_width + shift] += w * static_cast<SumOf<Element>>(from[ox * dy.col]);
    }
  }
}

// The gradient of one weight, from one image.
template <class Element>
double weight_sum(const Convolution& c, const Plane<const Element>& x, const Plane<const Element>& dy, int64_t r,
                  int64_t s) {
  const Columns columns(c, s);
  const int64_t shift = s * c.dilation_width - c.padding_width;
  double total = 0;
  for (int64_t oy = 0; oy < c.out_height(); ++oy) {
    const int64_t iy = oy * c.stride_height - c.padding_height + r * c.dilation_height;
    if (iy < 0 || iy >= c.in_height) continue;
    SumOf<Element> row = 0;
    for (int64_t ox = columns.begin; ox < columns.end; ++ox)
      row += static_cast<SumOf<Element>>(dy.data[oy * dy.row + ox * dy.col]) *
             static_cast<SumOf<Element>>(x.data[iy * x.row + (ox * c.stride_width + shift) * x.col]);
    total += static_cast<double>(row);
  }
  return total;
}

}  // namespace

size_t depthwise_workspace(const Convolution& c, int threads) {
  const size_t element = c.type == DType::f64 ? sizeof(double) : sizeof(float);
  return static_cast<size_t>(std::max(c.out_width(), c.in_width) * threads) * element;
}

void depthwise_forward(const Convolution& c, const void* x, const void* weight, const void* bias, Activation activation,
                       void* y, std::span<std::byte> workspace, ThreadPool& pool) {
  const int64_t taps = c.kernel_height * c.kernel_width, multiplier = c.out_channels / c.groups;
  by_type(c.type, [&]<class Element>(Element) {
    using Acc = SumOf<Element>;
    for_each_task(&pool, pool.size(), c.batch * c.out_channels, [&](int64_t slot, int64_t task) {
      const int64_t n = task / c.out_channels, o = task % c.out_channels;
      Acc* sum = row_of<Acc>(c, workspace, slot);
      const auto from = x_plane(static_cast<const Element*>(x), c, n, o / multiplier);
      const auto to = y_plane(static_cast<Element*>(y), c, n, o);
      const Acc start = bias ? static_cast<Acc>(static_cast<const Element*>(bias)[o]) : Acc{0};
      for (int64_t oy = 0; oy < c.out_height(); ++oy) {
        std::fill_n(sum, c.out_width(), start);
        forward_row(c, from, static_cast<const Element*>(weight) + o * taps, oy, sum);
        for (int64_t ox = 0; ox < c.out_width(); ++ox)
          to.data[oy * to.row + ox * to.col] = static_cast<Element>(activated(sum[ox], activation));
      }
    });
  });
}

void depthwise_backward_data(const Convolution& c, const void* dy, const void* weight, bool accumulate, void* dx,
                             std::span<std::byte> workspace, ThreadPool& pool) {
  const int64_t taps = c.kernel_height * c.kernel_width, multiplier = c.out_channels / c.groups;
  by_type(c.type, [&]<class Element>(Element) {
    using Acc = SumOf<Element>;
    for_each_task(&pool, pool.size(), c.batch * c.in_channels, [&](int64_t slot, int64_t task) {
      const int64_t n = task / c.in_channels, channel = task % c.in_channels;
      Acc* sum = row_of<Acc>(c, workspace, slot);
      const auto to = x_plane(static_cast<Element*>(dx), c, n, channel);
      for (int64_t iy = 0; iy < c.in_height; ++iy) {
        std::fill_n(sum, c.in_width, Acc{0});
        for (int64_t o = channel * multiplier; o < (channel + 1) * multiplier; ++o)
          backward_data_row(c, y_plane(static_cast<const Element*>(dy), c, n, o),
                            static_cast<const Element*>(weight) + o * taps, iy, sum);
        for (int64_t ix = 0; ix < c.in_width; ++ix) {
          Element& out = to.data[iy * to.row + ix * to.col];
          out = static_cast<Element>(accumulate ? sum[ix] + static_cast<Acc>(out) : sum[ix]);
        }
      }
    });
  });
}

void depthwise_backward_weight(const Convolution& c, const void* x, const void* dy, bool accumulate, void* dweight,
                               ThreadPool& pool) {
  const int64_t taps = c.kernel_height * c.kernel_width, multiplier = c.out_channels / c.groups;
  by_type(c.type, [&]<class Element>(Element) {
    pool.run(c.out_channels, [&](int64_t o) {
      for (int64_t tap = 0; tap < taps; ++tap) {
        double total = 0;
        for (int64_t n = 0; n < c.batch; ++n)
          total +=
              weight_sum(c, x_plane(static_cast<const Element*>(x), c, n, o / multiplier),
                         y_plane(static_cast<const Element*>(dy), c, n, o), tap / c.kernel_width, tap % c.kernel_width);
        by_type(c.weight_gradient, [&]<class Out>(Out) {
          Out& out = static_cast<Out*>(dweight)[o * taps + tap];
          if (accumulate) total += static_cast<double>(out);
          if constexpr (std::is_same_v<Out, double>)
            out = total;
          else
            out = static_cast<float>(total);
        });
      }
    });
  });
}

}  // namespace bonfire::cpu
