#pragma once
// Products of transformed tiles, for winograd_kernel_template.h.

#include "bonfire/backend/cpu/gemm_vector_template.h"

namespace bonfire::cpu {

template <class Isa>
struct WinogradProducts {
  using G = GemmVectors<Isa>;
  using Vector = typename G::Vector;
  static constexpr int kLanes = G::kLanes;
  static constexpr int kRows = Isa::mr;
  static constexpr int kVectors = Isa::vectors;
  static constexpr int kPanel = kVectors * kLanes;

  // Adds `steps` of K, whose left numbers are row_step and k_step apart.
  template <int Rows, int Vectors, int RowStep, int KStep>
  [[gnu::always_inline]] static void add_steps(int64_t steps, const float* left, const float* right,
                                               Vector (&sum)[Rows][Vectors]) {
    for (int64_t k = 0; k < steps; ++k) {
      Vector columns[Vectors];
#pragma GCC unroll 8
      for (int v = 0; v < Vectors; ++v) columns[v] = G::template load<Vector>(right + v * kLanes);
#pragma GCC unroll 32
      for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 8
        for (int v = 0; v < Vectors; ++v) sum[r][v] += columns[v] * left[r * RowStep];
      left += KStep;
      right += kPanel;
    }
  }

  // As many steps as a vector has lanes, their left numbers side by side.
  template <int Rows, int Vectors>
  [[gnu::always_inline]] static void add_lanes(const float* left, const float* right, Vector (&sum)[Rows][Vectors]) {
    Vector numbers[Rows];
#pragma GCC unroll 32
    for (int r = 0; r < Rows; ++r) {
      numbers[r] = G::template load<Vector>(left + r * kLanes);
      Isa::hold(numbers[r]);
    }
#pragma GCC unroll 4
    for (int k = 0; k < kLanes; ++k, right += kPanel) {
      Vector columns[Vectors];
#pragma GCC unroll 8
      for (int v = 0; v < Vectors; ++v) columns[v] = G::template load<Vector>(right + v * kLanes);
#pragma GCC unroll 32
      for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 8
        for (int v = 0; v < Vectors; ++v) sum[r][v] += columns[v] * numbers[r][k];
    }
  }

  template <int Rows, int Vectors>
  [[gnu::always_inline]] static void store(const Vector (&sum)[Rows][Vectors], float* out, bool add) {
#pragma GCC unroll 32
    for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 8
      for (int v = 0; v < Vectors; ++v) {
        float* to = out + r * kPanel + v * kLanes;
        G::store(to, add ? Vector(sum[r][v] + G::template load<Vector>(to)) : sum[r][v]);
      }
  }

  struct OverChannels {
    int64_t k;
    const float* left;
    int64_t left_stride;
    const float* right;
    float* out;

    template <int Rows, int Vectors>
    void run() const {
      Vector sum[Rows][Vectors] = {};
      const float* numbers = left;
      const float* columns = right;
      int64_t done = 0;
      for (; done + kLanes <= k; done += kLanes, numbers += left_stride, columns += kLanes * kPanel) {
        if constexpr (Isa::a_by_lane)
          add_lanes<Rows, Vectors>(numbers, columns, sum);
        else
          add_steps<Rows, Vectors, kLanes, 1>(kLanes, numbers, columns, sum);
      }
      add_steps<Rows, Vectors, kLanes, 1>(k - done, numbers, columns, sum);
      store<Rows, Vectors>(sum, out, false);
    }
  };

  struct OverTiles {
    int64_t tiles;
    const float* left;
    const float* right;
    float* out;
    bool add;

    template <int Rows, int Vectors>
    void run() const {
      Vector sum[Rows][Vectors] = {};
      add_steps<Rows, Vectors, 1, kLanes>(tiles, left, right, sum);
      store<Rows, Vectors>(sum, out, add);
    }
  };

  template <int Vectors, int Rows, class Job>
  static void run_rows(int rows, const Job& job) {
    if (rows == Rows) {
      job.template run<Rows, Vectors>();
    } else if constexpr (Rows > 1) {
      run_rows<Vectors, Rows - 1>(rows, job);
    }
  }

  // With the number of rows (at most Most) and of vectors as constants.
  template <int Most, int Vectors = kVectors, class Job>
  static void run(int rows, int cols, const Job& job) {
    if (cols > (Vectors - 1) * kLanes) {
      run_rows<Vectors, Most>(rows, job);
    } else if constexpr (Vectors > 1) {
      run<Most, Vectors - 1>(rows, cols, job);
    }
  }

  static void multiply(int64_t tiles, int cols, int64_t k, const float* left, int64_t left_stride, const float* right,
                       float* out) {
    const int64_t groups = (tiles + kRows - 1) / kRows;
    for (int64_t group = 0; group < groups; ++group) {  // of about as many rows each
      const int64_t first = tiles * group / groups, end = tiles * (group + 1) / groups;
      run<kRows>(static_cast<int>(end - first), cols,
                 OverChannels{k, left + first * kLanes, left_stride, right, out + first * kPanel});
    }
  }

  static void multiply_over_tiles(int64_t channels, int cols, int64_t tiles, const float* left, int64_t left_stride,
                                  const float* right, float* out, bool add) {
    constexpr int kMost = Isa::channel_rows;
    static_assert(kLanes % kMost == 0);
    for (int64_t r = 0; r < channels; r += kMost)
      run<kMost>(static_cast<int>(channels - r < kMost ? channels - r : kMost), cols,
                 OverTiles{tiles, left + r / kLanes * left_stride + r % kLanes, right, out + r * kPanel, add});
  }
};

}  // namespace bonfire::cpu
