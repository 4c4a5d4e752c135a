#pragma once
// Winograd's transforms in one dimension, for vectors of any kind; applied to the columns and then to the rows of a
// tile they are the transforms in two.
//
// m results of a filter with r taps over n = m + r - 1 numbers are coefficients of a product of polynomials, and a
// product is known from its values at n points. The points are 0, pairs +-a, and infinity. With the matrices
//   G (weights -> values), B' (patch -> values), A' (products of values -> results),
//   results = A' [(G w) . (B' d)],
// and since this is bilinear, the gradient by the weights is G' [(A dy) . (B' d)]: the same points, all transposed.
//
// The error grows with the size of the points' powers. For n = 6 the points +-sqrt(1/2), +-sqrt(2) have less than half
// the error of the usual +-1, +-2 and as few operations.

namespace bonfire::cpu {

template <int Tile, int Kernel>
struct WinogradLines;

template <>
struct WinogradLines<2, 3> {  // points 0, 1, -1, infinity
  struct Patch {              // B'
    static constexpr int kIn = 4, kOut = 4;
    template <class V>
    [[gnu::always_inline]] static void apply(const V (&d)[4], V (&t)[4]) {
      t[0] = d[2] - d[0];
      t[1] = d[2] + d[1];
      t[2] = d[2] - d[1];
      t[3] = d[3] - d[1];
    }
  };
  struct Result {  // A'
    static constexpr int kIn = 4, kOut = 2;
    template <class V>
    [[gnu::always_inline]] static void apply(const V (&t)[4], V (&y)[2]) {
      y[0] = t[0] + (t[1] + t[2]);
      y[1] = t[3] + (t[1] - t[2]);
    }
  };
  struct ResultGradient {  // A
    static constexpr int kIn = 2, kOut = 4;
    template <class V>
    [[gnu::always_inline]] static void apply(const V (&y)[2], V (&t)[4]) {
      t[0] = y[0];
      t[1] = y[0] + y[1];
      t[2] = y[0] - y[1];
      t[3] = y[1];
    }
  };
  struct Weight {  // G
    static constexpr int kIn = 3, kOut = 4;
    template <class V>
    [[gnu::always_inline]] static void apply(const V (&w)[3], V (&t)[4]) {
      const V even = (w[0] + w[2]) * 0.5F, odd = w[1] * 0.5F;
      t[0] = -w[0];
      t[1] = even + odd;
      t[2] = even - odd;
      t[3] = w[2];
    }
  };
  struct WeightGradient {  // G'
    static constexpr int kIn = 4, kOut = 3;
    template <class V>
    [[gnu::always_inline]] static void apply(const V (&t)[4], V (&w)[3]) {
      const V even = (t[1] + t[2]) * 0.5F;
      w[0] = even - t[0];
      w[1] = (t[1] - t[2]) * 0.5F;
      w[2] = even + t[3];
    }
  };
};

struct WinogradSixPoints {                           // points 0, a, -a, b, -b, infinity
  static constexpr float kA = 0.70710678118654752F;  // a^2 = 1/2
  static constexpr float kB = 1.41421356237309505F;  // b^2 = 2
  struct Patch {                                     // B'
    static constexpr int kIn = 6, kOut = 6;
    template <class V>
    [[gnu::always_inline]] static void apply(const V (&d)[6], V (&t)[6]) {
      const V even_a = d[4] - 2.0F * d[2], odd_a = d[3] - 2.0F * d[1];
      const V even_b = d[4] - 0.5F * d[2], odd_b = d[3] - 0.5F * d[1];
      t[0] = (d[0] + d[4]) - 2.5F * d[2];
      t[1] = even_a + kA * odd_a;
      t[2] = even_a - kA * odd_a;
      t[3] = even_b + kB * odd_b;
      t[4] = even_b - kB * odd_b;
      t[5] = (d[1] + d[5]) - 2.5F * d[3];
    }
  };
};

template <>
struct WinogradLines<4, 3> : WinogradSixPoints {
  struct Result {  // A'
    static constexpr int kIn = 6, kOut = 4;
    template <class V>
    [[gnu::always_inline]] static void apply(const V (&t)[6], V (&y)[4]) {
      const V even_a = t[1] + t[2], odd_a = (t[1] - t[2]) * kA;
      const V even_b = t[3] + t[4], odd_b = (t[3] - t[4]) * kB;
      y[0] = t[0] + (even_a + even_b);
      y[1] = odd_a + odd_b;
      y[2] = 0.5F * even_a + 2.0F * even_b;
      y[3] = t[5] + (0.5F * odd_a + 2.0F * odd_b);
    }
  };
  struct ResultGradient {  // A
    static constexpr int kIn = 4, kOut = 6;
    template <class V>
    [[gnu::always_inline]] static void apply(const V (&y)[4], V (&t)[6]) {
      const V even_a = y[0] + 0.5F * y[2], odd_a = y[1] + 0.5F * y[3];
      const V even_b = y[0] + 2.0F * y[2], odd_b = y[1] + 2.0F * y[3];
      t[0] = y[0];
      t[1] = even_a + kA * odd_a;
      t[2] = even_a - kA * odd_a;
      t[3] = even_b + kB * odd_b;
      t[4] = even_b - kB * odd_b;
      t[5] = y[3];
    }
  };
  struct Weight {  // G
    static constexpr int kIn = 3, kOut = 6;
    template <class V>
    [[gnu::always_inline]] static void apply(const V (&w)[3], V (&t)[6]) {
      const V even_a = (w[0] + 0.5F * w[2]) * (-1 / 1.5F), odd_a = w[1] * (-kA / 1.5F);
      const V even_b = (w[0] + 2.0F * w[2]) * (1 / 6.0F), odd_b = w[1] * (kB / 6.0F);
      t[0] = w[0];
      t[1] = even_a + odd_a;
      t[2] = even_a - odd_a;
      t[3] = even_b + odd_b;
      t[4] = even_b - odd_b;
      t[5] = w[2];
    }
  };
  struct WeightGradient {  // G'
    static constexpr int kIn = 6, kOut = 3;
    template <class V>
    [[gnu::always_inline]] static void apply(const V (&t)[6], V (&w)[3]) {
      const V even_a = (t[1] + t[2]) * (-1 / 1.5F), odd_a = (t[1] - t[2]) * (-kA / 1.5F);
      const V even_b = (t[3] + t[4]) * (1 / 6.0F), odd_b = (t[3] - t[4]) * (kB / 6.0F);
      w[0] = t[0] + (even_a + even_b);
      w[1] = odd_a + odd_b;
      w[2] = t[5] + (0.5F * even_a + 2.0F * even_b);
    }
  };
};

template <>
struct WinogradLines<2, 5> : WinogradSixPoints {
  struct Result {  // A'
    static constexpr int kIn = 6, kOut = 2;
    template <class V>
    [[gnu::always_inline]] static void apply(const V (&t)[6], V (&y)[2]) {
      y[0] = t[0] + ((t[1] + t[2]) + (t[3] + t[4]));
      y[1] = t[5] + (kA * (t[1] - t[2]) + kB * (t[3] - t[4]));
    }
  };
  struct ResultGradient {  // A
    static constexpr int kIn = 2, kOut = 6;
    template <class V>
    [[gnu::always_inline]] static void apply(const V (&y)[2], V (&t)[6]) {
      t[0] = y[0];
      t[1] = y[0] + kA * y[1];
      t[2] = y[0] - kA * y[1];
      t[3] = y[0] + kB * y[1];
      t[4] = y[0] - kB * y[1];
      t[5] = y[1];
    }
  };
  struct Weight {  // G
    static constexpr int kIn = 5, kOut = 6;
    template <class V>
    [[gnu::always_inline]] static void apply(const V (&w)[5], V (&t)[6]) {
      const V even_a = (w[0] + 0.5F * w[2] + 0.25F * w[4]) * (-1 / 1.5F), odd_a = (w[1] + 0.5F * w[3]) * (-kA / 1.5F);
      const V even_b = (w[0] + 2.0F * w[2] + 4.0F * w[4]) * (1 / 6.0F), odd_b = (w[1] + 2.0F * w[3]) * (kB / 6.0F);
      t[0] = w[0];
      t[1] = even_a + odd_a;
      t[2] = even_a - odd_a;
      t[3] = even_b + odd_b;
      t[4] = even_b - odd_b;
      t[5] = w[4];
    }
  };
  struct WeightGradient {  // G'
    static constexpr int kIn = 6, kOut = 5;
    template <class V>
    [[gnu::always_inline]] static void apply(const V (&t)[6], V (&w)[5]) {
      const V even_a = (t[1] + t[2]) * (-1 / 1.5F), odd_a = (t[1] - t[2]) * (-kA / 1.5F);
      const V even_b = (t[3] + t[4]) * (1 / 6.0F), odd_b = (t[3] - t[4]) * (kB / 6.0F);
      w[0] = t[0] + (even_a + even_b);
      w[1] = odd_a + odd_b;
      w[2] = 0.5F * even_a + 2.0F * even_b;
      w[3] = 0.5F * odd_a + 2.0F * odd_b;
      w[4] = t[5] + (0.25F * even_a + 4.0F * even_b);
    }
  };
};

}  // namespace bonfire::cpu
