#pragma once
// A matrix that is packed once and then multiplied from the left many times, by few rows each time: the weight of a
// recurrence. gemm.h would pack it anew for every product. Private to backend/cpu.
//
//   PackedMatrix<float> weight(k, n);
//   weight.pack(data, Axis{{n, 1}}, Axis{{k, n}}, memory);     // memory: packed_elements()
//   weight.multiply(memory, a, rows, k, c, scratch);           // c [rows, stride()] = a [rows, k] · the matrix
//
// Element is the type of the operands; sums and what is packed are Compute<Element>. The order of additions follows
// from k alone.

#include <algorithm>

#include "bonfire/backend/cpu/floating.h"
#include "bonfire/backend/cpu/gemm_driver.h"

namespace bonfire::cpu {

template <class Element>
class PackedMatrix {
 public:
  using Acc = Compute<Element>;

  PackedMatrix(int64_t k, int64_t n) : k_(k), n_(n), kernel_(gemm_kernel<Acc>()) {}

  int64_t stride() const { return panels(n_, kernel_.nr) * kernel_.nr; }  // between rows of results, elements
  int64_t packed_elements() const { return stride() * k_; }
  int64_t scratch_elements(int64_t rows) const { return panels(rows, kernel_.mr) * kernel_.mr * kernel_.kc; }

  // Element (step of k, column) is data[depth.offset(step) + columns.offset(column)].
  void pack(const Element* data, const Axis& columns, const Axis& depth, Acc* memory) const {
    MemorySource<Element, Acc> source(data, columns, depth);
    for (int64_t k = 0; k < k_; k += kernel_.kc)
      source.pack({0, n_, k, slice(k)}, kernel_.nr, memory + k * stride(), {});
  }

  // `a` has rows lda elements apart.
  void multiply(const Acc* packed, const Element* a, int64_t rows, int64_t lda, Acc* c, Acc* scratch) const {
    MemorySource<Element, Acc> source(a, Axis{{rows, lda}}, Axis{{k_, 1}});
    for (int64_t k = 0; k < k_; k += kernel_.kc) {
      const int64_t kc = slice(k);
      source.pack({0, rows, k, kc}, kernel_.mr, scratch, {});
      for (int64_t column = 0; column < n_; column += kernel_.nr) {
        const Acc* panel = packed + k * stride() + column * kc;
        for (int64_t row = 0; row < rows; row += kernel_.mr)
          kernel_.multiply(static_cast<int>(std::min<int64_t>(kernel_.mr, rows - row)), kernel_.nr, kc,
                           scratch + row * kc, kernel_.mr, panel, kernel_.nr, c + row * stride() + column, stride(),
                           k > 0);
      }
    }
  }

 private:
  static int64_t panels(int64_t lanes, int width) { return (lanes + width - 1) / width; }
  int64_t slice(int64_t k) const { return std::min(kernel_.kc, k_ - k); }

  int64_t k_, n_;
  const GemmKernel<Acc>& kernel_;
};

}  // namespace bonfire::cpu
