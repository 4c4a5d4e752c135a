// Products of bf16 with AMX. A tile register is 16 rows of 64 bytes: 16 lanes of A with 32 steps of K each, or 16 pairs
// of steps with 16 lanes of B each, or 16 x 16 sums. Two of A times two of B keep four sums busy, so that every load
// serves two products.

#include "bonfire/backend/cpu/gemm_avx512_template.h"
#include "bonfire/backend/cpu/gemm_finish_template.h"
#include "bonfire/backend/cpu/gemm_pack_bf16_template.h"

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

// sums [2 x 16, kNr] of up to 2 x 2 tiles: registers 0 and 1 above 2 and 3. Registers 4 and 5 hold A, 6 and 7 B.
template <bool TwoDown, bool TwoAcross>
void multiply_tiles(int64_t kc, const uint16_t* a, const uint16_t* b, float* sums) {
  constexpr int64_t kPairBytes = 2 * kRowBytes, kSumBytes = kNr * sizeof(float);  // between rows
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (int64_t k = 0; k < kc; k += kSteps, a += kMr * kSteps, b += kNr * kSteps) {
    _tile_loadd(6, b, kPairBytes);
    _tile_loadd(4, a, kRowBytes);
    _tile_dpbf16ps(0, 4, 6);
    if constexpr (TwoAcross) {
      _tile_loadd(7, b + 2 * kTile, kPairBytes);
      _tile_dpbf16ps(1, 4, 7);
    }
    if constexpr (TwoDown) {
      _tile_loadd(5, a + kTile * kSteps, kRowBytes);
      _tile_dpbf16ps(2, 5, 6);
      if constexpr (TwoAcross) _tile_dpbf16ps(3, 5, 7);
    }
  }
  _tile_stored(0, sums, kSumBytes);
  if constexpr (TwoAcross) _tile_stored(1, sums + kTile, kSumBytes);
  if constexpr (TwoDown) _tile_stored(2, sums + kTile * kNr, kSumBytes);
  if constexpr (TwoDown && TwoAcross) _tile_stored(3, sums + kTile * kNr + kTile, kSumBytes);
}

void multiply_to(float* sums, bool two_down, bool two_across, int64_t kc, const uint16_t* a, const uint16_t* b) {
  if (two_down)
    two_across ? multiply_tiles<true, true>(kc, a, b, sums) : multiply_tiles<true, false>(kc, a, b, sums);
  else
    two_across ? multiply_tiles<false, true>(kc, a, b, sums) : multiply_tiles<false, false>(kc, a, b, sums);
}

void multiply(int rows, int cols, int64_t kc, const uint16_t* a, int64_t /*a_stride*/, const uint16_t* b,
              int64_t /*b_stride*/, float* c, int64_t c_stride, bool add) {
  const bool two_down = rows > kTile, two_across = cols > kTile;
  if (c_stride == kNr && rows % kTile == 0 && !add) return multiply_to(c, two_down, two_across, kc, a, b);
  // Elsewhere through a copy: tiles have 16 rows, and storing one waits for all of them to be in the cache.
  float* to = c;
  for (int r = 0; r < rows; ++r, to += c_stride)
    for (int v = 0; v <= static_cast<int>(two_across); ++v) __builtin_prefetch(to + v * kTile, 1);
  alignas(64) float sums[kMr * kNr];
  multiply_to(sums, two_down, two_across, kc, a, b);
  for (int r = 0; r < rows; ++r, c += c_stride)
    for (int v = 0; v <= static_cast<int>(two_across); ++v) {
      __m512 row = _mm512_load_ps(sums + r * kNr + v * kTile);
      if (add) row = _mm512_add_ps(row, _mm512_loadu_ps(c + v * kTile));
      _mm512_storeu_ps(c + v * kTile, row);
    }
}

}  // namespace

Bf16Kernel gemm_kernel_amx() {
  Bf16Kernel kernel{};
  kernel.mr = kMr;
  kernel.nr = kNr;
  kernel.group_a = kSteps;
  kernel.group_b = 2;
  kernel.lanes = kTile;
  kernel.kc = 1024;
  kernel.block_a = 256;
  kernel.block_b = 256;
  kernel.chunk_a = 256;
  kernel.swept_b = 1 << 20;
  kernel.ask_ahead = false;
  kernel.alone = 1.6e7;
  kernel.multiply = &multiply;
  kernel.finish = &GemmFinish<Isa>::finish;
  kernel.pack = &PackBf16<Isa>::pack;
  kernel.begin = &begin;
  kernel.end = &end;
  return kernel;
}

}  // namespace bonfire::cpu
