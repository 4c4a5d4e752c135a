#pragma once
// Blocked matrix products over operands and results that need not be matrices in memory: the core under gemm.h and
// convolution_core.h. Private to backend/cpu.
//
// out(i, j) = activation(sum over k of A(i, k) * B(k, j) + bias + residual(i, j) (+ out(i, j)))
//
// An operand is a PanelSource: it writes any block of itself as packed panels (gemm_kernel.h), so a convolution packs
// image patches straight into panels and never holds them all. The result is any array whose elements have separable
// addresses: out[rows.offset(i) + cols.offset(j)].
//
// How the work is cut. K is cut into slices short enough that a panel of B stays in the first-level cache. When one
// operand is small enough it is packed once, by all threads, and shared; blocks of the other one are tasks, each packed
// privately by the thread that takes it. (An operand that few tiles would use is not packed at all.) When K is too long
// for that, both are packed privately, and a small result (the gradient of a convolution's weight) is also cut along K
// into a number of parts that are summed at the end. All that decides the order of additions follows from the shape
// alone, so results do not depend on the thread count.
//
// Where the processor multiplies bf16 and both operands are made of it, their panels are bf16 too (pack_bf16);
// otherwise they are widened while they are packed. Where it multiplies bf16 many times faster than f32, large products
// of f32 are made of products of bf16 (gemm_kernel.h).

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <type_traits>

#include "bonfire/backend/cpu/gemm/gemm_kernel.h"
#include "bonfire/base/thread_pool.h"
#include "bonfire/tensor/dtype.h"

namespace bonfire::cpu {

// Index -> offset, for an index that stands for up to four nested ones (outermost first), such as pixel -> (n, y, x).
class Axis {
 public:
  struct Dim {
    int64_t extent, stride;
  };
  Axis() = default;
  Axis(std::initializer_list<Dim> dims);

  int64_t extent() const;
  int64_t offset(int64_t index) const;
  // The distance between neighbours where it is the same for all (1 for a single one), otherwise 0.
  int64_t even_stride() const { return rank_ == 1 ? dims_[0].stride : rank_ == 0 ? 1 : 0; }
  // Offsets of [first, first + out.size()).
  void offsets(int64_t first, std::span<int64_t> out) const;

 private:
  int rank_ = 0;
  std::array<Dim, 4> dims_{};
};

// A part of an operand: some of its lanes (rows of A, columns of B), and a slice of K.
struct PanelBlock {
  int64_t lane, lanes;
  int64_t k, kc;
  bool same_lanes = false;  // the call before this one, with the same scratch, had these lanes too
};

template <class Acc>
class PanelSource {
 public:
  virtual ~PanelSource() = default;
  // Writes ceil(lanes / width) panels, one after the other. `scratch` has scratch_size() elements; what a source leaves
  // there is still there in a call with same_lanes.
  virtual void pack(const PanelBlock& block, int width, Acc* panels, std::span<Acc> scratch) const = 0;
  // Elements of scratch for blocks of at most this size.
  virtual int64_t scratch_size(int64_t /*lanes*/, int64_t /*kc*/) const { return 0; }
  // The distance between steps of K when lanes lie side by side in memory, as numbers of type Acc, so that they can be
  // multiplied where they are; otherwise 0.
  virtual int64_t step_in_place() const { return 0; }
  // The same for steps of K that lie side by side: the distance between lanes.
  virtual int64_t lane_in_place() const { return 0; }
  virtual const Acc* in_place(int64_t /*lane*/, int64_t /*k*/) const { return nullptr; }

