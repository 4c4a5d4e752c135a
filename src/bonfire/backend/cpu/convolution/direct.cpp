// A task is some rows of pixels of one image. The rows of the image that they see are copied with their zero padding to
// memory that stays in the cache, so that the innermost loops know no borders. Gradients by the weight are summed in a
// number of parts that follows from the shape alone.

#include "bonfire/backend/cpu/convolution/direct.h"

#include <algorithm>
#include <type_traits>
#include <vector>

#include "bonfire/backend/cpu/convolution/convolution_core_phase.h"
#include "bonfire/backend/cpu/convolution/direct_kernel.h"
#include "bonfire/backend/cpu/gemm/gemm_driver.h"
#include "bonfire/base/error.h"

namespace bonfire::cpu {

namespace {

constexpr int64_t kFewChannels = 4;      // with more, products of matrices are as fast
constexpr int64_t kRowElements = 32768;  // of padded rows that a task works on
constexpr int64_t kParts = 32;           // of a gradient by the weight
constexpr int64_t kSlack = 16;           // elements after padded rows that may be read: a vector
constexpr int64_t kLine = 16;            // elements; parts of the workspace begin at multiples

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
int64_t round_up(int64_t a, int64_t b) { return ceil_div(a, b) * b; }

bool is_channelwise(const Convolution& c) { return is_depthwise(c) && c.out_channels == c.in_channels; }

// Pixels and what they see: pixel (row, col) with tap (r, s) sees row * step_y + first_y + tap_y[r] of an image, and
// columns likewise; taps are >= 0.
struct DirectGrid {
  int64_t height, width, channels;  // of the image
  int64_t rows, cols;               // of pixels
  int64_t step_y, step_x, first_y, first_x;
  std::vector<int64_t> tap_y, tap_x;

  int64_t span_y() const { return 1 + *std::max_element(tap_y.begin(), tap_y.end()); }
  int64_t span_x() const { return 1 + *std::max_element(tap_x.begin(), tap_x.end()); }
  int64_t padded_cols() const { return (cols - 1) * step_x + span_x(); }
  int64_t pitch() const { return padded_cols() * channels; }  // elements of a padded row
  int64_t rows_together() const {
    const int64_t room = kRowElements / std::max<int64_t>(1, pitch()) - span_y();
    return std::clamp<int64_t>(room / step_y + 1, 1, rows);
  }
  int64_t blocks() const { return ceil_div(rows, rows_together()); }
  int64_t scratch() const { return ((rows_together() - 1) * step_y + span_y()) * pitch() + kSlack; }

  // Copies what pixels of rows [row, row + count) see in an image.
  template <class Element>
  void copy(const Element* image, int64_t row, int64_t count, float* to) const {
    const int64_t padded = padded_cols(), begin = std::clamp<int64_t>(-first_x, 0, padded);
    const int64_t end = std::clamp<int64_t>(width - first_x, begin, padded);
    for (int64_t i = 0; i < (count - 1) * step_y + span_y(); ++i, to += pitch()) {
      const int64_t y = row * step_y + first_y + i;
      if (y < 0 || y >= height) {
        std::fill_n(to, pitch(), 0.0F);
        continue;
      }
      std::fill_n(to, begin * channels, 0.0F);
      std::copy_n(image + (y * width + first_x + begin) * channels, (end - begin) * channels, to + begin * channels);
      std::fill(to + end * channels, to + pitch(), 0.0F);
    }
  }

  // Of taps in padded rows, with a number for each channel where `by_channel`.
  std::vector<int64_t> offsets(bool by_channel) const {
    std::vector<int64_t> all;
    for (int64_t y : tap_y)
      for (int64_t x : tap_x)
        for (int64_t c = 0; c < (by_channel ? channels : 1); ++c) all.push_back(y * pitch() + x * channels + c);
    return all;
  }
};

std::vector<int64_t> spaced(int64_t count, int64_t distance) {
  std::vector<int64_t> positions;
  for (int64_t i = 0; i < count; ++i) positions.push_back(i * distance);
  return positions;
}

DirectGrid forward_grid(const Convolution& c) {
  return {.height = c.in_height,
          .width = c.in_width,
          .channels = c.in_channels,
          .rows = c.out_height(),
          .cols = c.out_width(),
          .step_y = c.stride_height,
          .step_x = c.stride_width,
          .first_y = -c.padding_height,
          .first_x = -c.padding_width,
          .tap_y = spaced(c.kernel_height, c.dilation_height),
          .tap_x = spaced(c.kernel_width, c.dilation_width)};
}

// Hands out parts of a workspace, or, without one, counts how large it must be.
class Parts {
 public:
  explicit Parts(float* base) : base_(base) {}
  float* take(int64_t count) {
    float* part = base_ ? base_ + used_ : nullptr;
    used_ += round_up(count, kLine);
    return part;
  }
  int64_t used() const { return used_; }

