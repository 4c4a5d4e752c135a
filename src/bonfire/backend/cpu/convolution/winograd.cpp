// How the work is cut. Where there are many tiles, the transformed weights are computed first, by all threads. A task
// is then a block of tiles: it transforms their patches to memory that stays in the second-level cache, and goes
// through the output channels panel by panel, multiplying at each position and transforming the products to results.
// Where the weights are the larger part, it is the other way round: the patches are transformed first, and a task is a
// panel, whose weights it transforms. The gradient by the input is the same convolution of dy with weights turned
// round.
//
// For the gradient by the weight, the tiles are cut into a few parts, whose sums are kept apart and added at the end.
// Where there are too many weights for that, blocks of tiles (all of them, where the weights are the larger part) are
// transformed by all threads together, and a task is some rows and columns of the weights, at all or some positions: so
// no sums have to be added across threads.

#include "bonfire/backend/cpu/convolution/winograd.h"

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "bonfire/backend/cpu/convolution/winograd_tiles.h"
#include "bonfire/backend/cpu/convolution/winograd_zeros.h"
#include "bonfire/backend/cpu/gemm/gemm_driver.h"
#include "bonfire/base/error.h"

namespace bonfire::cpu {

namespace {

constexpr int64_t kFloat = sizeof(float);
constexpr int64_t kBlockBytes = 768 << 10;    // of the transformed patches that a thread works on
constexpr int64_t kFewestTiles = 56;          // of a block: weights are read once per block
constexpr int64_t kWeightBytes = 4 << 20;     // transformed weights, or sums for them, that should not leave the cache
constexpr int64_t kPatchBytes = 6 << 20;      // of transformed patches that may, instead of those
constexpr int64_t kPanelBytes = 640 << 10;    // transformed weights of a panel that stay in the second-level cache
constexpr int64_t kGroupsTogether = 4;        // groups of tiles that are multiplied by the same weights in turn
constexpr int64_t kChunk = 256;               // input channels whose weights a thread transforms at a time
constexpr int64_t kSummedBytes = 1536 << 10;  // of transformed tiles whose products are summed by all threads
constexpr int64_t kFewestSummedTiles = 64;    // sums are read and written once per block
constexpr int64_t kSummedGroup = 16;          // tiles
constexpr int64_t kPartBytes = 6 << 20;       // of sums, when parts of the tiles are summed apart
constexpr int64_t kMostParts = 8;
constexpr int64_t kMostRows = 64;   // of a gradient by the weight, that a task sums
constexpr int64_t kAlignment = 64;  // bytes

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
int64_t round_up(int64_t a, int64_t b) { return ceil_div(a, b) * b; }

const WinogradKernel& kernel_for(const Convolution& c, int tile) {
  BONFIRE_CHECK(winograd_serves(c, tile), "F({}) for {} x {} kernels in {}", tile, c.kernel_height, c.kernel_width,
                name_of(c.type));
  return *winograd_kernel(tile, c.kernel_height);
}

template <class Element>
const Element* part_of(const void* numbers, int64_t offset) {
  return numbers ? static_cast<const Element*>(numbers) + offset : nullptr;
}

// Hands out aligned parts of a workspace, or, without one, counts how large it must be.
class Parts {
 public:
  explicit Parts(std::byte* base) : base_(base) {}
  float* take(int64_t count) { return take_bytes<float>(count * static_cast<int64_t>(sizeof(float))); }
  template <class T>
  T* take_bytes(int64_t bytes) {
    T* part = base_ ? reinterpret_cast<T*>(base_ + used_) : nullptr;
    used_ += round_up(bytes, kAlignment);
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

// y = x * weight as tiles see it, x [batch, height, width, K] and y [batch, height, width, columns].
struct TiledConvolution {
  WinogradImage x, y;
  int64_t shift_y, shift_x;  // from a pixel of y to the first it sees in x
  // Tap t of weight (k, column) is weight[t * tap_stride + k * k_stride + column * column_stride]; one stride is 1.
  int64_t tap_stride, k_stride, column_stride;
  bool reversed;  // taps from the last to the first
};

WinogradImage x_of(const Convolution& c) { return {c.batch, c.in_height, c.in_width, c.in_channels}; }
WinogradImage y_of(const Convolution& c) { return {c.batch, c.out_height(), c.out_width(), c.out_channels}; }

TiledConvolution forward_tiles(const Convolution& c) {
  return {.x = x_of(c),
          .y = y_of(c),
          .shift_y = -c.padding_height,
          .shift_x = -c.padding_width,
          .tap_stride = c.in_channels,
          .k_stride = 1,
          .column_stride = c.kernel_height * c.kernel_width * c.in_channels,
          .reversed = false};
}

TiledConvolution backward_tiles(const Convolution& c) {
  return {.x = y_of(c),
          .y = x_of(c),
          .shift_y = c.padding_height - (c.kernel_height - 1),
          .shift_x = c.padding_width - (c.kernel_width - 1),
          .tap_stride = c.in_channels,
          .k_stride = c.kernel_height * c.kernel_width * c.in_channels,
          .column_stride = 1,
          .reversed = true};
}

// Element as in WinogradMemory.
template <class Element>
class TiledProduct {
 public:
  TiledProduct(const TiledConvolution& convolution, const WinogradKernel& kernel, int threads, Zeros zeros)
      : t_(convolution),
        zeros_(zeros),
        blank_(t_.x, t_.y, t_.shift_y, t_.shift_x, kernel.kernel, kernel.tile),
        kernel_(kernel),
        memory_(kernel.memory<Element>()),
        positions_(kernel.positions()),
        grid_(t_.y, kernel.tile),
        panels_(ceil_div(t_.y.channels, kernel_.panel)),
        weights_(positions_, 1, 1, 1),
        patches_(weights_),
        products_(weights_) {
    const int64_t tile_bytes = positions_ * t_.x.channels * kFloat, panel_bytes = tile_bytes * kernel_.panel;
    by_panels_ = panels_ * panel_bytes > kWeightBytes && grid_.count * tile_bytes < kPatchBytes &&
                 (panels_ % threads == 0 || panels_ >= 4 * threads);
    block_ = grid_.count;
    if (!by_panels_) {
      const int64_t most = std::max(kFewestTiles, kBlockBytes / tile_bytes);
      block_ = ceil_div(grid_.count, round_up(ceil_div(grid_.count, most), threads));
    }
    blocks_ = ceil_div(grid_.count, block_);
    const int64_t group = ceil_div(block_, ceil_div(block_, kernel_.rows));
    chunk_ = by_panels_ ? std::min(kChunk, t_.x.channels) : t_.x.channels;
    weights_ = WinogradPlaces(positions_, chunk_, kernel_.panel, kernel_.panel);
    patches_ = WinogradPlaces(positions_, group, t_.x.channels, kernel_.lanes);
    products_ = WinogradPlaces(positions_, group, kernel_.panel, kernel_.panel);
    together_ = chunk_ < t_.x.channels ? block_ : panel_bytes <= kPanelBytes ? group : kGroupsTogether * group;
    slots_ = std::min<int64_t>(threads, by_panels_ ? panels_ : blocks_);
    Parts shared(nullptr), slot(nullptr);
    shared_bytes_ = (Shared(*this, shared), shared.used());
    slot_bytes_ = (Slot(*this, slot), slot.used());
  }

  int64_t bytes() const { return shared_bytes_ + slots_ * slot_bytes_; }

  void run(const Element* x, const Element* weight, ConvolutionEpilogue epilogue, Element* y, std::byte* workspace,
           ThreadPool& pool) const {
    Parts parts(workspace);
    const Shared shared(*this, parts);
    if (epilogue.bias) {
      std::fill_n(shared.bias, panels_ * kernel_.panel, 0.0F);
      memory_.copy(1, static_cast<int>(t_.y.channels), static_cast<const Element*>(epilogue.bias), 0, shared.bias, 0);
      epilogue.bias = shared.bias;
    }
    auto slot_at = [&](int64_t index) {
      Parts own(workspace + shared_bytes_ + index * slot_bytes_);
      return Slot(*this, own);
    };
    const WinogradSource<Element> patches{
        t_.x, grid_, x, t_.shift_y, t_.shift_x, kernel_.patch(), memory_.transform_patch};
    // What is in the cache for the transform is looked at.
    auto transform = [&](int64_t first, int64_t end, int64_t slot, float* to, uint32_t* blank) {
      for (int64_t tile = first; tile < end; ++tile, ++slot) {
        patches.run(tile, tile + 1, slot, to, patches_);
        if (blank) blank[slot] = blank_.of_tile(x, grid_.image(tile), grid_.top(tile), grid_.left(tile));
      }
    };
    if (by_panels_) {
      pool.parallel_for(grid_.count, 4, [&](int64_t first, int64_t end) {
        transform(first, end, first, shared.patches, shared.blank);
      });
      for_each_task(&pool, slots_, panels_,
                    [&](int64_t slot, int64_t panel) { run_panel(panel, weight, shared, slot_at(slot), epilogue, y); });
    } else {
      transform_all_weights(weight, shared.weights, pool);
      for_each_task(&pool, slots_, blocks_, [&](int64_t slot, int64_t block) {
        const int64_t first = block * block_, tiles = std::min(block_, grid_.count - first);
        const Slot own = slot_at(slot);
        transform(first, first + tiles, 0, own.patches, own.blank);
        run_block(first, tiles, shared, own, epilogue, y);
      });
    }
  }

 private:
  // What all threads read: the bias, filled up with zeros to whole panels; transformed weights of all panels, or, by
  // panels, patches of all tiles, and which of their results are blank, where that matters.
  struct Shared {
    float *bias, *weights, *patches;
    uint32_t* blank;
    Shared(const TiledProduct& p, Parts& parts)
        : bias(parts.take(p.panels_ * p.kernel_.panel)),
          weights(parts.take(p.by_panels_ ? 0 : p.panels_ * p.panel_weights())),
          patches(parts.take(p.by_panels_ ? p.patches_.size(p.grid_.count) : 0)),
          blank(p.take_blank(parts, p.by_panels_ ? p.grid_.count : 0)) {}
  };
  // What a thread has for itself: patches of a block with what is blank there, or some weights of a panel; products
  // that wait for their sums.
  struct Slot {
    float *weights, *patches, *products;
    uint32_t* blank;
    Slot(const TiledProduct& p, Parts& parts)
        : weights(parts.take(p.by_panels_ ? p.panel_weights() : 0)),
          patches(parts.take(p.by_panels_ ? 0 : p.patches_.size(p.block_))),
          products(parts.take(p.products_.size(p.together_))),
          blank(p.take_blank(parts, p.by_panels_ ? 0 : p.block_)) {}
  };

  uint32_t* take_blank(Parts& parts, int64_t tiles) const {
    if (zeros_ == Zeros::lost || tiles == 0) return nullptr;
    return parts.take_bytes<uint32_t>(tiles * static_cast<int64_t>(sizeof(uint32_t)));
  }

  int64_t panel_weights() const { return weights_.group_stride; }

  void run_panel(int64_t panel, const Element* weight, const Shared& shared, const Slot& slot,
                 const ConvolutionEpilogue& epilogue, Element* y) const {
    for (int64_t k = 0; k < t_.x.channels; k += chunk_) {
      const int64_t end = std::min(k + chunk_, t_.x.channels);
      for (int64_t part = k; part < end; part += kernel_.lanes)
        transform_weights(weight, panel, part, slot.weights + weights_.offset(part - k));
      for (int64_t tile = 0; tile < grid_.count; tile += together_) {
        const int64_t count = std::min(together_, grid_.count - tile);
        multiply(panel, count, end - k,
                 shared.patches + patches_.offset(tile) + k / kernel_.lanes * patches_.block_stride, slot.weights,
                 slot.products, k > 0);
        if (end == t_.x.channels) finish(panel, tile, count, slot.products, from(shared.blank, tile), epilogue, y);
      }
    }
  }

  void run_block(int64_t first, int64_t tiles, const Shared& shared, const Slot& slot,
                 const ConvolutionEpilogue& epilogue, Element* y) const {
    for (int64_t panel = 0; panel < panels_; ++panel)
      for (int64_t tile = 0; tile < tiles; tile += together_) {
        const int64_t count = std::min(together_, tiles - tile);
        multiply(panel, count, t_.x.channels, slot.patches + patches_.offset(tile),
                 shared.weights + panel * panel_weights(), slot.products, false);
        finish(panel, first + tile, count, slot.products, from(slot.blank, tile), epilogue, y);
      }
  }

  void transform_all_weights(const Element* weight, float* to, ThreadPool& pool) const {
    const int64_t parts = ceil_div(t_.x.channels, kernel_.lanes);
    pool.parallel_for(panels_ * parts, 4, [&](int64_t begin, int64_t end) {
      for (int64_t task = begin; task < end; ++task)
        transform_weights(weight, task / parts, task % parts * kernel_.lanes,
                          to + task / parts * panel_weights() + weights_.offset(task % parts * kernel_.lanes));
    });
  }

  // Those of a panel, for as many input channels as a vector has lanes.
  void transform_weights(const Element* weight, int64_t panel, int64_t k_begin, float* to) const {
    constexpr int kMaxTaps = kMaxWinogradKernel * kMaxWinogradKernel;
    constexpr int kAhead = 8;  // input channels whose weights are fetched from memory meanwhile
    const int count = static_cast<int>(std::min<int64_t>(kernel_.lanes, t_.x.channels - k_begin));
    const int taps = kernel_.taps();
    const int64_t first = panel * kernel_.panel, end = std::min(first + kernel_.panel, t_.y.channels);
    for (int64_t column = first; column < end; column += kernel_.lanes) {
      const int columns = static_cast<int>(std::min<int64_t>(kernel_.lanes, end - column));
      const Element* from = weight + k_begin * t_.k_stride + column * t_.column_stride;
      const bool copied = !std::is_same_v<Element, float> || t_.column_stride != 1 || columns < kernel_.lanes;
      float copy[kMaxTaps][kMaxWinogradLanes * kMaxWinogradLanes];  // [tap][k][column]
      if (columns < kernel_.lanes)  // what is missing is multiplied too, and tiny numbers would be slow
        std::fill_n(copy[0], taps * kMaxWinogradLanes * kMaxWinogradLanes, 0.0F);
      const float* tap[kMaxTaps];
      for (int t = 0; t < taps; ++t) {
        const Element* numbers = from + (t_.reversed ? taps - 1 - t : t) * t_.tap_stride;
        tap[t] = copy[t];
        if constexpr (std::is_same_v<Element, float>)
          if (!copied) tap[t] = numbers;
        if (copied && t_.column_stride == 1)
          memory_.copy(count, columns, numbers, t_.k_stride, copy[t], kMaxWinogradLanes);
        else if (copied)
          memory_.transpose(columns, count, numbers, t_.column_stride, copy[t], kMaxWinogradLanes);
      }
      const int64_t step = copied ? kMaxWinogradLanes : t_.k_stride;
      for (int k = 0; k < count; ++k) {
        kernel_.transform_weights(tap, to + k * kernel_.panel + column - first, weights_.position_stride);
        for (int t = 0; t < taps; ++t) {
          tap[t] += step;
          if (!copied) __builtin_prefetch(tap[t] + kAhead * step);
        }
      }
    }
  }

  // The products of `tiles` tiles with `k` input channels.
  void multiply(int64_t panel, int64_t tiles, int64_t k, const float* patches, const float* weights, float* products,
                bool add) const {
    const int columns = columns_of(panel);
    for (int64_t p = 0; p < positions_; ++p) {
      const float* left = patches + p * patches_.position_stride;
      float* out = products + p * products_.position_stride;
      for (int64_t tile = 0; tile < tiles; tile += patches_.group) {
        kernel_.multiply(static_cast<int>(std::min(patches_.group, tiles - tile)), columns, k, left,
                         patches_.block_stride, weights + p * weights_.position_stride, out, add);
        left += patches_.group_stride;
        out += products_.group_stride;
      }
    }
  }

  static const uint32_t* from(const uint32_t* blank, int64_t tile) { return blank ? blank + tile : nullptr; }

  // Products to results, for tiles from number `first` of the grid. `blank`: of each, or null.
  void finish(int64_t panel, int64_t first, int64_t tiles, const float* products, const uint32_t* blank,
              const ConvolutionEpilogue& epilogue, Element* y) const {
    const int64_t channel = panel * kernel_.panel;
    WinogradResult<Element> result{.products = nullptr,
                                   .position_stride = products_.position_stride,
                                   .channels = columns_of(panel),
                                   .pixels = {},
                                   .out = y + channel,
                                   .bias = part_of<float>(epilogue.bias, channel),
                                   .residual = part_of<Element>(epilogue.residual, channel),
                                   .relu = epilogue.relu};
    for (int64_t tile = 0; tile < tiles; ++tile) {
      const int64_t index = first + tile;
      result.products = products + products_.offset(tile);
      result.pixels = t_.y.pixels(grid_.image(index), grid_.top(index), grid_.left(index), kernel_.tile);
      result.blank = blank ? blank[tile] : 0;
      memory_.finish(result);
    }
  }

  int columns_of(int64_t panel) const {
    return static_cast<int>(std::min<int64_t>(kernel_.panel, t_.y.channels - panel * kernel_.panel));
  }

  TiledConvolution t_;
  Zeros zeros_;
  BlankResults<Element> blank_;
  const WinogradKernel& kernel_;
  const WinogradMemory<Element>& memory_;
  int positions_;
  WinogradGrid grid_;
  int64_t panels_;  // of columns
  WinogradPlaces weights_, patches_, products_;
  int64_t block_, blocks_;  // tiles of a block, and how many blocks
  int64_t together_;        // tiles whose products are computed before their results
  int64_t chunk_;           // input channels whose weights are there at a time
  bool by_panels_;
  int64_t slots_, slot_bytes_, shared_bytes_;
};

// dweight(o, tap, c) from dy transformed as left operand (rows are o) and x as right one (columns are c).
template <class Element>
class WeightGradient {
 public:
  WeightGradient(const Convolution& c, int tile, int threads, Zeros zeros)
      : zeros_(zeros),
        x_(x_of(c)),
        y_(y_of(c)),
        shift_y_(-c.padding_height),
        shift_x_(-c.padding_width),
        kernel_(kernel_for(c, tile)),
        memory_(kernel_.memory<Element>()),
        positions_(kernel_.positions()),
        grid_(y_, tile),
        panels_(ceil_div(x_.channels, kernel_.panel)),
        patches_(positions_, kSummedGroup, x_.channels, kernel_.panel),
        gradients_(positions_, kSummedGroup, y_.channels, kernel_.lanes) {
    const int64_t tile_bytes = positions_ * (x_.channels + y_.channels) * kFloat;
    const int64_t sum_bytes = positions_ * x_.channels * y_.channels * kFloat;
    const bool at_once = sum_bytes > kWeightBytes && grid_.count * tile_bytes < kPatchBytes;
    const int64_t most = at_once ? grid_.count : std::max(kFewestSummedTiles, kSummedBytes / tile_bytes);
    block_ = ceil_div(grid_.count, ceil_div(grid_.count, most));
    chunk_ = std::min(kMostRows, round_up(y_.channels, kernel_.lanes));
    chunks_ = ceil_div(y_.channels, chunk_);
    areas_ = panels_ * chunks_;
    parts_ = std::clamp<int64_t>(kPartBytes / sum_bytes, 1, std::min(kMostParts, ceil_div(grid_.count, block_)));
    splits_ = threads == 1 || parts_ > 1 ? 1 : std::clamp<int64_t>(ceil_div(4 * threads, areas_), 1, positions_);
    slots_ = std::min<int64_t>(threads, parts_ > 1 ? parts_ : areas_ * splits_);
    Parts parts(nullptr);
    bytes_ = (Memory(*this, parts), parts.used());
  }

  int64_t bytes() const { return bytes_; }

  void run(const Element* x, const Element* dy, Element* dweight, std::byte* workspace, ThreadPool& pool) const {
    Parts parts(workspace);
    const Memory memory(*this, parts);
    const Source of_x{x_, grid_, x, shift_y_, shift_x_, kernel_.patch(), memory_.transform_patch};
    const Source of_dy{y_, grid_, dy, 0, 0, kernel_.tile, memory_.transform_gradient};
    FewProducts<Element> few = few_products();
    few.begin(x, dy, memory.few);
    const Result result{dweight, zeros_ == Zeros::kept ? &few : nullptr};
    if (parts_ > 1)
      run_parts(of_x, of_dy, memory, result, pool);
    else
      run_areas(of_x, of_dy, memory, result, pool);
  }

 private:
  using Source = WinogradSource<Element>;

  struct Memory {
    float* patches;    // of a block; per slot where there are parts
    float* gradients;  // likewise
    float* sums;       // per part and area, or, where they do not stay, per slot: [position][o][c]
    std::byte* few;    // of FewProducts
    Memory(const WeightGradient& g, Parts& parts) {
      const int64_t blocks = g.parts_ > 1 ? g.slots_ : 1;
      patches = parts.take(blocks * g.patches_.size(g.block_));
      gradients = parts.take(blocks * g.gradients_.size(g.block_));
      sums = parts.take((g.sums_stay() ? g.parts_ * g.areas_ : g.slots_) * g.sum_count());
      few = parts.take_bytes<std::byte>(g.zeros_ == Zeros::kept ? g.few_products().bytes() : 0);
    }
  };
  struct Result {
    Element* dweight;
    FewProducts<Element>* few;  // null where zeros do not matter
  };

  FewProducts<Element> few_products() const { return {x_, y_, shift_y_, shift_x_, kernel_.kernel}; }

  // Every thread transforms and sums tiles of its own; the sums of all parts are added at the end.
  void run_parts(const Source& of_x, const Source& of_dy, const Memory& memory, const Result& result,
                 ThreadPool& pool) const {
    const int64_t part_sums = areas_ * sum_count();
    for_each_task(&pool, slots_, parts_, [&](int64_t slot, int64_t part) {
      Memory own = memory;
      own.patches += slot * patches_.size(block_);
      own.gradients += slot * gradients_.size(block_);
      const int64_t begin = grid_.count * part / parts_, end = grid_.count * (part + 1) / parts_;
      for (int64_t first = begin; first < end; first += block_) {
        const int64_t tiles = std::min(block_, end - first);
        of_x.run(first, first + tiles, 0, own.patches, patches_);
        of_dy.run(first, first + tiles, 0, own.gradients, gradients_);
        for (int64_t area = 0; area < areas_; ++area)
          add_tiles(area, 0, positions_, tiles, own, memory.sums + part * part_sums + area * sum_count(),
                    first > begin);
      }
    });
    pool.parallel_for(areas_ * positions_, 1, [&](int64_t begin, int64_t end) {
      for (int64_t part = 1; part < parts_; ++part)
        for (int64_t i = begin * position_sums(); i < end * position_sums(); ++i)
          memory.sums[i] += memory.sums[part * part_sums + i];
    });
    pool.run(areas_, [&](int64_t area) { finish(area, memory.sums + area * sum_count(), result); });
  }

  // All threads transform a block of tiles, and then share out areas, or positions of areas, of its sums.
  void run_areas(const Source& of_x, const Source& of_dy, const Memory& memory, const Result& result,
                 ThreadPool& pool) const {
    for (int64_t first = 0; first < grid_.count; first += block_) {
      const int64_t tiles = std::min(block_, grid_.count - first);
      pool.parallel_for(tiles, 4, [&](int64_t begin, int64_t end) {
        of_x.run(first + begin, first + end, begin, memory.patches, patches_);
        of_dy.run(first + begin, first + end, begin, memory.gradients, gradients_);
      });
      for_each_task(&pool, slots_, areas_ * splits_, [&](int64_t slot, int64_t task) {
        const int64_t area = task / splits_, split = task % splits_;
        float* sums = memory.sums + (sums_stay() ? area : slot) * sum_count();
        add_tiles(area, positions_ * split / splits_, positions_ * (split + 1) / splits_, tiles, memory, sums,
                  first > 0);
        if (splits_ == 1 && first + tiles == grid_.count) finish(area, sums, result);
      });
    }
    if (splits_ > 1) pool.run(areas_, [&](int64_t area) { finish(area, memory.sums + area * sum_count(), result); });
  }

  // From one block to the next, or until all their positions are there.
  bool sums_stay() const { return block_ < grid_.count || splits_ > 1 || parts_ > 1; }
  int64_t position_sums() const { return chunk_ * kernel_.panel + kernel_.lanes; }
  int64_t sum_count() const { return positions_ * position_sums(); }

  // An area is a chunk of rows o by a panel of columns c.
  int64_t row_of(int64_t area) const { return area % chunks_ * chunk_; }
  int64_t rows_of(int64_t area) const { return std::min(chunk_, y_.channels - row_of(area)); }
  int64_t column_of(int64_t area) const { return area / chunks_ * kernel_.panel; }
  int columns_of(int64_t area) const {
    return static_cast<int>(std::min<int64_t>(kernel_.panel, x_.channels - column_of(area)));
  }

  void add_tiles(int64_t area, int64_t begin, int64_t end, int64_t tiles, const Memory& memory, float* sums,
                 bool add) const {
    const float* left = memory.gradients + row_of(area) / kernel_.lanes * gradients_.block_stride;
    const float* right = memory.patches + column_of(area) / kernel_.panel * patches_.block_stride;
    for (int64_t p = begin; p < end; ++p)
      kernel_.multiply_over_tiles(rows_of(area), columns_of(area), tiles, left + p * gradients_.position_stride,
                                  gradients_, right + p * patches_.position_stride, patches_,
                                  sums + p * position_sums(), add);
  }

  void finish(int64_t area, const float* sums, const Result& result) const {
    // Of the largest of a weight's sums: noise is far below this, and grows with the square root of their number.
    const float doubt =
        result.few == nullptr ? 0 : 0x1p-16F * static_cast<float>(std::sqrt(static_cast<double>(grid_.count)));
    WinogradTap doubtful[kMaxPanelWidth * kMaxWinogradKernel * kMaxWinogradKernel];
    for (int64_t r = 0; r < rows_of(area); ++r) {
      const int64_t o = row_of(area) + r;
      Element* taps = result.dweight + o * kernel_.taps() * x_.channels + column_of(area);
      const int noted = memory_.finish_weights(sums + r * kernel_.panel, position_sums(), columns_of(area), taps,
                                               x_.channels, doubt, doubtful);
      for (const WinogradTap& one : std::span(doubtful, static_cast<size_t>(noted)))
        if (std::optional<Element> sum = result.few->sum(o, one.tap, column_of(area) + one.channel))
          taps[one.tap * x_.channels + one.channel] = *sum;
    }
  }

  Zeros zeros_;
  WinogradImage x_, y_;
  int64_t shift_y_, shift_x_;
  const WinogradKernel& kernel_;
  const WinogradMemory<Element>& memory_;
  int positions_;
  WinogradGrid grid_;
  int64_t panels_;  // of c
  WinogradPlaces patches_, gradients_;
  int64_t block_;           // tiles; the same for any number of threads, because it decides the order of additions
  int64_t chunk_, chunks_;  // rows o of an area, and how many chunks there are
  int64_t parts_;           // of the tiles, whose sums are kept apart; the same for any number of threads too
  int64_t areas_, splits_;  // a task is an area, or, where those are few, some positions of one
  int64_t slots_, bytes_;
};

// Calls body with a number of the type that stands for the convolution's in WinogradMemory.
template <class Body>
auto with_element(const Convolution& c, const Body& body) {
  return c.type == DType::bf16 ? body(uint16_t{}) : body(float{});
}

void run_tiles(const Convolution& c, const TiledConvolution& tiles, int tile, const void* x, const void* weight,
               const ConvolutionEpilogue& epilogue, void* y, std::span<std::byte> workspace, ThreadPool& pool,
               Zeros zeros) {
  with_element(c, [&](auto element) {
    using Element = decltype(element);
    const TiledProduct<Element> product(tiles, kernel_for(c, tile), pool.size(), zeros);
    product.run(static_cast<const Element*>(x), static_cast<const Element*>(weight), epilogue, static_cast<Element*>(y),
                aligned(workspace, product.bytes()), pool);
  });
}

}  // namespace

bool winograd_serves(const Convolution& c, int tile) {
  return (c.type == DType::f32 || c.type == DType::bf16) && c.weight_gradient == c.type && c.channels_last &&
         c.groups == 1 && c.kernel_height == c.kernel_width && winograd_kernel(tile, c.kernel_height) != nullptr &&
         c.stride_height == 1 && c.stride_width == 1 && c.dilation_height == 1 && c.dilation_width == 1 &&
         c.batch * c.out_height() * c.out_width() > 0;
}

size_t winograd_workspace(const Convolution& c, ConvolutionPass pass, int tile, int threads, Zeros zeros) {
  const WinogradKernel& kernel = kernel_for(c, tile);
  return with_element(c, [&](auto element) {
    using Element = decltype(element);
    const int64_t bytes = pass == ConvolutionPass::forward
                              ? TiledProduct<Element>(forward_tiles(c), kernel, threads, zeros).bytes()
                          : pass == ConvolutionPass::backward_data
                              ? TiledProduct<Element>(backward_tiles(c), kernel, threads, zeros).bytes()
                              : WeightGradient<Element>(c, tile, threads, zeros).bytes();
    return static_cast<size_t>(bytes + kAlignment);
  });
}

void winograd_forward(const Convolution& c, int tile, const void* x, const void* weight,
                      const ConvolutionEpilogue& epilogue, void* y, std::span<std::byte> workspace, ThreadPool& pool,
                      Zeros zeros) {
  run_tiles(c, forward_tiles(c), tile, x, weight, epilogue, y, workspace, pool, zeros);
}

void winograd_backward_data(const Convolution& c, int tile, const void* dy, const void* weight, void* dx,
                            std::span<std::byte> workspace, ThreadPool& pool, Zeros zeros) {
  run_tiles(c, backward_tiles(c), tile, dy, weight, {}, dx, workspace, pool, zeros);
}

void winograd_backward_weight(const Convolution& c, int tile, const void* x, const void* dy, void* dweight,
                              std::span<std::byte> workspace, ThreadPool& pool, Zeros zeros) {
  with_element(c, [&](auto element) {
    using Element = decltype(element);
    const WeightGradient<Element> gradient(c, tile, pool.size(), zeros);
    gradient.run(static_cast<const Element*>(x), static_cast<const Element*>(dy), static_cast<Element*>(dweight),
                 aligned(workspace, gradient.bytes()), pool);
  });
}

}  // namespace bonfire::cpu
