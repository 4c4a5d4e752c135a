#include "bonfire/backend/cpu/gemm/gemm_driver.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "bonfire/base/error.h"
#include "bonfire/tensor/dtype.h"

namespace bonfire::cpu {

namespace {

constexpr int64_t kAlignment = 64;            // bytes, of each part of the workspace
constexpr int64_t kSharedBytes = 16 << 20;    // of an operand that is packed once for all threads
constexpr int64_t kNearBytes = 40 << 10;      // of an operand that fits the first-level cache
constexpr int64_t kInPlaceBytes = 128 << 10;  // of a B that is small enough for a few tiles to use it unpacked
constexpr int64_t kShortestPart = 1024;       // of K, when a small result is cut along K
constexpr int64_t kParts = 16;                // of K: enough for that many threads
constexpr int64_t kPrivateBlockFactor = 2;    // blocks are larger when both operands are packed privately
constexpr int64_t kReduceColumns = 1024;      // columns of a task that sums parts

constexpr int64_t kLeastSplit = 64;      // rows and columns of a product of f32 that is made of bf16's
constexpr double kLeastSplitWork = 1e6;  // and its multiplications

constexpr int64_t kMaxTile = 1024;  // >= mr * nr of every kernel

int threads_of(ThreadPool* pool) { return pool ? pool->size() : 1; }

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
int64_t round_up(int64_t a, int64_t b) { return ceil_div(a, b) * b; }

std::byte* align(std::byte* pointer) {
  auto address = reinterpret_cast<uintptr_t>(pointer);
  return pointer + (round_up(static_cast<int64_t>(address), kAlignment) - static_cast<int64_t>(address));
}

// The distance of neighbouring offsets where it is the same for all (1 for a single one), else 0.
int64_t even_stride(const int64_t* offset, int64_t count) {
  if (count == 1) return 1;
  const int64_t stride = offset[1] - offset[0];
  for (int64_t i = 2; i < count; ++i)
    if (offset[i] - offset[i - 1] != stride) return 0;
  return stride;
}

// Hands out aligned parts of a workspace, or, without one, counts how large it must be.
class Arena {
 public:
  explicit Arena(std::byte* base) : base_(base) {}

  template <class T>
  T* take(int64_t count) {
    std::byte* part = base_ ? base_ + used_ : nullptr;
    used_ += round_up(count * static_cast<int64_t>(sizeof(T)), kAlignment);
    return reinterpret_cast<T*>(part);
  }
  size_t used() const { return static_cast<size_t>(used_); }

 private:
  std::byte* base_;
  int64_t used_ = 0;
};

// How a product is cut into tasks. Only `block_m` and `block_n` depend on the thread count, and they do not change the
// order of additions.
template <class Acc, class Packed>
struct Cut {
  int64_t kc;      // longest slice of K
  int64_t parts;   // of K whose sums are kept apart until the end
  int64_t k_part;  // length of a part, a multiple of kc
  bool share_a, share_b;
  bool a_in_place;           // A is not packed
  bool b_in_place;           // B is not packed, but for a last panel that is no whole number of vectors
  int64_t shared_lanes;      // of the shared operand, packed at a time
  int64_t block_m, block_n;  // of a task
  int64_t slots;             // tasks at a time
  int number_parts;          // of the kernel