 private:
  float* base_;
  int64_t used_ = 0;
};

// Where the results of a grid go.
struct DirectOutput {
  int64_t image_stride, row_stride, pixel_stride, first;
};

template <class Element>
class DirectPass {
 public:
  DirectPass(const Convolution& c, int threads)
      : c_(c),
        kernel_(vector_table<DirectKernel>()),
        depthwise_(is_channelwise(c)),
        taps_(c.kernel_height * c.kernel_width * (depthwise_ ? 1 : c.in_channels)),
        width_(depthwise_ ? round_up(c.out_channels, kernel_.lanes) : round_up(c.out_channels, kernel_.panel)),
        threads_(threads) {}

  int64_t forward_elements() const { return shared_elements() + threads_ * slot_elements(forward_grid(c_)); }
  int64_t backward_elements() const {
    int64_t largest = 0;
    each_phase([&](const DirectGrid& grid, const DirectOutput&, const std::vector<int64_t>&) {
      largest = std::max(largest, slot_elements(grid));
    });
    return shared_elements() + threads_ * largest;
  }
  int64_t weight_elements() const {
    const DirectGrid grid = forward_grid(c_);
    return parts(grid) * round_up(taps_ * width_, kLine) + threads_ * weight_slot(grid);
  }

  void forward(const Element* x, const Element* weight, ConvolutionEpilogue epilogue, Element* y, float* workspace,
               ThreadPool& pool) const {
    Parts memory(workspace);
    float* arranged = memory.take(taps_ * width_);
    float* bias = memory.take(width_);
    std::vector<int64_t> all(static_cast<size_t>(taps_));
    for (int64_t t = 0; t < taps_; ++t) all[static_cast<size_t>(t)] = t;
    arrange(weight, all, arranged);
    if (epilogue.bias) {
      std::fill_n(std::copy_n(static_cast<const Element*>(epilogue.bias), c_.out_channels, bias),
                  width_ - c_.out_channels, 0.0F);
      epilogue.bias = bias;
    }
    const int64_t o = c_.out_channels, row = c_.out_width() * o;
    run(forward_grid(c_), {c_.out_height() * row, row, o, 0}, x, arranged, epilogue, y, workspace + memory.used(),
        pool);
  }

  void backward_data(const Element* dy, const Element* weight, Element* dx, float* workspace, ThreadPool& pool) const {
    Parts memory(workspace);
    float* arranged = memory.take(taps_ * width_);
    memory.take(width_);
    each_phase([&](const DirectGrid& grid, const DirectOutput& output, const std::vector<int64_t>& taps) {
      arrange(weight, taps, arranged);
      run(grid, output, dy, arranged, {}, dx, workspace + memory.used(), pool);
    });
  }

  void backward_weight(const Element* x, const Element* dy, Element* dweight, float* workspace,
                       ThreadPool& pool) const {
    const DirectGrid grid = forward_grid(c_);
    const int64_t count = round_up(taps_ * width_, kLine), units = c_.batch * grid.blocks();
    float* scratch = workspace + parts(grid) * count;
    const std::vector<int64_t> offset = grid.offsets(!depthwise_);
    const DirectTaps taps{static_cast<int>(offset.size()), offset.data(), grid.step_x * grid.channels};
    for_each_task(&pool, threads_, parts(grid), [&](int64_t slot, int64_t part) {
      float* sums = workspace + part * count;
      std::fill_n(sums, count, 0.0F);
      for (int64_t unit = units * part / parts(grid); unit < units * (part + 1) / parts(grid); ++unit)
        add_gradient(grid, taps, unit, x, dy, scratch + slot * weight_slot(grid), sums);
    });
    for (int64_t part = 1; part < parts(grid); ++part)
      for (int64_t i = 0; i < count; ++i) workspace[i] += workspace[part * count + i];
    for (int64_t o = 0; o < c_.out_channels; ++o)
      for (int64_t t = 0; t < taps_; ++t) dweight[o * taps_ + t] = static_cast<Element>(workspace[place(o, t)]);
  }

