#include <algorithm>
#include <type_traits>

#include "bonfire/backend/cpu/device/threads.h"
#include "bonfire/backend/cpu/gemm/packed_product.h"
#include "bonfire/backend/cpu/simd/every_instruction_set.h"
#include "bonfire/backend/cpu/simd/floating.h"
#include "bonfire/base/vector_math.h"

namespace bonfire::cpu {

namespace {

using base::hyperbolic_tangent;
using base::sigmoid;

struct LstmSizes {
  int64_t times, batch, hidden;

  explicit LstmSizes(const Shape& gates) : times(gates[0]), batch(gates[1]), hidden(gates[2] / 4) {}  // [T, N, 4H]

  int64_t cells() const { return batch * hidden; }
};

// Rows of the batch do not need each other: each thread takes some of them through all times, without waiting for the
// others. They share the packed weight.
class Parts {
 public:
  Parts(const LstmSizes& size, int threads)
      : batch_(size.batch), count_(std::clamp<int64_t>(size.batch / kFewestRows, 1, threads)) {}

  int64_t count() const { return count_; }
  int64_t most_rows() const { return (batch_ + count_ - 1) / count_; }
  int64_t begin(int64_t part) const { return batch_ * part / count_; }
  int64_t rows(int64_t part) const { return begin(part + 1) - begin(part); }

