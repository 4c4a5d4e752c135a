// How the work is cut. The transformed weights are computed first, by all threads. A task of the forward pass is then a
// block of tiles: it transforms their patches to memory that stays in the second-level cache, and goes through the
// output channels panel by panel, multiplying at each position and transforming the products to results at once. The
// gradient by the input is the same convolution of dy with weights turned round. For the gradient by the weight, blocks
// of tiles are transformed by all threads together, and the sums over their tiles are shared out by position, so that
// no sums have to be added across threads.

#include "bonfire/backend/cpu/winograd.h"

#include <algorithm>

#include "bonfire/backend/cpu/gemm_driver.h"
#include "bonfire/backend/cpu/winograd_tiles.h"
#include "bonfire/base/error.h"

namespace bonfire::cpu {

namespace {

constexpr int64_t kBlockBytes = 768 << 10;      // of transformed tiles that a thread works on
constexpr int64_t kSumBlockBytes = 1536 << 10;  // the same for gradients by the weight, for all threads
constexpr int64_t kFewestTiles = 56;            // of a block: weights are read once per block
constexpr int64_t kFewestSummedTiles = 64;      // sums are read and written once per block
constexpr int64_t kAlignment = 64;              // bytes

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
int64_t round_up(int64_t a, int64_t b) { return ceil_div(a, b) * b; }

int positions_of(const WinogradKernel& kernel) { return (kernel.tile + 2) * (kernel.tile + 2); }

// Hands out aligned parts of a workspace, or, without one, counts how large it must be.
class Parts {
 public:
  explicit Parts(std::byte* base) : base_(base) {}
  float* take(int64_t count) {
    float* part = base_ ? reinterpret_cast<float*>(base_ + used_) : nullptr;
    used_ += round_up(count * static_cast<int64_t>(sizeof(float)), kAlignment);
    return part;
  }
  int64_t used() const { return used_; }

 private:
  std::byte* base_;
  int64_t used_ = 0;
};

std::byte* aligned(std::span<std::byte> workspace, int64_t bytes) {
  const auto address = reinterpret_cast<uintptr_t>(workspace.data());
  std::byte* base = workspace.data() + (round_up(static_cast<int64_t>(address), kAlignment) - address);
  BONFIRE_CHECK(base + bytes <= workspace.data() + workspace.size(),
                "workspace of {} bytes, winograd_workspace() says more", workspace.size());
  return base;
}

// Transforms the patches (or gradients) of tiles [first, end) of a grid.
struct TileSource {
  const WinogradImage& image;
  const WinogradGrid& grid;
  const float* data;
  int64_t shift_y, shift_x;  // from a tile's first result to the first pixel it sees
  int side;                  // pixels that it sees
  const float* zeros;        // [channels], for pixels outside
  void (*transform)(const float* const*, int64_t, float*, const WinogradPlaces&);

  void run(int64_t first, int64_t end, float* to, const WinogradPlaces& places) const {
    int64_t offset[kMaxWinogradPatch * kMaxWinogradPatch];
    const float* pixels[kMaxWinogradPatch * kMaxWinogradPatch];
    for (int64_t index = first; index < end; ++index, to += places.width) {
      pixel_offsets(image, grid.image(index), grid.top(index) + shift_y, grid.left(index) + shift_x, side, offset);
      for (int i = 0; i < side * side; ++i) pixels[i] = offset[i] < 0 ? zeros : data + offset[i];
      transform(pixels, image.channels, to, places);
    }
  }
};

// y = x * weight as tiles see it, x [batch, height, width, K] and y [batch, height, width, columns].
struct TiledConvolution {
  WinogradImage x, y;
  int64_t shift_y, shift_x;  // from a pixel of y to the first it sees in x
  // Tap t of weight (k, column) is weight[t * tap_stride + k * k_stride + column * column_stride]; one stride is 1.
  int64_t tap_stride, k_stride, column_stride;
  bool reversed;  // taps from the last to the first

