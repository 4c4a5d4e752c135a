#include "bonfire/backend/cpu/gemm/packed_product.h"

#include <algorithm>

namespace bonfire::cpu {

namespace {

constexpr int64_t kAlignment = 64;  // bytes

int64_t round_up(int64_t a, int64_t b) { return (a + b - 1) / b * b; }

// Slices of K one after the other, each as panels.
template <class Acc, class Packed>
size_t bytes_of(const TileKernel<Acc, Packed>& kernel, PanelLayout layout, int64_t lanes, int64_t k) {
  const int64_t slices = k / kernel.kc, rest = layout.steps(k - slices * kernel.kc);
  const int64_t numbers = round_up(lanes, layout.width) * (slices * layout.steps(kernel.kc) + rest);
  return static_cast<size_t>(round_up(numbers * static_cast<int64_t>(sizeof(Packed)), kAlignment));
}

template <class Element, class Acc, class Packed>
void pack(const TileKernel<Acc, Packed>& kernel, PanelLayout layout, const Element* data, const Axis& lanes, int64_t k,
          const Axis& depth, Packed* to) {
  const MemorySource<Element, Acc> source(data, lanes, depth);
  const int64_t count = lanes.extent();
  for (int64_t first = 0; first < k; first += kernel.kc) {
    const PanelBlock block{0, count, first, std::min(kernel.kc, k - first)};
    if constexpr (std::is_same_v<Acc, Packed>)
      source.pack(block, layout.width, to, {});
    else
      source.pack_bf16(block, layout, to, {});
    to += round_up(count, layout.width) * layout.steps(block.kc);
  }
}

template <class Element>
const TileKernel<float, uint16_t>* narrow_kernel(F32 f32) {
  if constexpr (std::is_same_v<Element, bfloat16>)
    return bf16_kernel();
  else if constexpr (std::is_same_v<Element, float>)
    return f32 == F32::split ? split_kernel() : nullptr;
  else
    return nullptr;
}

}  // namespace

template <class Element>
PackedProduct<Element>::PackedProduct(int64_t n, int64_t k, F32 f32)
    : n_(n), k_(k), wide_(&gemm_kernel<Acc>()), narrow_(narrow_kernel<Element>(f32)) {}

template <class Element>
template <class Body>
auto PackedProduct<Element>::with_kernel(const Body& body) const {
  if constexpr (std::is_same_v<Acc, float>)
    if (narrow_ != nullptr) return body(*narrow_);
  return body(*wide_);
}

template <class Element>
size_t PackedProduct<Element>::a_bytes(int64_t m) const {
  return with_kernel([&](const auto& kernel) { return bytes_of(kernel, kernel.layout_a(), m, k_); });
}

template <class Element>
size_t PackedProduct<Element>::b_bytes() const {
  return with_kernel([&](const auto& kernel) { return bytes_of(kernel, kernel.layout_b(), n_, k_); });
}

template <class Element>
int64_t PackedProduct<Element>::stride() const {
  return with_kernel([&](const auto& kernel) { return round_up(n_, kernel.lanes); });
}

template <class Element>
void PackedProduct<Element>::pack_a(const Element* data, const Axis& rows, const Axis& depth, std::byte* a) const {
  with_kernel([&]<class Packed>(const TileKernel<Acc, Packed>& kernel) {
    pack(kernel, kernel.layout_a(), data, rows, k_, depth, reinterpret_cast<Packed*>(a));
  });
}

template <class Element>
void PackedProduct<Element>::pack_b(const Element* data, const Axis& columns, const Axis& depth, std::byte* b) const {
  with_kernel([&]<class Packed>(const TileKernel<Acc, Packed>& kernel) {
    pack(kernel, kernel.layout_b(), data, columns, k_, depth, reinterpret_cast<Packed*>(b));
  });
}

template <class Element>
void PackedProduct<Element>::multiply(int64_t m, const std::byte* a, const std::byte* b, Acc* c, int64_t c_stride,
                                      bool add) const {
  with_kernel([&]<class Packed>(const TileKernel<Acc, Packed>& kernel) {
    const auto* rows = reinterpret_cast<const Packed*>(a);
    const auto* columns = reinterpret_cast<const Packed*>(b);
    if (kernel.begin) kernel.begin();
    for (int64_t k = 0; k < k_; k += kernel.kc) {
      const int64_t steps = kernel.layout_a().steps(std::min(kernel.kc, k_ - k));
      for (int64_t j = 0; j < n_; j += kernel.nr)
        for (int64_t i = 0; i < m; i += kernel.mr)
          kernel.multiply(static_cast<int>(std::min<int64_t>(kernel.mr, m - i)),
                          static_cast<int>(std::min<int64_t>(kernel.nr, n_ - j)), steps, rows + i * steps, kernel.mr,
                          columns + j * steps, kernel.nr, c + i * c_stride + j, c_stride, add || k > 0);
      rows += round_up(m, kernel.mr) * steps;
      columns += round_up(n_, kernel.nr) * steps;
    }
    if (kernel.end) kernel.end();
  });
}

template <class Element>
bool PackedProduct<Element>::takes_rows(int64_t m) const {
  return std::is_same_v<Element, bfloat16> && narrow_ != nullptr && narrow_->multiply_rows != nullptr &&
         m % narrow_->lanes == 0 && k_ % narrow_->group() == 0 && k_ <= narrow_->kc;
}

template <class Element>
void PackedProduct<Element>::multiply_rows(int64_t m, const Element* a, int64_t a_stride, const std::byte* b, Acc* c,
                                           int64_t c_stride, bool add) const {
  if constexpr (std::is_same_v<Element, bfloat16>) {
    const TileKernel<float, uint16_t>& kernel = *narrow_;
    const auto* rows = reinterpret_cast<const uint16_t*>(a);
    const auto* columns = reinterpret_cast<const uint16_t*>(b);
    if (kernel.begin) kernel.begin();
    for (int64_t j = 0; j < n_; j += kernel.nr)
      for (int64_t i = 0; i < m; i += kernel.mr)
        kernel.multiply_rows(static_cast<int>(std::min<int64_t>(kernel.mr, m - i)),
                             static_cast<int>(std::min<int64_t>(kernel.nr, n_ - j)), k_, rows + i * a_stride, a_stride,
                             columns + j * k_, kernel.nr, c + i * c_stride + j, c_stride, add);
    if (kernel.end) kernel.end();
  }
}

template class PackedProduct<float>;
template class PackedProduct<double>;
template class PackedProduct<bfloat16>;

}  // namespace bonfire::cpu
