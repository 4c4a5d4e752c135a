// Products of bf16 with AMX. A tile register is 16 rows of 64 bytes: 16 lanes of A with 32 steps of K each, or 16 pairs
// of steps with 16 lanes of B each, or 16 x 16 sums. Two of A times two of B keep four sums busy, so that every load
// serves two products. Products of f32 are six of those, by parts of bf16 (gemm_kernel.h); there a load serves four.

#include "bonfire/backend/cpu/gemm/gemm_avx512_template.h"
#include "bonfire/backend/cpu/gemm/gemm_finish_template.h"
#include "bonfire/backend/cpu/gemm/gemm_pack_bf16_template.h"
#include "bonfire/backend/cpu/gemm/gemm_pack_split_template.h"

namespace bonfire::cpu {

namespace {

// Of finished tiles.
struct Isa : MaskedBf16Rows<Isa> {
  using Scalar = float;
  static constexpr int bytes = 64, mr = 1, vectors = 1;
};

constexpr int kTile = 16;   // rows, and columns of sums
constexpr int kSteps = 32;  // of K, in a tile of A or B
constexpr int kMr = 2 * kTile, kNr = 2 * kTile;
constexpr int64_t kRowBytes = 64;

struct alignas(64) TileConfiguration {
  uint8_t palette = 1, start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
constexpr TileConfiguration kConfiguration;

// Others in this process use tiles in their own way, so none are left configured: a task begins and ends with these.
void begin() { _tile_loadconfig(&kConfiguration); }
void end() { _tile_release(); }

// Where numbers of A stand: in panels, or in memory, row_stride apart from row to row.
struct Panels {
  static constexpr int64_t stride() { return kSteps; }      // from row to row
  static constexpr int64_t step() { return kMr * kSteps; }  // to the next steps of K
};
struct Rows {
  int64_t row_stride;
  int64_t stride() const { return row_stride; }
  static constexpr int64_t step() { return kSteps; }
};

// Of up to two tiles: registers 4 and 5 hold those of A, 6 and 7 those of B.
template <bool TwoDown, class Order>
[[gnu::always_inline]] inline void load_a(const uint16_t* a, Order order) {
  const int64_t row_bytes = order.stride() * static_cast<int64_t>(sizeof *a);
  _tile_loadd(4, a, row_bytes);
  if constexpr (TwoDown) _tile_loadd(5, a + kTile * order.stride(), row_bytes);
}
template <bool TwoAcross>
[[gnu::always_inline]] inline void load_b(const uint16_t* b) {
  _tile_loadd(6, b, 2 * kRowBytes);
  if constexpr (TwoAcross) _tile_loadd(7, b + 2 * kTile, 2 * kRowBytes);
}
// Sums: registers 0 and 1 above 2 and 3.
template <bool TwoDown, bool TwoAcross>
[[gnu::always_inline]] inline void add_products() {
  _tile_dpbf16ps(0, 4, 6);
  if constexpr (TwoAcross) _tile_dpbf16ps(1, 4, 7);
  if constexpr (TwoDown) _tile_dpbf16ps(2, 5, 6);
  if constexpr (TwoDown && TwoAcross) _tile_dpbf16ps(3, 5, 7);
}

// Products of 32 steps of bf16.
template <bool TwoDown, bool TwoAcross, class Order>
[[gnu::always_inline]] inline void add_steps(const uint16_t* a, Order order, const uint16_t* b) {
  load_b<TwoAcross>(b);
  load_a<TwoDown>(a, order);
  add_products<TwoDown, TwoAcross>();
}

// Products of 32 steps of f32 in three parts. Small ones come first, and each changes one operand only.
template <bool TwoDown, bool TwoAcross>
[[gnu::always_inline]] inline void add_split_steps(const uint16_t* a, const uint16_t* b) {
  constexpr int64_t kPart = kMr * kSteps;
  static_assert(kMr == kNr);
  load_a<TwoDown>(a + 2 * kPart, Panels{});
  load_b<TwoAcross>(b);
  add_products<TwoDown, TwoAcross>();  // a2 b0
  load_a<TwoDown>(a + kPart, Panels{});
  add_products<TwoDown, TwoAcross>();  // a1 b0
  load_b<TwoAcross>(b + kPart);
  add_products<TwoDown, TwoAcross>();  // a1 b1
  load_a<TwoDown>(a, Panels{});
  add_products<TwoDown, TwoAcross>();  // a0 b1
  load_b<TwoAcross>(b + 2 * kPart);
  add_products<TwoDown, TwoAcross>();  // a0 b2
  load_b<TwoAcross>(b);
  add_products<TwoDown, TwoAcross>();  // a0 b0
}

// Rows of the result, asked for a few at a time while tiles are multiplied: storing a tile waits until all of its rows
// are in the cache, and asking for all of them at once keeps operands waiting.
class ResultRows {
 public:
  // `steps` calls of ask() are to come.
  ResultRows(float* c, int64_t stride, int rows, bool two_across, int64_t steps)
      : next_(c),
        stride_(stride),
        left_(rows),
        each_(steps > 0 ? static_cast<int>((rows + steps - 1) / steps) : 0),
        two_(two_across) {}

  [[gnu::always_inline]] void ask() {
    for (int i = 0; i < each_ && left_ > 0; ++i, --left_, next_ += stride_) {
      __builtin_prefetch(next_, 1);
      if (two_) __builtin_prefetch(next_ + kTile, 1);
    }
  }