 private:
  static constexpr int64_t kFewestRows = 8;
  int64_t batch_, count_;
};

constexpr size_t kAlignment = 64;  // bytes, of each part of the workspace

size_t aligned(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

// What a part of the batch works with: sums of the recurrent product [rows, stride], the gradient or value of c
// [rows, H], and the packed operand of the product.
template <class T>
struct PartMemory {
  using Acc = Compute<T>;
  size_t sums_bytes, cell_bytes, packed_bytes;

  PartMemory(const PackedProduct<T>& product, int64_t rows, int64_t hidden)
      : sums_bytes(aligned(static_cast<size_t>(rows * product.stride()) * sizeof(Acc))),
        cell_bytes(aligned(static_cast<size_t>(rows * hidden) * sizeof(Acc))),
        packed_bytes(product.a_bytes(rows)) {}

  size_t bytes() const { return sums_bytes + cell_bytes + packed_bytes; }
  Acc* sums(std::byte* memory) const { return reinterpret_cast<Acc*>(memory); }
  Acc* cell(std::byte* memory) const { return reinterpret_cast<Acc*>(memory + sums_bytes); }
  std::byte* packed(std::byte* memory) const { return memory + sums_bytes + cell_bytes; }
};

// ---- forward ----

template <class T>
struct Forward {
  using Acc = Compute<T>;
  LstmSizes size;
  Parts parts;
  PackedProduct<T> product;  // h [rows, H] · w_hhᵀ [H, 4H]
  PartMemory<T> part_memory;

  Forward(const LstmSizes& sizes, F32 f32)
      : size(sizes),
        parts(sizes, cpu_threads()),
        product(4 * size.hidden, size.hidden, f32),
        part_memory(product, parts.most_rows(), size.hidden) {}

  // The packed weight, then what each part needs.
  size_t workspace_bytes() const {
    return product.b_bytes() + static_cast<size_t>(parts.count()) * part_memory.bytes();
  }

  // One row at one time: gates are added up and activated, c is updated in place, h and a copy of c come out. Gates may
  // lie where `projected` does.
  void row(const T* projected, const Acc* __restrict recurrent, Acc* __restrict c, T* gates, T* __restrict cell,
           T* __restrict h) const {
    const int64_t hidden = size.hidden;
    auto total = [&](int64_t gate, int64_t j) {
      return static_cast<Acc>(projected[gate * hidden + j]) + recurrent[gate * hidden + j];
    };
#pragma GCC ivdep
    for (int64_t j = 0; j < hidden; ++j) {
      const Acc in = sigmoid(total(0, j)), forget = sigmoid(total(1, j));
      const Acc candidate = hyperbolic_tangent(total(2, j)), out = sigmoid(total(3, j));
      c[j] = forget * c[j] + in * candidate;
      gates[j] = static_cast<T>(in);
      gates[hidden + j] = static_cast<T>(forget);
      gates[2 * hidden + j] = static_cast<T>(candidate);
      gates[3 * hidden + j] = static_cast<T>(out);
      cell[j] = static_cast<T>(c[j]);
      h[j] = static_cast<T>(out * hyperbolic_tangent(c[j]));
    }
  }

  void run_part(const Run& run, int64_t part, const std::byte* weight, std::byte* memory) const {
    const int64_t hidden = size.hidden, rows = parts.rows(part), first = parts.begin(part) * hidden;
    const T *projected = run.input<T>(0), *h0 = run.input<T>(1), *c0 = run.input<T>(2);
    T *y = run.output<T>(0), *gates = run.output<T>(3), *cells = run.output<T>(4);
    Acc *recurrent = part_memory.sums(memory), *c = part_memory.cell(memory);
    std::copy_n(c0 + first, rows * hidden, c);
    for (int64_t t = 0; t < size.times; ++t) {
      const T* before = t == 0 ? h0 : y + (t - 1) * size.cells();
      product.pack_a(before + first, Axis{{rows, hidden}}, Axis{{hidden, 1}}, part_memory.packed(memory));
      product.multiply(rows, part_memory.packed(memory), weight, recurrent, product.stride());
      for (int64_t r = 0; r < rows; ++r) {
        const int64_t at = t * size.cells() + first + r * hidden;
        row(projected + 4 * at, recurrent + r * product.stride(), c + r * hidden, gates + 4 * at, cells + at, y + at);
      }
    }
  }

  void operator()(const Run& run) const {
    auto* weight = static_cast<std::byte*>(run.workspace);
    const int64_t hidden = size.hidden, last = (size.times - 1) * size.cells();
    product.pack_b(run.input<T>(3), Axis{{4 * hidden, hidden}}, Axis{{hidden, 1}}, weight);
    run.threads->run(parts.count(), [&](int64_t part) {
      run_part(run, part, weight, weight + product.b_bytes() + static_cast<size_t>(part) * part_memory.bytes());
    });
    std::copy_n(run.output<T>(0) + last, size.cells(), run.output<T>(1));  // h at the end
    std::copy_n(run.output<T>(4) + last, size.cells(), run.output<T>(2));  // c at the end
  }
};

// Candidates for a layer in one direction, with an output that may be written over an input. make(f32): the layer.
template <class T, class Make>
std::vector<Candidate> layer_candidates(const KernelRequest& request, const Make& make, int output, int input) {
  std::vector<Candidate> list;
  auto offer = [&](const char* name, F32 f32) {
    const auto layer = make(f32);
    list.push_back(make_candidate(request, name, layer));
    list.back().workspace_bytes = layer.workspace_bytes();
    list.back().in_place = {{output, input}};
    if (f32 == F32::split) list.back().error = kSplitError;
  };
  if (std::is_same_v<T, float> && split_kernel() != nullptr) offer("split", F32::split);
  offer("plain", F32::whole);
  return list;
}

std::vector<Candidate> forward_candidates(const KernelRequest& request) {
  const TensorSpec& projected = request.node.inputs[0].spec();
  return for_floating(projected.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    return layer_candidates<T>(
        request, [&](F32 f32) { return Forward<T>(LstmSizes(projected.shape), f32); }, 3, 0);
  });
}

// ---- backward ----

template <class T>
struct Backward {
  using Acc = Compute<T>;
  LstmSizes size;
  bool has_dy, has_dh, has_dc;
  Parts parts;
  PackedProduct<T> product;  // dgates [rows, 4H] · w_hh [4H, H]
  PartMemory<T> part_memory;

  Backward(const LstmSizes& sizes, const Attributes& attributes, F32 f32)
      : size(sizes),
        has_dy(attributes.flag("has_dy")),
        has_dh(attributes.flag("has_dh")),
        has_dc(attributes.flag("has_dc")),
        parts(sizes, cpu_threads()),
        product(size.hidden, 4 * size.hidden, f32),
        part_memory(product, parts.most_rows(), size.hidden) {}

  // The packed weight, then what each part needs.
  size_t workspace_bytes() const {
    return product.b_bytes() + static_cast<size_t>(parts.count()) * part_memory.bytes();
  }