  Cut(const Product<Acc>& p, const TileKernel<Acc, Packed>& kernel, int threads) {
    number_parts = kernel.parts;
    const int64_t slices = std::max<int64_t>(1, ceil_div(p.k, kernel.kc));
    kc = round_up(ceil_div(p.k, slices), kernel.group());
    block_m = kPrivateBlockFactor * kernel.block_a;
    block_n = kPrivateBlockFactor * kernel.block_b;
    const int64_t blocks = ceil_div(p.m, block_m) * ceil_div(p.n, block_n);
    parts = std::max<int64_t>(1, std::min(kParts / blocks, p.k / kShortestPart));
    k_part = ceil_div(slices, parts) * kc;
    if (k_part > 0) parts = ceil_div(p.k, k_part);
    slots = 2.0 * static_cast<double>(p.m) * static_cast<double>(p.n) * static_cast<double>(p.k) < kernel.alone
                ? 1
                : threads;

    // Packing B does not pay when each of its numbers is used by one tile, or when it lies in a cache near enough.
    const int64_t tiles = ceil_div(p.m, kernel.mr), b_bytes = p.n * p.k * static_cast<int64_t>(sizeof(Acc));
    b_in_place = std::is_same_v<Acc, Packed> && parts == 1 && p.b->step_in_place() != 0 &&
                 (tiles == 1 || b_bytes <= kNearBytes || (tiles <= 6 && b_bytes <= kInPlaceBytes));
    const bool stream_a = p.m >= p.n && !b_in_place;
    const int64_t width = stream_a ? kernel.nr : kernel.mr;
    const int64_t lanes = stream_a ? p.n : p.m;
    const int64_t shared_numbers = kSharedBytes / static_cast<int64_t>(sizeof(Packed)) / kernel.parts;
    shared_lanes = shared_numbers / std::max<int64_t>(1, p.k) / width * width;
    // Sums of a bf16 result are kept per task while K runs over several slices.
    if (p.out_type == OutputType::bf16) shared_lanes = std::min(shared_lanes, 2048 / width * width);
    const bool share = parts == 1 && shared_lanes >= std::min<int64_t>(lanes, 256);
    shared_lanes = std::min(shared_lanes, round_up(lanes, width));
    share_a = share && !stream_a;
    share_b = share && stream_a;
    b_in_place = b_in_place && share_a;
    a_in_place = multiplies_in_place(p, kernel);
    if (share_a) {
      block_m = shared_lanes;
      block_n = balanced(p.n, kernel.block_b, kernel.nr);
    } else if (share_b) {
      block_m = balanced(p.m, kernel.block_a, kernel.mr);
      block_n = shared_lanes;
    } else {
      block_m = std::min(round_up(block_m, kernel.mr), round_up(p.m, kernel.mr));
      block_n = std::min(round_up(block_n, kernel.nr), round_up(p.n, kernel.nr));
    }
  }

 private:
  // Packing A does not pay when it lies in the first-level cache, or when each of its numbers is used by two tiles and
  // memory is read in its order.
  static bool multiplies_in_place(const Product<Acc>& p, const TileKernel<Acc, Packed>& kernel) {
    if (p.m == 1 || p.k == 0) return false;
    if (!std::is_same_v<Acc, Packed>) {  // packing whole tiles is a mere copy, which pays when all is far apart
      const bool whole = p.m % kernel.lanes == 0 && p.k % kernel.group() == 0;
      return kernel.multiply_rows && p.a->bf16_lane_in_place() != 0 && whole && (p.k <= 512 || p.n <= 512);
    }
    const bool small = p.m * p.k * static_cast<int64_t>(sizeof(Acc)) <= kNearBytes;
    if (kernel.multiply_rows && p.a->lane_in_place() != 0) return small || p.n <= 2 * kernel.nr;
    return small && p.a->step_in_place() != 0;
  }

  // Lanes of a block such that all slots get the same number of blocks.
  int64_t balanced(int64_t lanes, int64_t block, int64_t width) const {
    int64_t blocks = round_up(ceil_div(lanes, block), slots);
    return round_up(ceil_div(lanes, blocks), width);
  }
};

// What a task needs for itself.
template <class Acc, class Packed>
struct Slot {
  Packed* a;  // [block_m, kc] as panels, when A is packed and not shared
  Packed* b;  // [block_n, kc] as panels, when B is not shared
  std::span<Acc> scratch_a, scratch_b;
  Acc* sums;            // [block_m, block_n], for a bf16 result
  int64_t* row_offset;  // [block_m]
  int64_t* row_stride;  // [block_m / mr]: between the rows of a tile, 0 when it varies
  int64_t* col_offset;  // [block_n]