  static TiledConvolution forward(const Convolution& c);
  static TiledConvolution backward_data(const Convolution& c);
};

WinogradImage x_of(const Convolution& c) { return {c.batch, c.in_height, c.in_width, c.in_channels}; }
WinogradImage y_of(const Convolution& c) { return {c.batch, c.out_height(), c.out_width(), c.out_channels}; }

TiledConvolution TiledConvolution::forward(const Convolution& c) {
  return {.x = x_of(c),
          .y = y_of(c),
          .shift_y = -c.padding_height,
          .shift_x = -c.padding_width,
          .tap_stride = c.in_channels,
          .k_stride = 1,
          .column_stride = 9 * c.in_channels,
          .reversed = false};
}

TiledConvolution TiledConvolution::backward_data(const Convolution& c) {
  return {.x = y_of(c),
          .y = x_of(c),
          .shift_y = c.padding_height - 2,
          .shift_x = c.padding_width - 2,
          .tap_stride = c.in_channels,
          .k_stride = 9 * c.in_channels,
          .column_stride = 1,
          .reversed = true};
}

class TiledProduct {
 public:
  TiledProduct(const TiledConvolution& convolution, int tile, int threads)
      : t_(convolution),
        kernel_(winograd_kernel(tile)),
        positions_(positions_of(kernel_)),
        grid_(t_.y, tile),
        panels_(ceil_div(t_.y.channels, kernel_.panel)) {
    const int64_t tile_bytes = positions_ * (t_.x.channels + kernel_.panel) * static_cast<int64_t>(sizeof(float));
    const int64_t most = std::max(kFewestTiles, kBlockBytes / tile_bytes);
    const int64_t blocks = round_up(ceil_div(grid_.count, most), threads);
    block_ = std::max<int64_t>(1, ceil_div(grid_.count, blocks));
    slots_ = std::min<int64_t>(threads, ceil_div(grid_.count, block_));
    Parts slot(nullptr);
    Slot(*this, slot);
    slot_bytes_ = slot.used();
    Parts shared(nullptr);
    Shared(*this, shared);
    shared_bytes_ = shared.used();
  }

  int64_t bytes() const { return shared_bytes_ + slots_ * slot_bytes_; }

  void run(const float* x, const float* weight, const WinogradEpilogue& epilogue, float* y, std::byte* workspace,
           ThreadPool& pool) const {
    Parts parts(workspace);
    const Shared shared(*this, parts);
    std::fill_n(shared.zeros, t_.x.channels, 0.0F);
    transform_weights(weight, shared.weights, pool);
    const TileSource patches{
        t_.x, grid_, x, t_.shift_y, t_.shift_x, kernel_.tile + 2, shared.zeros, kernel_.transform_patch};
    for_each_task(&pool, slots_, ceil_div(grid_.count, block_), [&](int64_t index, int64_t task) {
      Parts own(workspace + shared_bytes_ + index * slot_bytes_);
      const Slot slot(*this, own);
      const int64_t first = task * block_, tiles = std::min(block_, grid_.count - first);
      const WinogradRoom room(tiles, t_.x.channels, kernel_.lanes);
      patches.run(first, first + tiles, slot.patches, room.places);
      for (int64_t panel = 0; panel < panels_; ++panel)
        compute_panel(first, tiles, panel, shared.weights, slot, room, epilogue, y);
    });
  }

 private:
  struct Shared {
    float* weights;  // [panels][positions][K][panel]
    float* zeros;    // [K]
    Shared(const TiledProduct& p, Parts& parts)
        : weights(parts.take(p.panels_ * p.panel_weights())), zeros(parts.take(p.t_.x.channels)) {}
  };
  struct Slot {
    float* patches;   // [positions][K / lanes][tiles][lanes]
    float* products;  // [positions][tiles][panel]
    Slot(const TiledProduct& p, Parts& parts)
        : patches(parts.take(WinogradRoom(p.block_, p.t_.x.channels, p.kernel_.lanes).size(p.positions_))),
          products(parts.take(WinogradRoom(p.block_, p.kernel_.panel, p.kernel_.panel).size(p.positions_))) {}
  };

  int64_t panel_weights() const { return positions_ * t_.x.channels * kernel_.panel; }

  // Tasks are vectors of columns by stretches of K.
  void transform_weights(const float* weight, float* to, ThreadPool& pool) const {
    const int64_t lanes = kernel_.lanes, vectors = ceil_div(t_.y.channels, lanes);
    const int64_t stretches = ceil_div(t_.x.channels, lanes);
    pool.parallel_for(vectors * stretches, 8, [&](int64_t begin, int64_t end) {
      for (int64_t task = begin; task < end; ++task)
        transform_weights(weight, task / stretches * lanes, task % stretches * lanes, to);
    });
  }

  void transform_weights(const float* weight, int64_t column, int64_t k_begin, float* to) const {
    const int lanes = kernel_.lanes;
    const int columns = static_cast<int>(std::min<int64_t>(lanes, t_.y.channels - column));
    const int count = static_cast<int>(std::min<int64_t>(lanes, t_.x.channels - k_begin));
    float turned[9 * kMaxLanes * kMaxLanes];  // [tap][k][column], where K is the neighbour in memory
    const float* from = weight + k_begin * t_.k_stride + column * t_.column_stride;
    const float* tap[9];
    for (int t = 0; t < 9; ++t) {
      tap[t] = from + (t_.reversed ? 8 - t : t) * t_.tap_stride;
      if (t_.column_stride == 1) continue;
      float* block = turned + t * kMaxLanes * kMaxLanes;
      kernel_.transpose(columns, count, tap[t], t_.column_stride, block, kMaxLanes);
      tap[t] = block;
    }
    const int64_t step = t_.column_stride == 1 ? t_.k_stride : kMaxLanes;
    float* target = to + column / kernel_.panel * panel_weights() + k_begin * kernel_.panel + column % kernel_.panel;
    for (int k = 0; k < count; ++k, target += kernel_.panel) {
      kernel_.transform_weights(tap, columns, target, t_.x.channels * kernel_.panel);
      for (const float*& at : tap) at += step;
    }
  }