 private:
  float* next_;
  int64_t stride_;
  int left_, each_;
  bool two_;
};

// c [2 x 16, 2 x 16] of up to 2 x 2 tiles, which the products are added to or take the place of.
template <int Parts, bool TwoDown, bool TwoAcross, class Order>
void multiply_tiles(int64_t kc, const uint16_t* a, Order order, const uint16_t* b, float* c, int64_t c_stride, bool add,
                    ResultRows result) {
  const int64_t row_bytes = c_stride * static_cast<int64_t>(sizeof(float));
  float* lower = c + kTile * c_stride;
  if (add) {
    _tile_loadd(0, c, row_bytes);
    if constexpr (TwoAcross) _tile_loadd(1, c + kTile, row_bytes);
    if constexpr (TwoDown) _tile_loadd(2, lower, row_bytes);
    if constexpr (TwoDown && TwoAcross) _tile_loadd(3, lower + kTile, row_bytes);
  } else {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  }
  for (int64_t k = 0; k < kc; k += Parts * kSteps, a += Parts * Order::step(), b += Parts * kNr * kSteps) {
    result.ask();
    if constexpr (Parts == 1)
      add_steps<TwoDown, TwoAcross>(a, order, b);
    else
      add_split_steps<TwoDown, TwoAcross>(a, b);
  }
  _tile_stored(0, c, row_bytes);
  if constexpr (TwoAcross) _tile_stored(1, c + kTile, row_bytes);
  if constexpr (TwoDown) _tile_stored(2, lower, row_bytes);
  if constexpr (TwoDown && TwoAcross) _tile_stored(3, lower + kTile, row_bytes);
}

template <int Parts, class Order>
void multiply(int rows, int cols, int64_t kc, const uint16_t* a, Order order, const uint16_t* b, float* c,
              int64_t c_stride, bool add) {
  const bool two_down = rows > kTile, two_across = cols > kTile;
  const ResultRows result(c, c_stride, rows, two_across, kc / (Parts * kSteps));
  auto multiply_to = [&](float* to, int64_t stride, bool to_be_added) {
    if (two_down)
      two_across ? multiply_tiles<Parts, true, true>(kc, a, order, b, to, stride, to_be_added, result)
                 : multiply_tiles<Parts, true, false>(kc, a, order, b, to, stride, to_be_added, result);
    else
      two_across ? multiply_tiles<Parts, false, true>(kc, a, order, b, to, stride, to_be_added, result)
                 : multiply_tiles<Parts, false, false>(kc, a, order, b, to, stride, to_be_added, result);
  };
  // Of f32 a slice of K is summed on its own, which keeps errors small.
  const bool apart = Parts > 1 && add;
  if (rows % kTile == 0 && !apart) return multiply_to(c, c_stride, add);
  alignas(64) float sums[kMr * kNr];  // since tiles have 16 rows
  multiply_to(sums, kNr, false);
  for (int r = 0; r < rows; ++r, c += c_stride)
    for (int v = 0; v <= static_cast<int>(two_across); ++v) {
      __m512 total = _mm512_load_ps(sums + r * kNr + v * kTile);
      if (add) total = _mm512_add_ps(total, _mm512_loadu_ps(c + v * kTile));
      _mm512_storeu_ps(c + v * kTile, total);
    }
}

template <int Parts>
void multiply_panels(int rows, int cols, int64_t kc, const uint16_t* a, int64_t /*a_stride*/, const uint16_t* b,
                     int64_t /*b_stride*/, float* c, int64_t c_stride, bool add) {
  multiply<Parts>(rows, cols, kc, a, Panels{}, b, c, c_stride, add);
}

void multiply_rows(int rows, int cols, int64_t kc, const uint16_t* a, int64_t a_stride, const uint16_t* b,
                   int64_t /*b_stride*/, float* c, int64_t c_stride, bool add) {
  multiply<1>(rows, cols, kc, a, Rows{a_stride}, b, c, c_stride, add);
}

// What both kernels have in common.
template <class Kernel, class Packer, int Parts>
Kernel kernel_of() {
  Kernel kernel{};
  kernel.mr = kMr;
  kernel.nr = kNr;
  kernel.group_a = kSteps;
  kernel.group_b = 2;
  kernel.parts = Parts;
  kernel.lanes = kTile;
  kernel.block_a = 256;
  kernel.block_b = 256;
  kernel.chunk_a = 256;
  kernel.swept_b = 1 << 20;
  kernel.ask_ahead = false;
  kernel.multiply = &multiply_panels<Parts>;
  kernel.finish = &GemmFinish<Isa>::finish;
  kernel.pack = &Packer::pack;
  kernel.begin = &begin;
  kernel.end = &end;
  return kernel;
}

}  // namespace

Bf16Kernel gemm_kernel_amx() {
  Bf16Kernel kernel = kernel_of<Bf16Kernel, PackBf16<Isa>, 1>();
  kernel.kc = 1024;
  kernel.alone = 1.6e7;
  kernel.multiply_rows = &multiply_rows;
  return kernel;
}

SplitKernel gemm_split_kernel_amx() {
  SplitKernel kernel = kernel_of<SplitKernel, PackSplit<Isa, kMr>, 3>();
  kernel.kc = 256;
  kernel.alone = 4e6;
  return kernel;
}

}  // namespace bonfire::cpu