  Slot(const Product<Acc>& p, const Cut<Acc, Packed>& cut, Arena& arena) {
    a = arena.take<Packed>(cut.share_a || cut.a_in_place ? 0 : cut.block_m * cut.kc * cut.number_parts);
    b = arena.take<Packed>(cut.share_b ? 0
                                       : (cut.b_in_place ? kMaxPanelWidth : cut.block_n) * cut.kc * cut.number_parts);
    auto scratch = [&](const PanelSource<Acc>& source, int64_t lanes) -> std::span<Acc> {
      int64_t size = source.scratch_size(lanes, cut.kc);
      return {arena.take<Acc>(size), static_cast<size_t>(size)};
    };
    scratch_a = scratch(*p.a, cut.block_m);
    scratch_b = scratch(*p.b, cut.block_n);
    bool several_slices = cut.kc < p.k;
    sums = arena.take<Acc>(p.out_type == OutputType::bf16 && several_slices ? cut.block_m * cut.block_n : 0);
    row_offset = arena.take<int64_t>(cut.block_m);
    row_stride = arena.take<int64_t>(cut.block_m);
    col_offset = arena.take<int64_t>(cut.block_n);
  }
};

template <class Acc, class Packed>
class Multiplication {
 public:
  Multiplication(const Product<Acc>& product, const TileKernel<Acc, Packed>& kernel, std::byte* workspace,
                 ThreadPool* pool, int threads)
      : p_(product), kernel_(kernel), cut_(product, kernel_, threads), pool_(pool) {
    Arena arena(workspace);
    partial_stride_ = round_up(p_.n, kernel_.nr);
    if (cut_.parts > 1) partial_ = arena.take<Acc>(cut_.parts * p_.m * partial_stride_);
    if ((cut_.share_a && !cut_.a_in_place) || cut_.share_b)
      shared_ = arena.take<Packed>(cut_.shared_lanes * kernel_.layout_a().steps(p_.k));
    slots_ = workspace ? workspace + arena.used() : nullptr;
    Arena slot(nullptr);
    Slot<Acc, Packed>(p_, cut_, slot);
    slot_bytes_ = slot.used();
    bytes_ = arena.used() + slot_bytes_ * static_cast<size_t>(cut_.slots);
  }

  size_t bytes() const { return bytes_; }

  void run() {
    if (p_.k == 0 && !p_.add && !has_epilogue()) return fill_zeros();
    if (cut_.share_a || cut_.share_b)
      run_shared();
    else
      run_private();
    if (cut_.parts > 1) sum_parts();
  }

 private:
  // A task: a rectangle of the result, and the part of K that it sums.
  struct Area {
    int64_t i, rows, j, cols;
    int64_t part;
  };

  // A sum of nothing, as the pixels have that a strided convolution never looks at.
  void fill_zeros() const {
    constexpr int64_t kElements = 16384;  // of a task
    const int64_t bytes = p_.out_type == OutputType::bf16 ? 2 : static_cast<int64_t>(sizeof(Acc));
    const int64_t rows = ceil_div(kElements, p_.n);
    for_each_task(pool_, threads_of(pool_), ceil_div(p_.m, rows), [&](int64_t, int64_t task) {
      for (int64_t i = task * rows; i < std::min(p_.m, (task + 1) * rows); ++i) {
        auto* row = static_cast<std::byte*>(p_.out) + p_.rows.offset(i) * bytes;
        if (p_.cols.even_stride() == 1) {
          std::memset(row, 0, static_cast<size_t>(p_.n * bytes));
          continue;
        }
        int64_t col_offset[kReduceColumns];
        for (int64_t j = 0; j < p_.n; j += kReduceColumns) {
          const int64_t count = std::min(kReduceColumns, p_.n - j);
          p_.cols.offsets(j, {col_offset, static_cast<size_t>(count)});
          for (int64_t c = 0; c < count; ++c) std::memset(row + col_offset[c] * bytes, 0, static_cast<size_t>(bytes));
        }
      }
    });
  }

  Slot<Acc, Packed> slot_at(int64_t index) const {
    Arena arena(slots_ + slot_bytes_ * static_cast<size_t>(index));
    return Slot<Acc, Packed>(p_, cut_, arena);
  }

  void run_shared() {
    const int64_t lanes = cut_.share_a ? p_.m : p_.n;
    const int64_t streamed = cut_.share_a ? p_.n : p_.m;
    const int64_t block = cut_.share_a ? cut_.block_n : cut_.block_m;
    for (int64_t lane = 0; lane < lanes; lane += cut_.shared_lanes) {
      const int64_t count = std::min(cut_.shared_lanes, lanes - lane);
      if (!(cut_.share_a && cut_.a_in_place)) pack_shared(lane, count);
      for_each_task(pool_, cut_.slots, ceil_div(streamed, block), [&](int64_t slot, int64_t task) {
        const int64_t first = task * block, size = std::min(block, streamed - first);
        compute(slot_at(slot), cut_.share_a ? Area{lane, count, first, size, 0} : Area{first, size, lane, count, 0});
      });
    }
  }

