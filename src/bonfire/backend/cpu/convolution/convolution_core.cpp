#include "bonfire/backend/cpu/convolution/convolution_core.h"

#include <algorithm>
#include <memory>
#include <type_traits>

#include "bonfire/backend/cpu/convolution/convolution_core_depthwise.h"
#include "bonfire/backend/cpu/convolution/convolution_core_patches.h"
#include "bonfire/backend/cpu/convolution/convolution_core_phase.h"
#include "bonfire/backend/cpu/gemm/gemm_driver.h"
#include "bonfire/base/error.h"

namespace bonfire::cpu {

namespace {

int64_t out_extent(int64_t in, int64_t kernel, int64_t stride, int64_t padding, int64_t dilation) {
  const int64_t room = in + 2 * padding - dilation * (kernel - 1) - 1;
  return room < 0 ? 0 : room / stride + 1;
}

// Element strides of an image [batch, channels, height, width].
struct Strides {
  int64_t n, c, y, x;
  Strides(int64_t channels, int64_t height, int64_t width, bool channels_last)
      : n(channels * height * width),
        c(channels_last ? 1 : height * width),
        y(channels_last ? width * channels : width),
        x(channels_last ? channels : 1) {}
};

// The same for weights [out_channels, channels, kernel_height, kernel_width].
Strides weight_strides(const Convolution& c) {
  return {c.in_channels / c.groups, c.kernel_height, c.kernel_width, c.channels_last};
}

Strides x_strides(const Convolution& c) { return {c.in_channels, c.in_height, c.in_width, c.channels_last}; }
Strides y_strides(const Convolution& c) { return {c.out_channels, c.out_height(), c.out_width(), c.channels_last}; }

// Element `offset` of an array; null stays null (when only the size of workspaces is asked for).
template <class T>
T* at(T* base, int64_t offset) {
  return base ? base + offset : nullptr;
}

void* at(void* base, int64_t offset, DType type) {
  return at(static_cast<char*>(base), offset * static_cast<int64_t>(size_of(type)));
}
const void* at(const void* base, int64_t offset, DType type) {
  return at(static_cast<const char*>(base), offset * static_cast<int64_t>(size_of(type)));
}

template <class Element>
using SumOf = std::conditional_t<std::is_same_v<Element, double>, double, float>;

OutputType output_type(DType type) { return type == DType::bf16 ? OutputType::bf16 : OutputType::same; }

// Patches of x as the convolution sees them.
PatchGrid forward_grid(const Convolution& c) {
  const Strides x = x_strides(c);
  return {.batch = c.batch,
          .channels = c.in_channels / c.groups,
          .height = c.in_height,
          .width = c.in_width,
          .stride_n = x.n,
          .stride_c = x.c,
          .stride_y = x.y,
          .stride_x = x.x,
          .rows = c.out_height(),
          .cols = c.out_width(),
          .step_y = c.stride_height,
          .step_x = c.stride_width,
          .taps_y = c.kernel_height,
          .taps_x = c.kernel_width,
          .first_y = -c.padding_height,
          .first_x = -c.padding_width,
          .tap_step_y = c.dilation_height,
          .tap_step_x = c.dilation_width,
          .channels_last = c.channels_last};
}

// Runs a product whose one operand is patches and whose other lies in memory. Row-major images make patches the right
// operand, so that rows of the result are channels; channels-last the left one.
template <class Element, class Body>
void with_patches(bool channels_last, const PanelSource<SumOf<Element>>& patches,
                  const MemorySource<Element, SumOf<Element>>& other, Product<SumOf<Element>> product,
                  const Axis& pixels, int64_t pixel_count, const Axis& channels, int64_t channel_count,
                  const Body& body) {
  product.m = channels_last ? pixel_count : channel_count;
  product.n = channels_last ? channel_count : pixel_count;
  product.rows = channels_last ? pixels : channels;
  product.cols = channels_last ? channels : pixels;
  if (channels_last) {
    product.a = &patches;
    product.b = &other;
  } else {
    product.a = &other;
    product.b = &patches;
  }
  body(product);
}

template <class Element>
struct Forward {
  using Acc = SumOf<Element>;
  const Element* x = nullptr;
  const Element* weight = nullptr;
  const Acc* bias = nullptr;
  Activation activation = Activation::none;
  void* y = nullptr;
  const void* residual = nullptr;

  template <class Body>
  void each_product(const Convolution& c, const Body& body) const {
    const int64_t out_group = c.out_channels / c.groups, in_group = c.in_channels / c.groups;
    const int64_t area = c.out_height() * c.out_width();
    const PatchGrid grid = forward_grid(c);
    const Strides out = y_strides(c);
    for (int64_t g = 0; g < c.groups; ++g) {
      auto patches = patch_source<Element, Acc>(grid, at(x, g * in_group * grid.stride_c), true);
      const MemorySource<Element, Acc> weights(at(weight, g * out_group * grid.patch_size()),
                                               Axis{{out_group, grid.patch_size()}}, Axis{{grid.patch_size(), 1}});
      Product<Acc> product{.k = grid.patch_size(),
                           .out = at(y, g * out_group * out.c, c.type),
                           .out_type = output_type(c.type),
                           .activation = activation,
                           .residual = at(residual, g * out_group * out.c, c.type)};
      (c.channels_last ? product.col_bias : product.row_bias) = at(bias, g * out_group);
      with_patches<Element>(c.channels_last, *patches, weights, product, Axis{{c.batch, out.n}, {area, out.x}},
                            c.batch * area, Axis{{out_group, out.c}}, out_group, body);
    }
  }
};

template <class Element>
struct BackwardData {
  using Acc = SumOf<Element>;
  const Element* dy = nullptr;
  const Element* weight = nullptr;
  bool accumulate = false;
  void* dx = nullptr;