 private:
  int64_t shared_elements() const { return round_up(taps_ * width_, kLine) + round_up(width_, kLine); }

  // Of weight (o, tap) once arranged: [o / panel][tap][o % panel], or [tap][o] when depthwise.
  int64_t place(int64_t o, int64_t tap) const {
    if (depthwise_) return tap * width_ + o;
    return (o / kernel_.panel * taps_ + tap) * kernel_.panel + o % kernel_.panel;
  }

  // Weights of the given taps.
  void arrange(const Element* weight, const std::vector<int64_t>& taps, float* to) const {
    std::fill_n(to, taps_ * width_, 0.0F);
    for (int64_t o = 0; o < c_.out_channels; ++o)
      for (size_t t = 0; t < taps.size(); ++t) to[place(o, static_cast<int64_t>(t))] = weight[o * taps_ + taps[t]];
  }

  // Padded rows, and, where results are not f32, a row of them.
  int64_t slot_elements(const DirectGrid& grid) const {
    return round_up(grid.scratch(), kLine) + (kWide ? 0 : round_up(grid.cols * c_.out_channels, kLine));
  }

  void run(const DirectGrid& grid, const DirectOutput& output, const Element* x, const float* weight,
           const ConvolutionEpilogue& epilogue, Element* y, float* scratch, ThreadPool& pool) const {
    const std::vector<int64_t> offset = grid.offsets(!depthwise_);
    const DirectTaps taps{static_cast<int>(offset.size()), offset.data(), grid.step_x * grid.channels};
    const int64_t together = grid.rows_together(), slot_size = slot_elements(grid);
    for_each_task(&pool, threads_, c_.batch * grid.blocks(), [&](int64_t slot, int64_t task) {
      const int64_t n = task / grid.blocks(), first = task % grid.blocks() * together;
      const int64_t count = std::min(together, grid.rows - first);
      float* rows = scratch + slot * slot_size;
      float* narrow = rows + round_up(grid.scratch(), kLine);
      grid.copy(x + n * grid.height * grid.width * grid.channels, first, count, rows);
      for (int64_t row = first; row < first + count; ++row, rows += grid.step_y * grid.pitch())
        run_row(grid, taps, rows, weight, epilogue, output.pixel_stride,
                output.first + n * output.image_stride + row * output.row_stride, y, narrow);
    });
  }

  // One row of results, from y[at]; bf16 by way of f32 in `wide`.
  void run_row(const DirectGrid& grid, const DirectTaps& taps, const float* x, const float* weight,
               const ConvolutionEpilogue& epilogue, int64_t pixel_stride, int64_t at, Element* y, float* wide) const {
    const auto* residual = static_cast<const Element*>(epilogue.residual);
    if (residual) residual += at;
    DirectResult result{.out = wide,
                        .pixel_stride = c_.out_channels,
                        .bias = static_cast<const float*>(epilogue.bias),
                        .residual = nullptr,
                        .relu = epilogue.relu && (kWide || !residual)};
    if constexpr (kWide) {
      result.out = y + at;
      result.pixel_stride = pixel_stride;
      result.residual = residual;
    }
    if (depthwise_)
      kernel_.depthwise(grid.cols, grid.channels, taps, x, weight, result);
    else
      run_dense(grid.cols, taps, x, weight, result);
    if constexpr (!kWide)
      for (int64_t p = 0; p < grid.cols; ++p, wide += c_.out_channels)
        narrow(wide, residual ? residual + p * pixel_stride : nullptr, epilogue.relu, y + at + p * pixel_stride);
  }

  // The channels of one pixel.
  void narrow(const float* wide, const Element* residual, bool relu, Element* y) const {
    if (residual == nullptr) {
      std::copy_n(wide, c_.out_channels, y);
      return;
    }
    for (int64_t o = 0; o < c_.out_channels; ++o) {
      const float value = wide[o] + static_cast<float>(residual[o]);
      y[o] = static_cast<Element>(relu && value < 0 ? 0.0F : value);  // NaN passes through
    }
  }