  // One row at one time: dh and dc hold what flows back from later times; dc is updated in place. Gradients may lie
  // where the gates do. HasDy: dy is not null (asked for every number it would keep loops out of vectors).
  template <bool HasDy>
  void row(const T* gates, const T* __restrict cell, const T* __restrict cell_before, const T* __restrict dy,
           const Acc* __restrict dh, Acc* __restrict dc, T* dgates) const {
    const int64_t hidden = size.hidden;
#pragma GCC ivdep
    for (int64_t j = 0; j < hidden; ++j) {
      const Acc in = static_cast<Acc>(gates[j]), forget = static_cast<Acc>(gates[hidden + j]);
      const Acc candidate = static_cast<Acc>(gates[2 * hidden + j]), out = static_cast<Acc>(gates[3 * hidden + j]);
      const Acc squashed = hyperbolic_tangent(static_cast<Acc>(cell[j]));
      const Acc dh_all = dh[j] + (HasDy ? static_cast<Acc>(dy[j]) : Acc(0));
      const Acc dc_all = dc[j] + dh_all * out * (1 - squashed * squashed);
      dgates[j] = static_cast<T>(dc_all * candidate * in * (1 - in));
      dgates[hidden + j] = static_cast<T>(dc_all * static_cast<Acc>(cell_before[j]) * forget * (1 - forget));
      dgates[2 * hidden + j] = static_cast<T>(dc_all * in * (1 - candidate * candidate));
      dgates[3 * hidden + j] = static_cast<T>(dh_all * squashed * out * (1 - out));
      dc[j] = dc_all * forget;
    }
  }

  void run_part(const Run& run, int64_t part, const std::byte* weight, std::byte* memory) const {
    const int64_t hidden = size.hidden, rows = parts.rows(part), first = parts.begin(part) * hidden;
    const int64_t stride = product.stride();
    const T *c0 = run.input<T>(1), *gates = run.input<T>(2), *cells = run.input<T>(3);
    size_t next = 4;
    const T* dy = has_dy ? run.input<T>(next++) : nullptr;
    const T* dh_end = has_dh ? run.input<T>(next++) : nullptr;
    const T* dc_end = has_dc ? run.input<T>(next++) : nullptr;
    T *dgates = run.output<T>(0), *dh0 = run.output<T>(1), *dc0 = run.output<T>(2);
    Acc *dh = part_memory.sums(memory), *dc = part_memory.cell(memory);
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t j = 0; j < hidden; ++j) {
        const int64_t at = first + r * hidden + j;
        dh[r * stride + j] = has_dh ? static_cast<Acc>(dh_end[at]) : Acc(0);
        dc[r * hidden + j] = has_dc ? static_cast<Acc>(dc_end[at]) : Acc(0);
      }
    for (int64_t t = size.times - 1; t >= 0; --t) {
      const T* before = t == 0 ? c0 : cells + (t - 1) * size.cells();
      for (int64_t r = 0; r < rows; ++r) {
        const int64_t inside = first + r * hidden, at = t * size.cells() + inside;
        auto run_row = [&](auto has) {
          row<has>(gates + 4 * at, cells + at, before + inside, has ? dy + at : nullptr, dh + r * stride,
                   dc + r * hidden, dgates + 4 * at);
        };
        has_dy ? run_row(std::true_type()) : run_row(std::false_type());
      }
      product.pack_a(dgates + 4 * (t * size.cells() + first), Axis{{rows, 4 * hidden}}, Axis{{4 * hidden, 1}},
                     part_memory.packed(memory));
      product.multiply(rows, part_memory.packed(memory), weight, dh, stride);
    }
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t j = 0; j < hidden; ++j) {
        dh0[first + r * hidden + j] = static_cast<T>(dh[r * stride + j]);
        dc0[first + r * hidden + j] = static_cast<T>(dc[r * hidden + j]);
      }
  }

  void operator()(const Run& run) const {
    auto* weight = static_cast<std::byte*>(run.workspace);
    const int64_t hidden = size.hidden;
    product.pack_b(run.input<T>(0), Axis{{hidden, 1}}, Axis{{4 * hidden, hidden}}, weight);
    run.threads->run(parts.count(), [&](int64_t part) {
      run_part(run, part, weight, weight + product.b_bytes() + static_cast<size_t>(part) * part_memory.bytes());
    });
  }
};

std::vector<Candidate> backward_candidates(const KernelRequest& request) {
  const TensorSpec& gates = request.node.inputs[2].spec();
  return for_floating(gates.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    auto make = [&](F32 f32) { return Backward<T>(LstmSizes(gates.shape), request.node.attributes, f32); };
    return layer_candidates<T>(request, make, 0, 2);
  });
}

}  // namespace

BONFIRE_CPU_KERNELS(lstm, {"lstm_layer", forward_candidates}, {"lstm_layer_gradient", backward_candidates})

}  // namespace bonfire::cpu