  // How many numbers of bf16 one of the operand is the sum of, for pack_bf16() to write their bits (like pack()
  // otherwise): 1 for bf16, 3 for f32, 0 where there is no pack_bf16().
  virtual int bf16_parts() const { return 0; }
  // As lane_in_place() and in_place(), of an operand that is bf16.
  virtual int64_t bf16_lane_in_place() const { return 0; }
  virtual const uint16_t* bf16_in_place(int64_t /*lane*/, int64_t /*k*/) const { return nullptr; }
  virtual void pack_bf16(const PanelBlock& block, PanelLayout layout, uint16_t* panels, std::span<Acc> scratch) const;
};

template <class Element>
inline constexpr int kBf16Parts = std::is_same_v<Element, bfloat16> ? 1
                                  : std::is_same_v<Element, float>  ? 3
                                                                    : 0;

// An operand that lies in memory: element (lane, k) is data[lanes.offset(lane) + k.offset(k)].
template <class Element, class Acc>
class MemorySource final : public PanelSource<Acc> {
 public:
  MemorySource(const Element* data, const Axis& lanes, const Axis& k) : data_(data), lanes_(lanes), k_(k) {}
  void pack(const PanelBlock& block, int width, Acc* panels, std::span<Acc> scratch) const override;
  int64_t step_in_place() const override;
  int64_t lane_in_place() const override;
  const Acc* in_place(int64_t lane, int64_t k) const override;
  int bf16_parts() const override { return kBf16Parts<Element>; }
  int64_t bf16_lane_in_place() const override;
  const uint16_t* bf16_in_place(int64_t lane, int64_t k) const override;
  void pack_bf16(const PanelBlock& block, PanelLayout layout, uint16_t* panels, std::span<Acc> scratch) const override;

 private:
  template <class Packed>
  void pack_as(const PanelBlock& block, PanelLayout layout, Packed* panels) const;

  const Element* data_;
  Axis lanes_, k_;
};

// Packs lanes at data[lane_offset[i] + k_offset[k]]. `over_read` as in PackPanels. Packed is the type of the sums, or
// uint16_t for bf16.
template <class Element, class Packed>
void pack_panels(const Element* data, std::span<const int64_t> lane_offset, std::span<const int64_t> k_offset,
                 PanelLayout layout, bool over_read, Packed* panels);

enum class OutputType : uint8_t { same, bf16 };  // same: that of the sums

template <class Acc>
struct Product {
  int64_t m = 0, n = 0, k = 0;
  const PanelSource<Acc>* a = nullptr;
  const PanelSource<Acc>* b = nullptr;
  void* out = nullptr;
  OutputType out_type = OutputType::same;
  Axis rows{}, cols{};            // of out; offsets increase
  bool add = false;               // to what out holds
  const Acc* row_bias = nullptr;  // [m]
  const Acc* col_bias = nullptr;  // [n]
  Activation activation = Activation::none;
  const void* residual = nullptr;  // type and addresses as out; must not overlap it
  F32 f32 = F32::split;
};

// Whether it is made of products of parts: of f32 that is asked to be split, where that pays.
bool is_split(const Product<float>& product);

// Bytes that multiply() needs on a pool of `threads`; data pointers are not looked at.
template <class Acc>
size_t product_workspace(const Product<Acc>& product, int threads);

// With a null pool the calling thread works alone (workspace for one thread).
template <class Acc>
void multiply(const Product<Acc>& product, std::span<std::byte> workspace, ThreadPool* pool);

// Calls body(slot, task) for each task; calls with the same slot (< slots) never overlap, so a slot can own scratch
// memory. Which slot a task gets varies from run to run.
template <class Body>
void for_each_task(ThreadPool* pool, int64_t slots, int64_t tasks, const Body& body) {
  if (pool == nullptr || slots <= 1 || tasks <= 1) {
    for (int64_t task = 0; task < tasks; ++task) body(int64_t{0}, task);
    return;
  }
  std::atomic<int64_t> next{0};
  pool->run(slots < tasks ? slots : tasks, [&](int64_t slot) {
    for (int64_t task = next.fetch_add(1); task < tasks; task = next.fetch_add(1)) body(slot, task);
  });
}

}  // namespace bonfire::cpu