  void compute_panel(int64_t first, int64_t tiles, int64_t panel, const float* weights, const Slot& slot,
                     const WinogradRoom& room, const WinogradEpilogue& epilogue, float* y) const {
    const int64_t channel = panel * kernel_.panel;
    const int columns = static_cast<int>(std::min<int64_t>(kernel_.panel, t_.y.channels - channel));
    const WinogradRoom products(tiles, kernel_.panel, kernel_.panel);
    const float* right = weights + panel * panel_weights();
    for (int p = 0; p < positions_; ++p, right += t_.x.channels * kernel_.panel)
      kernel_.multiply(tiles, columns, t_.x.channels, slot.patches + p * room.places.position_stride,
                       room.places.block_stride, right, slot.products + p * products.places.position_stride);
    int64_t pixel[kMaxWinogradPatch * kMaxWinogradPatch];
    for (int64_t i = 0; i < tiles; ++i) {
      const int64_t index = first + i;
      pixel_offsets(t_.y, grid_.image(index), grid_.top(index), grid_.left(index), kernel_.tile, pixel);
      kernel_.finish({.products = slot.products + i * kernel_.panel,
                      .position_stride = products.places.position_stride,
                      .channels = columns,
                      .pixel = pixel,
                      .out = y + channel,
                      .bias = epilogue.bias ? epilogue.bias + channel : nullptr,
                      .residual = epilogue.residual ? epilogue.residual + channel : nullptr,
                      .relu = epilogue.relu});
    }
  }

  static constexpr int kMaxLanes = 16;

  TiledConvolution t_;
  const WinogradKernel& kernel_;
  int positions_;
  WinogradGrid grid_;
  int64_t panels_;  // of columns
  int64_t block_;   // tiles
  int64_t slots_, slot_bytes_, shared_bytes_;
};

// dweight(o, tap, c) from dy transformed as left operand (rows are o) and x as right one (columns are c).
class WeightGradient {
 public:
  WeightGradient(const Convolution& c, int tile)
      : x_(x_of(c)),
        y_(y_of(c)),
        shift_y_(-c.padding_height),
        shift_x_(-c.padding_width),
        kernel_(winograd_kernel(tile)),
        positions_(positions_of(kernel_)),
        grid_(y_, tile),
        panels_(ceil_div(x_.channels, kernel_.panel)) {
    const int64_t tile_bytes = positions_ * (x_.channels + y_.channels) * static_cast<int64_t>(sizeof(float));
    const int64_t blocks = ceil_div(grid_.count, std::max(kFewestSummedTiles, kSumBlockBytes / tile_bytes));
    block_ = ceil_div(grid_.count, std::max<int64_t>(1, blocks));
    Parts parts(nullptr);
    bytes_ = (Memory(*this, parts), parts.used());
  }

  int64_t bytes() const { return bytes_; }

  void run(const float* x, const float* dy, float* dweight, std::byte* workspace, ThreadPool& pool) const {
    Parts parts(workspace);
    const Memory memory(*this, parts);
    std::fill_n(memory.zeros, std::max(x_.channels, y_.channels), 0.0F);
    for (int64_t first = 0; first < grid_.count; first += block_)
      add_block(first, std::min(block_, grid_.count - first), x, dy, memory, pool);
    pool.parallel_for(panels_ * y_.channels, 16, [&](int64_t begin, int64_t end) {
      for (int64_t task = begin; task < end; ++task) {
        const int64_t o = task % y_.channels, channel = task / y_.channels * kernel_.panel;
        kernel_.finish_weights(memory.sums + task * kernel_.panel, panels_ * y_.channels * kernel_.panel,
                               static_cast<int>(std::min<int64_t>(kernel_.panel, x_.channels - channel)),
                               dweight + o * 9 * x_.channels + channel, x_.channels);
      }
    });
  }