  // The panels of each slice of K stand together: slice by slice, then panel by panel.
  void pack_shared(int64_t lane, int64_t lanes) {
    const PanelSource<Acc>& source = cut_.share_a ? *p_.a : *p_.b;
    const PanelLayout layout = cut_.share_a ? kernel_.layout_a() : kernel_.layout_b();
    shared_count_ = round_up(lanes, layout.width);
    const int64_t even_share = round_up(ceil_div(lanes, 2 * cut_.slots), layout.width);
    const int64_t group = std::min<int64_t>(even_share, 16 * layout.width);
    const int64_t groups = ceil_div(lanes, group), slices = p_.k == 0 ? 0 : ceil_div(p_.k, cut_.kc);
    for_each_task(pool_, cut_.slots, groups * slices, [&](int64_t slot, int64_t task) {
      const int64_t k = task / groups * cut_.kc, first = task % groups * group;
      const PanelBlock block{lane + first, std::min(group, lanes - first), k, std::min(cut_.kc, p_.k - k)};
      Slot<Acc, Packed> own = slot_at(slot);
      pack(source, block, layout, shared_ + shared_count_ * k * kernel_.parts + first * layout.steps(block.kc),
           cut_.share_a ? own.scratch_a : own.scratch_b);
    });
  }

  static void pack(const PanelSource<Acc>& source, const PanelBlock& block, PanelLayout layout, Packed* panels,
                   std::span<Acc> scratch) {
    if constexpr (std::is_same_v<Acc, Packed>)
      source.pack(block, layout.width, panels, scratch);
    else
      source.pack_bf16(block, layout, panels, scratch);
  }

  void run_private() {
    const int64_t across = ceil_div(p_.n, cut_.block_n), down = ceil_div(p_.m, cut_.block_m);
    for_each_task(pool_, cut_.slots, cut_.parts * down * across, [&](int64_t slot, int64_t task) {
      const int64_t i = task / across % down * cut_.block_m, j = task % across * cut_.block_n;
      compute(slot_at(slot),
              Area{i, std::min(cut_.block_m, p_.m - i), j, std::min(cut_.block_n, p_.n - j), task / across / down});
    });
  }

  void compute(const Slot<Acc, Packed>& slot, const Area& area) {
    p_.rows.offsets(area.i, {slot.row_offset, static_cast<size_t>(area.rows)});
    p_.cols.offsets(area.j, {slot.col_offset, static_cast<size_t>(area.cols)});
    for (int64_t i = 0; i < area.rows; i += kernel_.mr)
      slot.row_stride[i / kernel_.mr] = even_stride(slot.row_offset + i, std::min<int64_t>(kernel_.mr, area.rows - i));
    if (kernel_.begin) kernel_.begin();
    const int64_t k_begin = area.part * cut_.k_part, k_end = std::min(p_.k, k_begin + cut_.k_part);
    int64_t k = k_begin;
    do {
      const int64_t kc = std::min(cut_.kc, k_end - k);
      const Packed* a = slot.a;
      const Packed* b = slot.b;
      if (cut_.share_a && !cut_.a_in_place)
        a = shared_ + shared_count_ * k * kernel_.parts;
      else if (!cut_.a_in_place)
        pack(*p_.a, {area.i, area.rows, k, kc, k > k_begin}, kernel_.layout_a(), slot.a, slot.scratch_a);
      if (cut_.share_b)
        b = shared_ + shared_count_ * k * kernel_.parts;
      else if (!cut_.b_in_place)
        pack(*p_.b, {area.j, area.cols, k, kc, k > k_begin}, kernel_.layout_b(), slot.b, slot.scratch_b);
      const Slice slice{k, kernel_.layout_a().steps(kc), k == k_begin, k + kc == k_end};
      if constexpr (std::is_same_v<Acc, Packed>) {
        if (cut_.b_in_place) compute_in_place(slot, area, a, slice);
      }
      if (!cut_.b_in_place) compute_slice(slot, area, a, b, slice);
      k += kc;
    } while (k < k_end);
    if (kernel_.end) kernel_.end();
  }