  template <class Body>
  void each_product(const Convolution& c, const Body& body) const {
    for (int64_t py = 0; py < std::min(c.stride_height, c.in_height); ++py)
      for (int64_t px = 0; px < std::min(c.stride_width, c.in_width); ++px) {
        const ConvolutionPhase y(py, c.in_height, c.kernel_height, c.stride_height, c.padding_height,
                                 c.dilation_height);
        const ConvolutionPhase x(px, c.in_width, c.kernel_width, c.stride_width, c.padding_width, c.dilation_width);
        for (int64_t g = 0; g < c.groups; ++g) phase_product(c, y, x, g, body);
      }
  }

  template <class Body>
  void phase_product(const Convolution& c, const ConvolutionPhase& y, const ConvolutionPhase& x, int64_t g,
                     const Body& body) const {
    const int64_t out_group = c.out_channels / c.groups, in_group = c.in_channels / c.groups;
    const Strides in = x_strides(c), out = y_strides(c), w = weight_strides(c);
    const PatchGrid grid{.batch = c.batch,
                         .channels = out_group,
                         .height = c.out_height(),
                         .width = c.out_width(),
                         .stride_n = out.n,
                         .stride_c = out.c,
                         .stride_y = out.y,
                         .stride_x = out.x,
                         .rows = y.extent,
                         .cols = x.extent,
                         .step_y = 1,
                         .step_x = 1,
                         .taps_y = y.taps,
                         .taps_x = x.taps,
                         .first_y = y.first,
                         .first_x = x.first,
                         .tap_step_y = y.step,
                         .tap_step_x = x.step,
                         .channels_last = c.channels_last};
    auto patches = patch_source<Element, Acc>(grid, at(dy, g * out_group * out.c), true);
    const Axis::Dim channel{out_group, w.n}, tap_y{y.taps, y.tap_step * w.y}, tap_x{x.taps, x.tap_step * w.x};
    const MemorySource<Element, Acc> weights(
        at(weight, g * out_group * w.n + y.first_tap * w.y + x.first_tap * w.x), Axis{{in_group, w.c}},
        c.channels_last ? Axis{tap_y, tap_x, channel} : Axis{channel, tap_y, tap_x});
    Product<Acc> product{.k = grid.patch_size(),
                         .out = at(dx, g * in_group * in.c + y.remainder * in.y + x.remainder * in.x, c.type),
                         .out_type = output_type(c.type),
                         .add = accumulate};
    with_patches<Element>(c.channels_last, *patches, weights, product,
                          Axis{{c.batch, in.n}, {y.extent, c.stride_height * in.y}, {x.extent, c.stride_width * in.x}},
                          grid.pixels(), Axis{{in_group, in.c}}, in_group, body);
  }
};

template <class Element>
struct BackwardWeight {
  using Acc = SumOf<Element>;
  const Element* x = nullptr;
  const Element* dy = nullptr;
  bool accumulate = false;
  void* dweight = nullptr;

