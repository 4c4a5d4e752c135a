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

// A state that goes in or comes out [N, H]: of type T, or wide (the type that numbers are computed in).
template <class T>
class State {
 public:
  State(void* memory, bool is_wide) : memory_(memory), is_wide_(is_wide) {}
  static bool is_wide(const GraphValue& value) { return value.spec().dtype != dtype_of<T>(); }

  Compute<T> at(int64_t i) const {
    return is_wide_ ? static_cast<Compute<T>*>(memory_)[i] : static_cast<Compute<T>>(static_cast<T*>(memory_)[i]);
  }
  void set(int64_t i, Compute<T> number) const {
    if (is_wide_) {
      static_cast<Compute<T>*>(memory_)[i] = number;
    } else {
      static_cast<T*>(memory_)[i] = static_cast<T>(number);
    }
  }

 private:
  void* memory_;
  bool is_wide_;
};

// ---- forward ----

template <class T>
struct Forward {
  using Acc = Compute<T>;
  LstmSizes size;
  Parts parts;
  PackedProduct<T> product;  // h [rows, H] · w_hhᵀ [H, 4H]
  PartMemory<T> part_memory;
  bool c_is_wide;

  Forward(const GraphNode& node, F32 f32)
      : size(node.inputs[0].spec().shape),
        parts(size, cpu_threads()),
        product(4 * size.hidden, size.hidden, f32),
        part_memory(product, parts.most_rows(), size.hidden),
        c_is_wide(State<T>::is_wide(node.inputs[2])) {}

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
    const T *projected = run.input<T>(0), *h0 = run.input<T>(1);
    const State<T> c0(run.inputs[2], c_is_wide), c_end(run.outputs[2], c_is_wide);
    T *y = run.output<T>(0), *gates = run.output<T>(3), *cells = run.output<T>(4);
    Acc *recurrent = part_memory.sums(memory), *c = part_memory.cell(memory);
    for (int64_t i = 0; i < rows * hidden; ++i) c[i] = c0.at(first + i);
    for (int64_t t = 0; t < size.times; ++t) {
      const T* before = t == 0 ? h0 : y + (t - 1) * size.cells();
      product.pack_a(before + first, Axis{{rows, hidden}}, Axis{{hidden, 1}}, part_memory.packed(memory));
      product.multiply(rows, part_memory.packed(memory), weight, recurrent, product.stride());
      for (int64_t r = 0; r < rows; ++r) {
        const int64_t at = t * size.cells() + first + r * hidden;
        row(projected + 4 * at, recurrent + r * product.stride(), c + r * hidden, gates + 4 * at, cells + at, y + at);
      }
    }
    for (int64_t i = 0; i < rows * hidden; ++i) c_end.set(first + i, c[i]);
  }

  void operator()(const Run& run) const {
    auto* weight = static_cast<std::byte*>(run.workspace);
    const int64_t hidden = size.hidden, last = (size.times - 1) * size.cells();
    product.pack_b(run.input<T>(3), Axis{{4 * hidden, hidden}}, Axis{{hidden, 1}}, weight);
    run.threads->run(parts.count(), [&](int64_t part) {
      run_part(run, part, weight, weight + product.b_bytes() + static_cast<size_t>(part) * part_memory.bytes());
    });
    std::copy_n(run.output<T>(0) + last, size.cells(), run.output<T>(1));  // h at the end
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
        request, [&](F32 f32) { return Forward<T>(request.node, f32); }, 3, 0);
  });
}

// ---- backward ----

template <class T>
struct Backward {
  using Acc = Compute<T>;
  // An input that a node may have or not.
  struct Optional {
    size_t place = 0;  // among the inputs; 0: there is none
    bool is_wide = false;

    Optional(const GraphNode& node, const char* has, size_t& next) {
      if (!node.attributes.flag(has)) return;
      place = next++;
      is_wide = State<T>::is_wide(node.inputs[place]);
    }
    void* of(const Run& run) const { return place == 0 ? nullptr : run.inputs[place]; }
  };

  LstmSizes size;
  size_t next_input = 4;
  Optional dy, dh_end, dc_end;
  Parts parts;
  PackedProduct<T> product;  // dgates [rows, 4H] · w_hh [4H, H]
  PartMemory<T> part_memory;
  bool states_are_wide;  // c0, dh0, dc0

  Backward(const GraphNode& node, F32 f32)
      : size(node.inputs[2].spec().shape),
        dy(node, "has_dy", next_input),
        dh_end(node, "has_dh", next_input),
        dc_end(node, "has_dc", next_input),
        parts(size, cpu_threads()),
        product(size.hidden, 4 * size.hidden, f32),
        part_memory(product, parts.most_rows(), size.hidden),
        states_are_wide(State<T>::is_wide(node.inputs[1])) {}

  // c0 [N, H] where it has to be narrowed, the packed weight, then what each part needs.
  size_t workspace_bytes() const {
    return narrow_bytes() + product.b_bytes() + static_cast<size_t>(parts.count()) * part_memory.bytes();
  }
  size_t narrow_bytes() const { return states_are_wide ? aligned(static_cast<size_t>(size.cells()) * sizeof(T)) : 0; }