  struct Slice {
    int64_t k, kc;  // length as packed
    bool first, last;
  };
  struct Tile {
    int64_t i, j;  // in its area
    int rows, cols;
  };
  struct Operands {  // panels of a tile
    const Packed* a;
    int64_t a_stride;
    bool a_rows;  // for multiply_rows
    const Packed* b;
    int64_t b_stride;
  };

  // The panel of A whose first row in the area is i, with a panel of B.
  Operands operands(const Area& area, const Packed* a, int64_t i, const Packed* b, int64_t b_stride,
                    const Slice& slice) const {
    if constexpr (std::is_same_v<Acc, Packed>) {
      if (cut_.a_in_place) {
        const int64_t stride = kernel_.multiply_rows ? p_.a->lane_in_place() : 0;
        const Acc* rows = p_.a->in_place(area.i + i, slice.k);
        return {rows, stride ? stride : p_.a->step_in_place(), stride != 0, b, b_stride};
      }
    } else if (cut_.a_in_place) {
      return {p_.a->bf16_in_place(area.i + i, slice.k), p_.a->bf16_lane_in_place(), true, b, b_stride};
    }
    return {a + i * slice.kc, kernel_.mr, false, b, b_stride};
  }

  // Whether every panel of A meets all of B in turn.
  bool sweeps(const Area& area, const Slice& slice) const {
    return area.cols * slice.kc * static_cast<int64_t>(sizeof(Packed)) <= kernel_.swept_b;
  }

  void compute_slice(const Slot<Acc, Packed>& slot, const Area& area, const Packed* a, const Packed* b,
                     const Slice& slice) {
    const int64_t chunk = sweeps(area, slice) ? kernel_.mr : round_up(kernel_.chunk_a, kernel_.mr);
    for (int64_t begin = 0; begin < area.rows; begin += chunk) {
      const int64_t end = std::min(begin + chunk, area.rows), tiles = ceil_div(end - begin, kernel_.mr);
      const int64_t share = ceil_div(kernel_.nr * slice.kc, tiles);  // of the next panel of B, per tile
      for (int64_t j = 0; j < area.cols; j += kernel_.nr) {
        const Packed* next = b + (j + kernel_.nr) * slice.kc;
        for (int64_t i = begin; i < end; i += kernel_.mr, next += share) {
          if (kernel_.ask_ahead && j + kernel_.nr < area.cols) prefetch(next, share);
          compute_tile(slot, area, i, j, operands(area, a, i, b + j * slice.kc, kernel_.nr, slice), slice);
        }
      }
    }
  }

  void compute_in_place(const Slot<Acc, Packed>& slot, const Area& area, const Packed* a, const Slice& slice) {
    const int64_t last = (area.cols - 1) / kernel_.nr * kernel_.nr;  // first column of the last panel
    const bool whole = (area.cols - last) % kernel_.lanes == 0;
    if (!whole) p_.b->pack({area.j + last, area.cols - last, slice.k, slice.kc}, kernel_.nr, slot.b, {});
    const int64_t chunk = sweeps(area, slice) ? kernel_.mr : area.rows;
    for (int64_t begin = 0; begin < area.rows; begin += chunk)
      for (int64_t j = 0; j < area.cols; j += kernel_.nr) {
        const bool packed = j == last && !whole;
        const Acc* b = packed ? slot.b : p_.b->in_place(area.j + j, slice.k);
        const int64_t b_stride = packed ? kernel_.nr : p_.b->step_in_place();
        for (int64_t i = begin; i < std::min(begin + chunk, area.rows); i += kernel_.mr)
          compute_tile(slot, area, i, j, operands(area, a, i, b, b_stride, slice), slice);
      }
  }

  static void prefetch(const Packed* data, int64_t count) {
    for (int64_t i = 0; i < count; i += kAlignment / static_cast<int64_t>(sizeof(Packed))) __builtin_prefetch(data + i);
  }

