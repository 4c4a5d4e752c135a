#pragma once
// Matrix products whose operands are packed once and used many times: the weight of a recurrence, the parts of a layer
// over a large vocabulary. gemm.h would pack them anew for every product. Private to backend/cpu.
//
//   PackedProduct<float> product(n, k);                                // C [m, n] = A [m, k] · B [k, n], any m
//   product.pack_b(weight, Axis{{n, 1}}, Axis{{k, n}}, b);             // b: b_bytes() bytes
//   product.pack_a(x, Axis{{m, k}}, Axis{{k, 1}}, a);                  // a: a_bytes(m) bytes
//   product.multiply(m, a, b, c, product.stride());
//
// Element is the type of the operands, sums are Compute<Element>. Instructions for bf16 are used as in gemm.h; whether
// f32 made of parts of bf16 is faster than f32 itself depends on the processor and on what runs beside, so callers may
// offer both. The order of additions follows from k alone. Memory for packed operands begins at multiples of 64 bytes.

#include <cstddef>
#include <cstdint>

#include "bonfire/backend/cpu/gemm/gemm_driver.h"
#include "bonfire/backend/cpu/simd/floating.h"

namespace bonfire::cpu {

template <class Element>
class PackedProduct {
 public:
  using Acc = Compute<Element>;

  PackedProduct(int64_t n, int64_t k, F32 f32 = F32::split);

  size_t a_bytes(int64_t m) const;
  size_t b_bytes() const;
  int64_t stride() const;  // elements, the least between rows of C

  // Element (row, step of k) of A is data[rows.offset(row) + depth.offset(step)]; the extent of `rows` is m.
  void pack_a(const Element* data, const Axis& rows, const Axis& depth, std::byte* a) const;
  void pack_b(const Element* data, const Axis& columns, const Axis& depth, std::byte* b) const;

  // Whole vectors of a row are written: stride() elements at most.
  void multiply(int64_t m, const std::byte* a, const std::byte* b, Acc* c, int64_t c_stride, bool add = false) const;

  // The same for an A that is not packed: element (row, step) is a[row * a_stride + step]. For some sizes on some
  // processors; elsewhere pack_a() and multiply().
  bool takes_rows(int64_t m) const;
  void multiply_rows(int64_t m, const Element* a, int64_t a_stride, const std::byte* b, Acc* c, int64_t c_stride,
                     bool add = false) const;

  // Whether instructions for bf16 multiply, much faster than others.
  bool is_fast() const { return narrow_ != nullptr; }

 private:
  template <class Body>
  auto with_kernel(const Body& body) const;

  int64_t n_, k_;
  const TileKernel<Acc, Acc>* wide_;
  const TileKernel<float, uint16_t>* narrow_ = nullptr;  // preferred where it is there
};

}  // namespace bonfire::cpu
