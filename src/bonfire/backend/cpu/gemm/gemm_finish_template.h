#pragma once
// What happens to a finished tile on its way to memory, for gemm_kernel_template.h.

#include "bonfire/backend/cpu/gemm/gemm_vector_template.h"

namespace bonfire::cpu {

template <class Isa>
struct GemmFinish {
  using G = GemmVectors<Isa>;
  using Scalar = typename G::Scalar;
  using Vector = typename G::Vector;
  static constexpr int kBytes = G::kBytes;
  static constexpr int kLanes = G::kLanes;

  // exp for x in [-87, 88]: 2^n * 2^f with a polynomial for 2^f, |f| <= 1/2; relative error about 1e-7.
  static Vector exponential(Vector x) {
    using Integer = VectorType<int32_t, kBytes>;
    Vector t = x * 1.44269504F;
    Vector shifted = t + 12582912.0F;  // 1.5 * 2^23: the sum is rounded to an integer
    Vector whole = shifted - 12582912.0F;
    Vector f = t - whole;
    Vector p = f * 1.535336188e-4F + 1.339887440e-3F;
    p = p * f + 9.618437357e-3F;
    p = p * f + 5.550332548e-2F;
    p = p * f + 2.402264791e-1F;
    p = p * f + 6.931472028e-1F;
    p = p * f + 1.0F;
    Integer scale = (__builtin_convertvector(whole, Integer) + 127) << 23;
    Vector power;
    __builtin_memcpy(&power, &scale, sizeof power);
    return p * power;
  }

  static Vector gelu(Vector x) {
    constexpr Scalar kSqrt2OverPi = static_cast<Scalar>(0.79788456080286535588), kCubic = static_cast<Scalar>(0.044715);
    Vector u = (x + x * x * x * kCubic) * kSqrt2OverPi;
    if constexpr (sizeof(Scalar) == 4) {
      // x * (1 + tanh u) / 2 = x / (1 + exp(-2u))
      Vector exponent = u * Scalar(-2);
      exponent = exponent > Scalar(80) ? Vector{} + Scalar(80) : exponent;
      exponent = exponent < Scalar(-80) ? Vector{} - Scalar(80) : exponent;
      return x / (exponential(exponent) + Scalar(1));
    } else {
      Vector y = x;
      for (int i = 0; i < kLanes; ++i) y[i] = x[i] * (1 + __builtin_tanh(u[i])) / 2;
      return y;
    }
  }

  // What is done to a tile. Two common cases are compiled on their own, without asking for every vector.
  enum class Work { none, column_bias, any };

  static Work work_of(const FinishTile<Scalar>& t) {
    if (t.add || t.row_bias || t.residual || t.activation != Activation::none) return Work::any;
    return t.col_bias ? Work::column_bias : Work::none;
  }

  // `old` and `residual` are read only where the tile wants them.
  template <Work work, class Old>
  [[gnu::always_inline]] static Vector finished(const FinishTile<Scalar>& t, int r, int c, const Scalar* tile,
                                                const Old& old, const Old& residual) {
    Vector value = G::template load<Vector>(tile + c);
    if constexpr (work == Work::none) return value;
    if constexpr (work == Work::column_bias) return value + G::template load<Vector>(t.col_bias + c);
    if (t.add) value += old();
    if (t.row_bias) value += t.row_bias[r];
    if (t.col_bias) value += G::template load<Vector>(t.col_bias + c);
    if (t.residual) value += residual();
    if (t.activation == Activation::relu) {
      // Written so that NaN passes through.
      value = value < Scalar(0) ? Vector{} : value;
    } else if (t.activation == Activation::gelu_tanh) {
      value = gelu(value);
    }
    return value;
  }

  // The first `count` numbers of a vector, the rest zero.
  struct Start {
    int count;
    template <class Out>
    [[gnu::always_inline]] Vector load(const Out* from) const {
      if constexpr (requires { Isa::load_start(from, count); }) {
        return Isa::load_start(from, count);
      } else {
        Out part[kLanes] = {};
        G::copy_start(from, count, part);
        return G::template load<Vector>(part);
      }
    }
    template <class Out>
    [[gnu::always_inline]] void store(const Vector& value, Out* to) const {
      if constexpr (requires { Isa::store_start(to, count, value); }) {
        Isa::store_start(to, count, value);
      } else {
        Out part[kLanes];
        G::store(part, value);
        G::copy_start(part, count, to);
      }
    }
  };

  // A row whose columns are neighbours in memory; `out` and `residual` are its first column.
  template <Work work, class Out>
  [[gnu::always_inline]] static void finish_row(const FinishTile<Scalar>& t, int r, Out* out, const Out* residual) {
    const Scalar* tile = t.tile + r * t.tile_stride;
    int c = 0;
    for (; c + kLanes <= t.cols; c += kLanes) {
      auto reader = [&](const Out* from) { return [=] { return G::template load<Vector>(from + c); }; };
      G::store(out + c, finished<work>(t, r, c, tile, reader(out), reader(residual)));
    }
    if (c < t.cols) {
      const Start start{t.cols - c};
      auto reader = [&](const Out* from) { return [=] { return start.load(from + c); }; };
      start.store(finished<work>(t, r, c, tile, reader(out), reader(residual)), out + c);
    }
  }

  // A row whose columns lie apart: through copies.
  template <class Out>
  static void finish_scattered(const FinishTile<Scalar>& t, int r, Out* out, const Out* residual) {
    const Scalar* tile = t.tile + r * t.tile_stride;
    for (int c = 0; c < t.cols; c += kLanes) {
      const int count = t.cols - c < kLanes ? t.cols - c : kLanes;
      auto reader = [&](const Out* from) {
        return [=, &t] {
          Out part[kLanes] = {};
          for (int i = 0; i < count; ++i) part[i] = from[t.col_offset[c + i]];
          return G::template load<Vector>(part);
        };
      };
      Out part[kLanes];
      G::store(part, finished<Work::any>(t, r, c, tile, reader(out), reader(residual)));
      for (int i = 0; i < count; ++i) out[t.col_offset[c + i]] = part[i];
    }
  }

  template <Work work, class Out>
  static void finish_rows(const FinishTile<Scalar>& t) {
    const int64_t first = t.col_offset[0];
    for (int r = 0; r < t.rows; ++r) {
      const int64_t at = t.row_offset[r] + first;
      finish_row<work>(t, r, static_cast<Out*>(t.out) + at,
                       t.residual ? static_cast<const Out*>(t.residual) + at : nullptr);
    }
  }

  template <class Out>
  static void finish_as(const FinishTile<Scalar>& tile) {
    const FinishTile<Scalar> t = tile;  // stores of results cannot change it
    if (t.col_offset[t.cols - 1] - t.col_offset[0] != t.cols - 1) {
      for (int r = 0; r < t.rows; ++r)
        finish_scattered(t, r, static_cast<Out*>(t.out) + t.row_offset[r],
                         t.residual ? static_cast<const Out*>(t.residual) + t.row_offset[r] : nullptr);
      return;
    }
    switch (work_of(t)) {
      case Work::none: return finish_rows<Work::none, Out>(t);
      case Work::column_bias: return finish_rows<Work::column_bias, Out>(t);
      case Work::any: return finish_rows<Work::any, Out>(t);
    }
  }

  static void finish(const FinishTile<Scalar>& tile) {
    if constexpr (sizeof(Scalar) == 4) {
      if (tile.out_bf16) return finish_as<uint16_t>(tile);
    }
    finish_as<Scalar>(tile);
  }
};

}  // namespace bonfire::cpu
