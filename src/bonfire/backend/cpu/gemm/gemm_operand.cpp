#include <algorithm>
#include <type_traits>

#include "bonfire/backend/cpu/gemm/gemm_driver.h"
#include "bonfire/base/error.h"
#include "bonfire/tensor/dtype.h"

namespace bonfire::cpu {

Axis::Axis(std::initializer_list<Dim> dims) {
  BONFIRE_CHECK(dims.size() <= dims_.size());
  for (const Dim& dim : dims) {
    // A dimension of one index, or one that continues the dimension before it, needs no level of its own.
    if (dim.extent == 1) continue;
    if (rank_ > 0 && dims_[rank_ - 1].stride == dim.extent * dim.stride)
      dims_[rank_ - 1] = {dims_[rank_ - 1].extent * dim.extent, dim.stride};
    else
      dims_[rank_++] = dim;
  }
}

int64_t Axis::extent() const {
  int64_t total = 1;
  for (int d = 0; d < rank_; ++d) total *= dims_[d].extent;
  return total;
}

int64_t Axis::offset(int64_t index) const {
  int64_t offset = 0;
  for (int d = rank_ - 1; d > 0; --d) {
    offset += index % dims_[d].extent * dims_[d].stride;
    index /= dims_[d].extent;
  }
  return rank_ > 0 ? offset + index * dims_[0].stride : 0;
}

void Axis::offsets(int64_t first, std::span<int64_t> out) const {
  if (out.empty()) return;
  if (rank_ == 0) {
    std::fill(out.begin(), out.end(), 0);
    return;
  }
  const Dim inner = dims_[rank_ - 1];
  size_t done = 0;
  while (done < out.size()) {
    int64_t index = first + static_cast<int64_t>(done);
    int64_t base = offset(index);
    int64_t run = rank_ == 1 ? static_cast<int64_t>(out.size()) : inner.extent - index % inner.extent;
    size_t end = std::min(out.size(), done + static_cast<size_t>(run));
    for (; done < end; ++done, base += inner.stride) out[done] = base;
  }
}

template <class Element, class Packed>
void pack_panels(const Element* data, std::span<const int64_t> lane_offset, std::span<const int64_t> k_offset,
                 PanelLayout layout, bool over_read, Packed* panels) {
  auto request = [&]<class Source>(const Source* source) {
    return PackPanels<Source, Packed>{.source = source,
                                      .lane_offset = lane_offset.data(),
                                      .lanes = static_cast<int64_t>(lane_offset.size()),
                                      .layout = layout,
                                      .k_offset = k_offset.data(),
                                      .kc = static_cast<int64_t>(k_offset.size()),
                                      .over_read = over_read,
                                      .panels = panels};
  };
  if constexpr (std::is_same_v<Packed, uint16_t> && std::is_same_v<Element, float>)
    split_kernel()->pack(request(data));
  else if constexpr (std::is_same_v<Packed, uint16_t>)
    bf16_kernel()->pack(request(reinterpret_cast<const uint16_t*>(data)));
  else if constexpr (std::is_same_v<Element, bfloat16>)
    gemm_kernel<Packed>().pack_bf16(request(reinterpret_cast<const uint16_t*>(data)));
  else
    gemm_kernel<Packed>().pack(request(data));
}
using Offsets = std::span<const int64_t>;
template void pack_panels(const float*, Offsets, Offsets, PanelLayout, bool, float*);
template void pack_panels(const double*, Offsets, Offsets, PanelLayout, bool, double*);
template void pack_panels(const bfloat16*, Offsets, Offsets, PanelLayout, bool, float*);
template void pack_panels(const bfloat16*, Offsets, Offsets, PanelLayout, bool, uint16_t*);
template void pack_panels(const float*, Offsets, Offsets, PanelLayout, bool, uint16_t*);

template <class Acc>
void PanelSource<Acc>::pack_bf16(const PanelBlock&, PanelLayout, uint16_t*, std::span<Acc>) const {
  BONFIRE_CHECK(false, "this operand has no parts of bf16");
}
template class PanelSource<float>;
template class PanelSource<double>;

template <class Element, class Acc>
template <class Packed>
void MemorySource<Element, Acc>::pack_as(const PanelBlock& block, PanelLayout layout, Packed* panels) const {
  int64_t k_offset[kMaxSliceK], lane_offset[16 * kMaxPanelWidth];
  k_.offsets(block.k, {k_offset, static_cast<size_t>(block.kc)});
  const int64_t group = 16 * layout.width;  // lanes
  for (int64_t lane = 0; lane < block.lanes; lane += group) {
    std::span<int64_t> offsets(lane_offset, static_cast<size_t>(std::min(group, block.lanes - lane)));
    lanes_.offsets(block.lane + lane, offsets);
    pack_panels<Element, Packed>(data_, offsets, {k_offset, static_cast<size_t>(block.kc)}, layout, false,
                                 panels + lane * layout.steps(block.kc));
  }
}

template <class Element, class Acc>
void MemorySource<Element, Acc>::pack(const PanelBlock& block, int width, Acc* panels, std::span<Acc>) const {
  pack_as(block, width, panels);
}

template <class Element, class Acc>
void MemorySource<Element, Acc>::pack_bf16(const PanelBlock& block, PanelLayout layout, uint16_t* panels,
                                           std::span<Acc> scratch) const {
  if constexpr (kBf16Parts < Element >> 0)
    pack_as(block, layout, panels);
  else
    PanelSource<Acc>::pack_bf16(block, layout, panels, scratch);
}

template <class Element, class Acc>
int64_t MemorySource<Element, Acc>::step_in_place() const {
  return std::is_same_v<Element, Acc> && lanes_.even_stride() == 1 ? k_.even_stride() : 0;
}

template <class Element, class Acc>
int64_t MemorySource<Element, Acc>::lane_in_place() const {
  return std::is_same_v<Element, Acc> && k_.even_stride() == 1 ? lanes_.even_stride() : 0;
}

template <class Element, class Acc>
const Acc* MemorySource<Element, Acc>::in_place(int64_t lane, int64_t k) const {
  if constexpr (std::is_same_v<Element, Acc>) return data_ + lanes_.offset(lane) + k_.offset(k);
  return nullptr;
}

template <class Element, class Acc>
int64_t MemorySource<Element, Acc>::bf16_lane_in_place() const {
  return std::is_same_v<Element, bfloat16> && k_.even_stride() == 1 ? lanes_.even_stride() : 0;
}

template <class Element, class Acc>
const uint16_t* MemorySource<Element, Acc>::bf16_in_place(int64_t lane, int64_t k) const {
  if constexpr (std::is_same_v<Element, bfloat16>)
    return reinterpret_cast<const uint16_t*>(data_ + lanes_.offset(lane) + k_.offset(k));
  return nullptr;
}

template class MemorySource<float, float>;
template class MemorySource<double, double>;
template class MemorySource<bfloat16, float>;

}  // namespace bonfire::cpu