  void run_dense(int64_t cols, const DirectTaps& taps, const float* x, const float* weight,
                 const DirectResult& result) const {
    const int64_t runs = ceil_div(cols, kernel_.pixels);
    for (int64_t channel = 0; channel < c_.out_channels; channel += kernel_.panel)
      for (int64_t run = 0; run < runs; ++run) {  // of about as many pixels each
        const int64_t first = cols * run / runs, end = cols * (run + 1) / runs;
        DirectResult part = result;
        const int64_t at = first * result.pixel_stride + channel;
        part.out += at;
        if (part.bias) part.bias += channel;
        if (part.residual) part.residual += at;
        kernel_.dense(static_cast<int>(end - first),
                      static_cast<int>(std::min<int64_t>(kernel_.panel, c_.out_channels - channel)), taps,
                      x + first * taps.step, weight + channel * taps_, part);
      }
  }

  // The gradient by x, depthwise: calls body(grid over dy, where its results go in dx, numbers of its taps).
  template <class Body>
  void each_phase(const Body& body) const {
    const int64_t channels = c_.in_channels, row = c_.in_width * channels;
    for (int64_t py = 0; py < std::min(c_.stride_height, c_.in_height); ++py)
      for (int64_t px = 0; px < std::min(c_.stride_width, c_.in_width); ++px) {
        const ConvolutionPhase y(py, c_.in_height, c_.kernel_height, c_.stride_height, c_.padding_height,
                                 c_.dilation_height);
        const ConvolutionPhase x(px, c_.in_width, c_.kernel_width, c_.stride_width, c_.padding_width,
                                 c_.dilation_width);
        // Steps over dy are negative: taps are taken from the last to the first.
        DirectGrid grid{.height = c_.out_height(),
                        .width = c_.out_width(),
                        .channels = channels,
                        .rows = y.extent,
                        .cols = x.extent,
                        .step_y = 1,
                        .step_x = 1,
                        .first_y = y.first + (y.taps - 1) * y.step,
                        .first_x = x.first + (x.taps - 1) * x.step,
                        .tap_y = spaced(y.taps, -y.step),
                        .tap_x = spaced(x.taps, -x.step)};
        std::vector<int64_t> taps;
        for (int64_t r = y.taps - 1; r >= 0; --r)
          for (int64_t s = x.taps - 1; s >= 0; --s)
            taps.push_back((y.first_tap + r * y.tap_step) * c_.kernel_width + x.first_tap + s * x.tap_step);
        if (taps.empty()) {  // nothing reaches these pixels: a tap of weight zero
          grid.tap_y = grid.tap_x = {0};
          grid.first_y = grid.first_x = -grid.height - grid.width - grid.rows - grid.cols;
        }
        body(grid,
             DirectOutput{c_.in_height * row, c_.stride_height * row, c_.stride_width * channels,
                          py * row + px * channels},
             taps);
      }
  }

  int64_t parts(const DirectGrid& grid) const { return std::min(kParts, c_.batch * grid.blocks()); }

  // Padded rows of x, and rows of dy with room after them.
  int64_t weight_slot(const DirectGrid& grid) const {
    return round_up(grid.scratch(), kLine) +
           round_up(grid.rows_together() * grid.cols * c_.out_channels + width_, kLine);
  }

  void add_gradient(const DirectGrid& grid, const DirectTaps& taps, int64_t unit, const Element* x, const Element* dy,
                    float* scratch, float* sums) const {
    const int64_t n = unit / grid.blocks(), first = unit % grid.blocks() * grid.rows_together();
    const int64_t count = std::min(grid.rows_together(), grid.rows - first), o = c_.out_channels;
    grid.copy(x + n * grid.height * grid.width * grid.channels, first, count, scratch);
    const Element* from = dy + (n * grid.rows + first) * grid.cols * o;
    float* gradient = scratch + round_up(grid.scratch(), kLine);
    const bool at_end = unit == c_.batch * grid.blocks() - 1;  // whole vectors would be read beyond the end of dy
    if (!kWide || at_end) std::fill_n(std::copy_n(from, count * grid.cols * o, gradient), width_, 0.0F);
    DirectRows rows{.rows = count,
                    .pixels = grid.cols,
                    .x = scratch,
                    .x_row_stride = grid.step_y * grid.pitch(),
                    .dy = gradient,
                    .dy_row_stride = grid.cols * o,
                    .dy_pixel_stride = o};
    if constexpr (kWide)
      if (!at_end) rows.dy = from;
    if (depthwise_) return kernel_.depthwise_gradient(o, taps, rows, sums);
    for (int64_t channel = 0; channel < o; channel += kernel_.panel, rows.dy += kernel_.panel)
      kernel_.dense_gradient(static_cast<int>(std::min<int64_t>(kernel_.panel, o - channel)), taps, rows,
                             sums + channel * taps_);
  }