  // One row at one time: dh and dc hold what flows back from later times; dc is updated in place. Gradients may lie
  // where the gates do. HasDy: dy_row is not null (asked for every number it would keep loops out of vectors).
  template <bool HasDy>
  void row(const T* gates, const T* __restrict cell, const T* __restrict cell_before, const T* __restrict dy_row,
           const Acc* __restrict dh, Acc* __restrict dc, T* dgates) const {
    const int64_t hidden = size.hidden;
#pragma GCC ivdep
    for (int64_t j = 0; j < hidden; ++j) {
      const Acc in = static_cast<Acc>(gates[j]), forget = static_cast<Acc>(gates[hidden + j]);
      const Acc candidate = static_cast<Acc>(gates[2 * hidden + j]), out = static_cast<Acc>(gates[3 * hidden + j]);
      const Acc squashed = hyperbolic_tangent(static_cast<Acc>(cell[j]));
      const Acc dh_all = dh[j] + (HasDy ? static_cast<Acc>(dy_row[j]) : Acc(0));
      const Acc dc_all = dc[j] + dh_all * out * (1 - squashed * squashed);
      dgates[j] = static_cast<T>(dc_all * candidate * in * (1 - in));
      dgates[hidden + j] = static_cast<T>(dc_all * static_cast<Acc>(cell_before[j]) * forget * (1 - forget));
      dgates[2 * hidden + j] = static_cast<T>(dc_all * in * (1 - candidate * candidate));
      dgates[3 * hidden + j] = static_cast<T>(dh_all * squashed * out * (1 - out));
      dc[j] = dc_all * forget;
    }
  }

  void run_part(const Run& run, int64_t part, const T* c0, const std::byte* weight, std::byte* memory) const {
    const int64_t hidden = size.hidden, rows = parts.rows(part), first = parts.begin(part) * hidden;
    const int64_t stride = product.stride();
    const T *gates = run.input<T>(2), *cells = run.input<T>(3), *all_dy = static_cast<const T*>(dy.of(run));
    const State<T> dh_given(dh_end.of(run), dh_end.is_wide), dc_given(dc_end.of(run), dc_end.is_wide);
    const State<T> dh0(run.outputs[1], states_are_wide), dc0(run.outputs[2], states_are_wide);
    T* dgates = run.output<T>(0);
    Acc *dh = part_memory.sums(memory), *dc = part_memory.cell(memory);
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t j = 0; j < hidden; ++j) {
        const int64_t at = first + r * hidden + j;
        dh[r * stride + j] = dh_end.place > 0 ? dh_given.at(at) : Acc(0);
        dc[r * hidden + j] = dc_end.place > 0 ? dc_given.at(at) : Acc(0);
      }
    for (int64_t t = size.times - 1; t >= 0; --t) {
      const T* before = t == 0 ? c0 : cells + (t - 1) * size.cells();
      for (int64_t r = 0; r < rows; ++r) {
        const int64_t inside = first + r * hidden, at = t * size.cells() + inside;
        auto run_row = [&](auto has) {
          row<has>(gates + 4 * at, cells + at, before + inside, has ? all_dy + at : nullptr, dh + r * stride,
                   dc + r * hidden, dgates + 4 * at);
        };
        all_dy != nullptr ? run_row(std::true_type()) : run_row(std::false_type());
      }
      product.pack_a(dgates + 4 * (t * size.cells() + first), Axis{{rows, 4 * hidden}}, Axis{{4 * hidden, 1}},
                     part_memory.packed(memory));
      product.multiply(rows, part_memory.packed(memory), weight, dh, stride);
    }
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t j = 0; j < hidden; ++j) {
        dh0.set(first + r * hidden + j, dh[r * stride + j]);
        dc0.set(first + r * hidden + j, dc[r * hidden + j]);
      }
  }

  void operator()(const Run& run) const {
    auto* weight = static_cast<std::byte*>(run.workspace) + narrow_bytes();
    const int64_t hidden = size.hidden;
    product.pack_b(run.input<T>(0), Axis{{hidden, 1}}, Axis{{4 * hidden, hidden}}, weight);
    const T* c0 = states_are_wide ? narrowed(run) : run.input<T>(1);
    run.threads->run(parts.count(), [&](int64_t part) {
      run_part(run, part, c0, weight, weight + product.b_bytes() + static_cast<size_t>(part) * part_memory.bytes());
    });
  }

  // Like the cells before the other times.
  const T* narrowed(const Run& run) const {
    T* narrow = static_cast<T*>(run.workspace);
    std::transform(run.input<Acc>(1), run.input<Acc>(1) + size.cells(), narrow,
                   [](Acc number) { return static_cast<T>(number); });
    return narrow;
  }
};

std::vector<Candidate> backward_candidates(const KernelRequest& request) {
  const TensorSpec& gates = request.node.inputs[2].spec();
  return for_floating(gates.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    return layer_candidates<T>(
        request, [&](F32 f32) { return Backward<T>(request.node, f32); }, 0, 2);
  });
}

}  // namespace

BONFIRE_CPU_KERNELS(lstm, {"lstm_layer", forward_candidates}, {"lstm_layer_gradient", backward_candidates})

}  // namespace bonfire::cpu