 private:
  struct Memory {
    float* patches;    // [positions][c / panel][tiles][panel]
    float* gradients;  // [positions][o / lanes][tiles][lanes]
    float* sums;       // [positions][c / panel][o][panel]
    float* zeros;      // [channels]
    Memory(const WeightGradient& g, Parts& parts)
        : patches(parts.take(WinogradRoom(g.block_, g.x_.channels, g.kernel_.panel).size(g.positions_))),
          gradients(parts.take(WinogradRoom(g.block_, g.y_.channels, g.kernel_.lanes).size(g.positions_))),
          sums(parts.take(g.positions_ * g.panels_ * g.y_.channels * g.kernel_.panel)),
          zeros(parts.take(std::max(g.x_.channels, g.y_.channels))) {}
  };

  void add_block(int64_t first, int64_t tiles, const float* x, const float* dy, const Memory& memory,
                 ThreadPool& pool) const {
    const WinogradRoom patches(tiles, x_.channels, kernel_.panel), gradients(tiles, y_.channels, kernel_.lanes);
    const TileSource of_x{x_, grid_, x, shift_y_, shift_x_, kernel_.tile + 2, memory.zeros, kernel_.transform_patch};
    const TileSource of_dy{y_, grid_, dy, 0, 0, kernel_.tile, memory.zeros, kernel_.transform_gradient};
    pool.parallel_for(tiles, 4, [&](int64_t begin, int64_t end) {
      of_x.run(first + begin, first + end, memory.patches + begin * kernel_.panel, patches.places);
      of_dy.run(first + begin, first + end, memory.gradients + begin * kernel_.lanes, gradients.places);
    });
    for_each_task(&pool, pool.size(), positions_ * panels_, [&](int64_t, int64_t task) {
      const int64_t p = task / panels_, panel = task % panels_;
      kernel_.multiply_over_tiles(
          y_.channels, static_cast<int>(std::min<int64_t>(kernel_.panel, x_.channels - panel * kernel_.panel)), tiles,
          memory.gradients + p * gradients.places.position_stride, gradients.places.block_stride,
          memory.patches + p * patches.places.position_stride + panel * patches.places.block_stride,
          memory.sums + task * y_.channels * kernel_.panel, first > 0);
    });
  }

  WinogradImage x_, y_;
  int64_t shift_y_, shift_x_;
  const WinogradKernel& kernel_;
  int positions_;
  WinogradGrid grid_;
  int64_t panels_;  // of c
  int64_t block_;   // tiles; the same for any number of threads, because it decides the order of additions
  int64_t bytes_;
};

void check(const Convolution& c) {
  BONFIRE_CHECK(winograd_serves(c), "{} x {} kernels in {}", c.kernel_height, c.kernel_width, name_of(c.type));
}

}  // namespace

bool winograd_serves(const Convolution& c) {
  return c.type == DType::f32 && c.weight_gradient == DType::f32 && c.channels_last && c.groups == 1 &&
         c.kernel_height == 3 && c.kernel_width == 3 && c.stride_height == 1 && c.stride_width == 1 &&
         c.dilation_height == 1 && c.dilation_width == 1 && c.batch * c.out_height() * c.out_width() > 0;
}

size_t winograd_workspace(const Convolution& c, ConvolutionPass pass, int tile, int threads) {
  check(c);
  int64_t bytes = 0;
  switch (pass) {
    case ConvolutionPass::forward: bytes = TiledProduct(TiledConvolution::forward(c), tile, threads).bytes(); break;
    case ConvolutionPass::backward_data:
      bytes = TiledProduct(TiledConvolution::backward_data(c), tile, threads).bytes();
      break;
    case ConvolutionPass::backward_weight: bytes = WeightGradient(c, tile).bytes(); break;
  }
  return static_cast<size_t>(bytes + kAlignment);
}

void winograd_forward(const Convolution& c, int tile, const float* x, const float* weight,
                      const WinogradEpilogue& epilogue, float* y, std::span<std::byte> workspace, ThreadPool& pool) {
  check(c);
  const TiledProduct product(TiledConvolution::forward(c), tile, pool.size());
  product.run(x, weight, epilogue, y, aligned(workspace, product.bytes()), pool);
}

void winograd_backward_data(const Convolution& c, int tile, const float* dy, const float* weight, float* dx,
                            std::span<std::byte> workspace, ThreadPool& pool) {
  check(c);
  const TiledProduct product(TiledConvolution::backward_data(c), tile, pool.size());
  product.run(dy, weight, {}, dx, aligned(workspace, product.bytes()), pool);
}

void winograd_backward_weight(const Convolution& c, int tile, const float* x, const float* dy, float* dweight,
                              std::span<std::byte> workspace, ThreadPool& pool) {
  check(c);
  const WeightGradient gradient(c, tile);
  gradient.run(x, dy, dweight, aligned(workspace, gradient.bytes()), pool);
}

}  // namespace bonfire::cpu
