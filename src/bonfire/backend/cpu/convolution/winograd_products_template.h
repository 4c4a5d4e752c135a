#pragma once
// Products of transformed tiles, for winograd_kernel_template.h.

#include "bonfire/backend/cpu/convolution/winograd_kernel.h"
#include "bonfire/backend/cpu/gemm/gemm_vector_template.h"

namespace bonfire::cpu {

template <class Isa>
struct WinogradProducts {
  using G = GemmVectors<Isa>;
  using Vector = typename G::Vector;
  static constexpr int kLanes = G::kLanes;
  static constexpr int kRows = Isa::mr;
  static constexpr int kVectors = Isa::vectors;
  static constexpr int kPanel = kVectors * kLanes;
  static constexpr int64_t kStretch = 64;  // of K

  // Adds `steps` of K, whose left numbers are row_step and k_step apart.
  template <int Rows, int Vectors, int RowStep, int KStep>
  [[gnu::always_inline]] static void add_steps(int64_t steps, const float* left, const float* right,
                                               Vector (&sum)[Rows][Vectors]) {
    for (int64_t k = 0; k < steps; ++k) {
      Vector columns[Vectors];
#pragma GCC unroll 8
      for (int v = 0; v < Vectors; ++v) columns[v] = G::template load<Vector>(right + v * kLanes);
      // Both loops are written out: with one that asks a function for its number, sums leave the registers.
      if constexpr (Isa::a_by_lane && RowStep == 1 && Rows == kLanes) {  // one load for all rows
        Vector numbers = G::template load<Vector>(left);
        Isa::hold(numbers);
#pragma GCC unroll 32
        for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 8
          for (int v = 0; v < Vectors; ++v) sum[r][v] += columns[v] * numbers[r];
      } else {
#pragma GCC unroll 32
        for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 8
          for (int v = 0; v < Vectors; ++v) sum[r][v] += columns[v] * left[r * RowStep];
      }
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

  template <int Count>
  [[gnu::always_inline]] static void prefetch(const float* data) {
#pragma GCC unroll 16
    for (int i = 0; i < Count; i += 16) __builtin_prefetch(data + i);
  }

  struct OverChannels {
    int64_t k;
    const float* left;
    int64_t left_stride;  // between blocks of channels
    const float* right;
    float* out;
    bool add;

    // Long sums are cut: adding up the sums of stretches of K has a smaller rounding error.
    template <int Rows, int Vectors>
    void run() const {
      for (int64_t done = 0; done < k; done += kStretch)
        run_stretch<Rows, Vectors>(k - done < kStretch ? k - done : kStretch, left + done / kLanes * left_stride,
                                   right + done * kPanel, add || done > 0);
    }

    template <int Rows, int Vectors>
    [[gnu::always_inline]] void run_stretch(int64_t steps, const float* numbers, const float* columns,
                                            bool to_old) const {
      Vector sum[Rows][Vectors] = {};
      int64_t done = 0;
      for (; done + kLanes <= steps; done += kLanes, numbers += left_stride, columns += kLanes * kPanel) {
        prefetch<Rows * kLanes>(numbers + 2 * left_stride);
        if constexpr (Isa::a_by_lane)
          add_lanes<Rows, Vectors>(numbers, columns, sum);
        else
          add_steps<Rows, Vectors, kLanes, 1>(kLanes, numbers, columns, sum);
      }
      add_steps<Rows, Vectors, kLanes, 1>(steps - done, numbers, columns, sum);
      store<Rows, Vectors>(sum, out, to_old);
    }
  };

  struct OverTiles {
    int64_t tiles;
    const float* left;
    int64_t left_stride;  // between groups
    const float* right;
    int64_t right_stride, group;
    float* out;
    bool add;

    template <int Rows, int Vectors>
    void run() const {
      Vector sum[Rows][Vectors] = {};
      const float* numbers = left;
      const float* columns = right;
      for (int64_t done = 0; done < tiles; done += group, numbers += left_stride, columns += right_stride) {
        prefetch<16 * kLanes>(numbers + left_stride);
        add_steps<Rows, Vectors, 1, kLanes>(tiles - done < group ? tiles - done : group, numbers, columns, sum);
      }
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

  static void multiply(int tiles, int cols, int64_t k, const float* left, int64_t left_stride, const float* right,
                       float* out, bool add) {
    run<kRows>(tiles, cols, OverChannels{k, left, left_stride, right, out, add});
  }

  static void multiply_over_tiles(int64_t rows, int cols, int64_t tiles, const float* left,
                                  const WinogradPlaces& left_places, const float* right,
                                  const WinogradPlaces& right_places, float* out, bool add) {
    constexpr int kMost = Isa::channel_rows;
    static_assert(kLanes % kMost == 0);
    for (int64_t r = 0; r < rows; r += kMost)
      run<kMost>(static_cast<int>(rows - r < kMost ? rows - r : kMost), cols,
                 OverTiles{tiles, left + r / kLanes * left_places.block_stride + r % kLanes, left_places.group_stride,
                           right, right_places.group_stride, right_places.group, out + r * kPanel, add});
  }
};

}  // namespace bonfire::cpu