  void compute_tile(const Slot<Acc, Packed>& slot, const Area& area, int64_t i, int64_t j, const Operands& operands,
                    const Slice& slice) {
    const Tile tile{i, j, static_cast<int>(std::min<int64_t>(kernel_.mr, area.rows - i)),
                    static_cast<int>(std::min<int64_t>(kernel_.nr, area.cols - j))};
    auto multiply_to = [&](Acc* to, int64_t stride, bool add) {
      (operands.a_rows ? kernel_.multiply_rows : kernel_.multiply)(tile.rows, tile.cols, slice.kc, operands.a,
                                                                   operands.a_stride, operands.b, operands.b_stride, to,
                                                                   stride, add);
    };
    if (cut_.parts > 1) {
      multiply_to(partial_ + (area.part * p_.m + area.i + i) * partial_stride_ + area.j + j, partial_stride_,
                  !slice.first);
      return;
    }
    if (p_.out_type == OutputType::bf16 && !(slice.first && slice.last)) {
      Acc* sums = slot.sums + i * cut_.block_n + j;
      multiply_to(sums, cut_.block_n, !slice.first);
      if (slice.last) finish(slot, area, tile, sums, cut_.block_n, p_.add, true);
      return;
    }
    const bool add = p_.add || !slice.first;
    const int64_t* col_offset = slot.col_offset + j;
    const bool adjacent = tile.cols % kernel_.lanes == 0 && col_offset[tile.cols - 1] - col_offset[0] == tile.cols - 1;
    const int64_t stride = slot.row_stride[i / kernel_.mr];
    if (p_.out_type == OutputType::same && adjacent && stride != 0) {
      Acc* out = static_cast<Acc*>(p_.out) + slot.row_offset[i] + col_offset[0];
      multiply_to(out, stride, add);
      if (slice.last && has_epilogue()) finish(slot, area, tile, out, stride, false, true);
      return;
    }
    alignas(kAlignment) Acc sums[kMaxTile];
    if (p_.out_type == OutputType::bf16) ask_for_rows(slot, tile);
    multiply_to(sums, kernel_.nr, false);
    finish(slot, area, tile, sums, kernel_.nr, add, slice.last);
  }

  // So that rows of a bf16 result are on their way while their sums are made.
  void ask_for_rows(const Slot<Acc, Packed>& slot, const Tile& tile) const {
    const bfloat16* out = static_cast<const bfloat16*>(p_.out) + slot.col_offset[tile.j];
    for (int r = 0; r < tile.rows; ++r) __builtin_prefetch(out + slot.row_offset[tile.i + r], 1);
  }

  bool has_epilogue() const { return p_.row_bias || p_.col_bias || p_.residual || p_.activation != Activation::none; }

  void finish(const Slot<Acc, Packed>& slot, const Area& area, const Tile& tile, const Acc* sums, int64_t stride,
              bool add, bool epilogue) const {
    finish({.tile = sums,
            .tile_stride = stride,
            .rows = tile.rows,
            .cols = tile.cols,
            .out = p_.out,
            .out_bf16 = p_.out_type == OutputType::bf16,
            .row_offset = slot.row_offset + tile.i,
            .col_offset = slot.col_offset + tile.j,
            .add = add,
            .row_bias = epilogue && p_.row_bias ? p_.row_bias + area.i + tile.i : nullptr,
            .col_bias = epilogue && p_.col_bias ? p_.col_bias + area.j + tile.j : nullptr,
            .residual = epilogue ? p_.residual : nullptr,
            .activation = epilogue ? p_.activation : Activation::none});
  }

  void finish(FinishTile<Acc> tile) const {
    Acc bias[kReduceColumns + kMaxPanelWidth];  // the kernel reads whole vectors of it
    if (tile.col_bias && tile.cols % kernel_.lanes != 0) {
      std::fill_n(std::copy_n(tile.col_bias, tile.cols, bias), kernel_.lanes, Acc{0});
      tile.col_bias = bias;
    }
    kernel_.finish(tile);
  }

  // Adds the parts of K in their order and finishes the result.
  void sum_parts() {
    constexpr int64_t kRows = 16;  // of a task
    const int64_t chunks = ceil_div(p_.n, kReduceColumns);
    for_each_task(pool_, cut_.slots, ceil_div(p_.m, kRows) * chunks, [&](int64_t, int64_t task) {
      const int64_t first = task / chunks * kRows, j = task % chunks * kReduceColumns;
      const int64_t cols = std::min(kReduceColumns, p_.n - j);
      int64_t col_offset[kReduceColumns];
      p_.cols.offsets(j, {col_offset, static_cast<size_t>(cols)});
      for (int64_t i = first; i < std::min(first + kRows, p_.m); ++i) sum_parts_of_row(i, j, cols, col_offset);
    });
  }