  static constexpr bool kWide = std::is_same_v<Element, float>;

  const Convolution& c_;
  const DirectKernel& kernel_;
  bool depthwise_;
  int64_t taps_;   // of an output channel
  int64_t width_;  // output channels, rounded up
  int threads_;
};

float* aligned(std::span<std::byte> workspace, int64_t elements) {
  constexpr uintptr_t kBytes = kLine * sizeof(float);
  const auto address = (reinterpret_cast<uintptr_t>(workspace.data()) + kBytes - 1) / kBytes * kBytes;
  auto* base = reinterpret_cast<float*>(address);
  BONFIRE_CHECK(reinterpret_cast<std::byte*>(base + elements) <= workspace.data() + workspace.size(),
                "workspace of {} bytes, direct_workspace() says more", workspace.size());
  return base;
}

// Calls body with a DirectPass for the convolution's type.
template <class Body>
auto by_type(const Convolution& c, int threads, const Body& body) {
  if (c.type == DType::bf16) return body(DirectPass<bfloat16>(c, threads), bfloat16{});
  return body(DirectPass<float>(c, threads), float{});
}

}  // namespace

bool direct_serves(const Convolution& c, ConvolutionPass pass) {
  if ((c.type != DType::f32 && c.type != DType::bf16) || c.weight_gradient != c.type || !c.channels_last) return false;
  if (c.batch * c.out_height() * c.out_width() == 0) return false;
  return is_channelwise(c) ||
         (c.groups == 1 && c.in_channels <= kFewChannels && pass != ConvolutionPass::backward_data);
}

size_t direct_workspace(const Convolution& c, ConvolutionPass pass, int threads) {
  BONFIRE_CHECK(direct_serves(c, pass));
  const int64_t elements = by_type(c, threads, [&](const auto& direct, auto) {
    switch (pass) {
      case ConvolutionPass::forward: return direct.forward_elements();
      case ConvolutionPass::backward_data: return direct.backward_elements();
      case ConvolutionPass::backward_weight: break;
    }
    return direct.weight_elements();
  });
  return static_cast<size_t>(elements + kLine) * sizeof(float);
}

void direct_forward(const Convolution& c, const void* x, const void* weight, const ConvolutionEpilogue& epilogue,
                    void* y, std::span<std::byte> workspace, ThreadPool& pool) {
  by_type(c, pool.size(), [&]<class Element>(const DirectPass<Element>& direct, Element) {
    direct.forward(static_cast<const Element*>(x), static_cast<const Element*>(weight), epilogue,
                   static_cast<Element*>(y), aligned(workspace, direct.forward_elements()), pool);
  });
}

void direct_backward_data(const Convolution& c, const void* dy, const void* weight, void* dx,
                          std::span<std::byte> workspace, ThreadPool& pool) {
  by_type(c, pool.size(), [&]<class Element>(const DirectPass<Element>& direct, Element) {
    direct.backward_data(static_cast<const Element*>(dy), static_cast<const Element*>(weight),
                         static_cast<Element*>(dx), aligned(workspace, direct.backward_elements()), pool);
  });
}

void direct_backward_weight(const Convolution& c, const void* x, const void* dy, void* dweight,
                            std::span<std::byte> workspace, ThreadPool& pool) {
  by_type(c, pool.size(), [&]<class Element>(const DirectPass<Element>& direct, Element) {
    direct.backward_weight(static_cast<const Element*>(x), static_cast<const Element*>(dy),
                           static_cast<Element*>(dweight), aligned(workspace, direct.weight_elements()), pool);
  });
}

}  // namespace bonfire::cpu