  template <class Body>
  void each_product(const Convolution& c, const Body& body) const {
    const int64_t out_group = c.out_channels / c.groups, in_group = c.in_channels / c.groups;
    const int64_t area = c.out_height() * c.out_width();
    const PatchGrid grid = forward_grid(c);
    const Strides out = y_strides(c);
    for (int64_t g = 0; g < c.groups; ++g) {
      auto patches = patch_source<Element, Acc>(grid, at(x, g * in_group * grid.stride_c), false);
      const MemorySource<Element, Acc> gradient(at(dy, g * out_group * out.c), Axis{{out_group, out.c}},
                                                Axis{{c.batch, out.n}, {area, out.x}});
      body(Product<Acc>{.m = out_group,
                        .n = grid.patch_size(),
                        .k = c.batch * area,
                        .a = &gradient,
                        .b = patches.get(),
                        .out = at(dweight, g * out_group * grid.patch_size(), c.weight_gradient),
                        .out_type = output_type(c.weight_gradient),
                        .rows = Axis{{out_group, grid.patch_size()}},
                        .cols = Axis{{grid.patch_size(), 1}},
                        .add = accumulate});
    }
  }
};

template <class Pass>
size_t largest_workspace(const Convolution& c, const Pass& pass, int threads) {
  size_t bytes = 0;
  // Groups are alike; of the phases of a gradient by x, any may be the largest.
  Convolution one = c;
  one.groups = 1;
  one.in_channels /= c.groups;
  one.out_channels /= c.groups;
  pass.each_product(one, [&](const auto& product) { bytes = std::max(bytes, product_workspace(product, threads)); });
  return bytes;
}

template <class Pass>
void run(const Convolution& c, const Pass& pass, std::span<std::byte> workspace, ThreadPool& pool) {
  pass.each_product(c, [&](const auto& product) { multiply(product, workspace, &pool); });
}

size_t bias_bytes(const Convolution& c) {
  return c.type == DType::bf16 ? static_cast<size_t>(c.out_channels) * sizeof(float) : 0;
}

// A bias in bf16 is widened into the head of the workspace.
template <class Element>
const SumOf<Element>* wide_bias(const Convolution& c, const void* bias, std::span<std::byte>& workspace) {
  if (bias == nullptr || c.type != DType::bf16) return static_cast<const SumOf<Element>*>(bias);
  auto* wide = reinterpret_cast<SumOf<Element>*>(workspace.data());
  std::copy_n(static_cast<const bfloat16*>(bias), c.out_channels, wide);
  workspace = workspace.subspan(bias_bytes(c));
  return wide;
}

void check(const Convolution& c) {
  BONFIRE_CHECK(c.type == DType::f32 || c.type == DType::bf16 || c.type == DType::f64, "type {}", name_of(c.type));
  BONFIRE_CHECK((c.type == DType::f64) == (c.weight_gradient == DType::f64) && is_floating(c.weight_gradient) &&
                    c.weight_gradient != DType::f16,
                "weight gradient of type {} for {}", name_of(c.weight_gradient), name_of(c.type));
  BONFIRE_CHECK(c.groups > 0 && c.in_channels % c.groups == 0 && c.out_channels % c.groups == 0,
                "{} groups of {} and {} channels", c.groups, c.in_channels, c.out_channels);
  BONFIRE_CHECK(c.stride_height > 0 && c.stride_width > 0 && c.dilation_height > 0 && c.dilation_width > 0 &&
                c.kernel_height > 0 && c.kernel_width > 0 && c.padding_height >= 0 && c.padding_width >= 0);
}

// Calls body with a value of the element type.
template <class Body>
auto by_type(DType type, const Body& body) {
  if (type == DType::f64) return body(double{});
  if (type == DType::bf16) return body(bfloat16{});
  return body(float{});
}

}  // namespace

bool is_depthwise(const Convolution& c) { return c.groups > 1 && c.groups == c.in_channels; }

int64_t Convolution::out_height() const {
  return out_extent(in_height, kernel_height, stride_height, padding_height, dilation_height);
}
int64_t Convolution::out_width() const {
  return out_extent(in_width, kernel_width, stride_width, padding_width, dilation_width);
}

size_t convolution_workspace(const Convolution& c, ConvolutionPass pass, int threads) {
  check(c);
  if (is_depthwise(c)) return depthwise_workspace(c, threads);
  return by_type(c.type, [&]<class Element>(Element) {
    switch (pass) {
      case ConvolutionPass::forward: return bias_bytes(c) + largest_workspace(c, Forward<Element>{}, threads);
      case ConvolutionPass::backward_data: return largest_workspace(c, BackwardData<Element>{}, threads);
      case ConvolutionPass::backward_weight: break;
    }
    return largest_workspace(c, BackwardWeight<Element>{}, threads);
  });
}

void convolution_forward(const Convolution& c, const void* x, const void* weight, const void* bias,
                         Activation activation, void* y, std::span<std::byte> workspace, ThreadPool& pool,
                         const void* residual) {
  check(c);
  BONFIRE_CHECK(residual == nullptr || !is_depthwise(c));
  if (is_depthwise(c)) return depthwise_forward(c, x, weight, bias, activation, y, workspace, pool);
  by_type(c.type, [&]<class Element>(Element) {
    auto* wide = wide_bias<Element>(c, bias, workspace);
    run(c,
        Forward<Element>{static_cast<const Element*>(x), static_cast<const Element*>(weight), wide, activation, y,
                         residual},
        workspace, pool);
  });
}

void convolution_backward_data(const Convolution& c, const void* dy, const void* weight, bool accumulate, void* dx,
                               std::span<std::byte> workspace, ThreadPool& pool) {
  check(c);
  if (is_depthwise(c)) return depthwise_backward_data(c, dy, weight, accumulate, dx, workspace, pool);
  by_type(c.type, [&]<class Element>(Element) {
    run(c, BackwardData<Element>{static_cast<const Element*>(dy), static_cast<const Element*>(weight), accumulate, dx},
        workspace, pool);
  });
}

void convolution_backward_weight(const Convolution& c, const void* x, const void* dy, bool accumulate, void* dweight,
                                 std::span<std::byte> workspace, ThreadPool& pool) {
  check(c);
  if (is_depthwise(c)) return depthwise_backward_weight(c, x, dy, accumulate, dweight, pool);
  by_type(c.type, [&]<class Element>(Element) {
    run(c,
        BackwardWeight<Element>{static_cast<const Element*>(x), static_cast<const Element*>(dy), accumulate, dweight},
        workspace, pool);
  });
}

}  // namespace bonfire::cpu