  void sum_parts_of_row(int64_t i, int64_t j, int64_t cols, const int64_t* col_offset) {
    Acc* sum = partial_ + i * partial_stride_ + j;
    for (int64_t part = 1; part < cut_.parts; ++part) {
      const Acc* other = sum + part * p_.m * partial_stride_;
      for (int64_t c = 0; c < cols; ++c) sum[c] += other[c];
    }
    const int64_t row_offset = p_.rows.offset(i);
    finish({.tile = sum,
            .tile_stride = 0,
            .rows = 1,
            .cols = static_cast<int>(cols),
            .out = p_.out,
            .out_bf16 = p_.out_type == OutputType::bf16,
            .row_offset = &row_offset,
            .col_offset = col_offset,
            .add = p_.add,
            .row_bias = p_.row_bias ? p_.row_bias + i : nullptr,
            .col_bias = p_.col_bias ? p_.col_bias + j : nullptr,
            .residual = p_.residual,
            .activation = p_.activation});
  }

  const Product<Acc>& p_;
  const TileKernel<Acc, Packed>& kernel_;
  Cut<Acc, Packed> cut_;
  ThreadPool* pool_;
  Acc* partial_ = nullptr;  // [parts, m, partial_stride_]
  int64_t partial_stride_;
  Packed* shared_ = nullptr;  // [slices][shared_count_, kc] as panels
  int64_t shared_count_ = 0;  // lanes in it now
  std::byte* slots_;
  size_t slot_bytes_, bytes_;
};

// The kernel for panels of bf16 that suits the operands, or null.
const TileKernel<float, uint16_t>* kernel_of_bf16(const Product<float>& product) {
  const int parts = product.a->bf16_parts();
  if (parts == 0 || parts != product.b->bf16_parts()) return nullptr;
  if (parts == 1) return bf16_kernel();
  return is_split(product) ? split_kernel() : nullptr;
}

// Calls body with the kernel that suits the operands.
template <class Acc, class Body>
auto with_kernel(const Product<Acc>& product, const Body& body) {
  if constexpr (std::is_same_v<Acc, float>)
    if (const TileKernel<float, uint16_t>* kernel = kernel_of_bf16(product)) return body(*kernel);
  return body(static_cast<const TileKernel<Acc, Acc>&>(gemm_kernel<Acc>()));
}

}  // namespace

bool is_split(const Product<float>& product) {
  const double work = static_cast<double>(product.m) * static_cast<double>(product.n) * static_cast<double>(product.k);
  return product.f32 == F32::split && split_kernel() != nullptr && product.a->bf16_parts() > 1 &&
         std::min(product.m, product.n) >= kLeastSplit && work >= kLeastSplitWork;
}

template <class Acc>
size_t product_workspace(const Product<Acc>& product, int threads) {
  if (product.m == 0 || product.n == 0) return 0;
  return with_kernel(product, [&]<class Packed>(const TileKernel<Acc, Packed>& kernel) {
    return Multiplication<Acc, Packed>(product, kernel, nullptr, nullptr, threads).bytes() + kAlignment;
  });
}

template <class Acc>
void multiply(const Product<Acc>& product, std::span<std::byte> workspace, ThreadPool* pool) {
  if (product.m == 0 || product.n == 0) return;
  std::byte* base = align(workspace.data());
  with_kernel(product, [&]<class Packed>(const TileKernel<Acc, Packed>& kernel) {
    Multiplication<Acc, Packed> multiplication(product, kernel, base, pool, threads_of(pool));
    BONFIRE_CHECK(base + multiplication.bytes() <= workspace.data() + workspace.size(),
                  "workspace of {} bytes, product_workspace() says more", workspace.size());
    multiplication.run();
  });
}

template size_t product_workspace(const Product<float>&, int);
template size_t product_workspace(const Product<double>&, int);
template void multiply(const Product<float>&, std::span<std::byte>, ThreadPool*);
template void multiply(const Product<double>&, std::span<std::byte>, ThreadPool*);

}  // namespace bonfire::cpu
