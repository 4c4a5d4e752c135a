#include <algorithm>

#include "bonfire/backend/cpu/floating.h"
#include "bonfire/backend/cpu/gemm.h"
#include "bonfire/backend/cpu/threads.h"
#include "bonfire/backend/cpu/vector_math.h"

namespace bonfire::cpu {

namespace {

struct LstmSizes {
  int64_t times, batch, hidden;

  explicit LstmSizes(const Shape& gates) : times(gates[0]), batch(gates[1]), hidden(gates[2] / 4) {}  // [T, N, 4H]

  int64_t cells() const { return batch * hidden; }
  int64_t grain() const { return std::max<int64_t>(1, 1024 / std::max<int64_t>(1, hidden)); }  // rows
};

// ---- forward ----

template <class T>
struct Forward {
  using Acc = Compute<T>;
  LstmSizes size;

  // recurrent [N, 4H] = h [N, H] w_hhᵀ
  Gemm product() const {
    return {.m = size.batch,
            .n = 4 * size.hidden,
            .k = size.hidden,
            .input = dtype_of<T>(),
            .output = dtype_of<Acc>(),
            .transpose_b = true,
            .lda = size.hidden,
            .ldb = size.hidden,
            .ldc = 4 * size.hidden};
  }
  int64_t state_elements() const { return 5 * size.cells(); }  // recurrent [N, 4H], then c [N, H]

  // One row at one time: gates are added up and activated, c is updated in place, h and a copy of c come out.
  void row(const T* __restrict projected, const Acc* __restrict recurrent, Acc* __restrict c, T* __restrict gates,
           T* __restrict cell, T* __restrict h) const {
    const int64_t hidden = size.hidden;
    auto total = [&](int64_t gate, int64_t j) {
      return static_cast<Acc>(projected[gate * hidden + j]) + recurrent[gate * hidden + j];
    };
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

  void run(const Run& run, size_t gemm_bytes) const {
    const auto [times, batch, hidden] = size;
    const T *projected = run.input<T>(0), *h0 = run.input<T>(1), *c0 = run.input<T>(2), *w_hh = run.input<T>(3);
    T *y = run.output<T>(0), *h_end = run.output<T>(1), *c_end = run.output<T>(2);
    T *gates = run.output<T>(3), *cells = run.output<T>(4);
    Acc* recurrent = static_cast<Acc*>(run.workspace);
    Acc* c = recurrent + 4 * size.cells();
    std::span<std::byte> gemm_space(reinterpret_cast<std::byte*>(c + size.cells()), gemm_bytes);
    std::copy_n(c0, size.cells(), c);
    for (int64_t t = 0; t < times; ++t) {
      const T* before = t == 0 ? h0 : y + (t - 1) * size.cells();
      gemm(product(), before, w_hh, nullptr, recurrent, gemm_space, *run.threads);
      run.threads->parallel_for(batch, size.grain(), [&, hidden = hidden, t](int64_t begin, int64_t end) {
        for (int64_t n = begin; n < end; ++n) {
          int64_t at = (t * size.batch + n) * hidden;
          row(projected + 4 * at, recurrent + 4 * n * hidden, c + n * hidden, gates + 4 * at, cells + at, y + at);
        }
      });
    }
    std::copy_n(y + (times - 1) * size.cells(), size.cells(), h_end);
    std::copy_n(cells + (times - 1) * size.cells(), size.cells(), c_end);
  }
};

std::vector<Candidate> forward_candidates(const KernelRequest& request) {
  const TensorSpec& projected = request.node.inputs[0].spec();
  return for_floating(projected.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    Forward<T> layer{LstmSizes(projected.shape)};
    size_t gemm_bytes = gemm_workspace(layer.product(), cpu_threads());
    auto candidates = one_candidate(request, [layer, gemm_bytes](const Run& run) { layer.run(run, gemm_bytes); });
    candidates[0].workspace_bytes = static_cast<size_t>(layer.state_elements()) * sizeof(Compute<T>) + gemm_bytes;
    return candidates;
  });
}

// ---- backward ----

template <class T>
struct Backward {
  using Acc = Compute<T>;
  LstmSizes size;
  bool has_dy, has_dh, has_dc;

  // dh [N, H] = dgates [N, 4H] w_hh
  Gemm product() const {
    return {.m = size.batch,
            .n = size.hidden,
            .k = 4 * size.hidden,
            .input = dtype_of<T>(),
            .output = dtype_of<Acc>(),
            .lda = 4 * size.hidden,
            .ldb = size.hidden,
            .ldc = size.hidden};
  }
  int64_t state_elements() const { return 2 * size.cells(); }  // dh, dc [N, H]

  // One row at one time: dh and dc hold what flows back from later times; dc is updated in place.
  void row(const T* __restrict gates, const T* __restrict cell, const T* __restrict cell_before, const T* __restrict dy,
           const Acc* __restrict dh, Acc* __restrict dc, T* __restrict dgates) const {
    const int64_t hidden = size.hidden;
    for (int64_t j = 0; j < hidden; ++j) {
      const Acc in = static_cast<Acc>(gates[j]), forget = static_cast<Acc>(gates[hidden + j]);
      const Acc candidate = static_cast<Acc>(gates[2 * hidden + j]), out = static_cast<Acc>(gates[3 * hidden + j]);
      const Acc squashed = hyperbolic_tangent(static_cast<Acc>(cell[j]));
      const Acc dh_all = dh[j] + (dy != nullptr ? static_cast<Acc>(dy[j]) : Acc(0));
      const Acc dc_all = dc[j] + dh_all * out * (1 - squashed * squashed);
      dgates[j] = static_cast<T>(dc_all * candidate * in * (1 - in));
      dgates[hidden + j] = static_cast<T>(dc_all * static_cast<Acc>(cell_before[j]) * forget * (1 - forget));
      dgates[2 * hidden + j] = static_cast<T>(dc_all * in * (1 - candidate * candidate));
      dgates[3 * hidden + j] = static_cast<T>(dh_all * squashed * out * (1 - out));
      dc[j] = dc_all * forget;
    }
  }

  void run(const Run& run, size_t gemm_bytes) const {
    const T *w_hh = run.input<T>(0), *c0 = run.input<T>(1), *gates = run.input<T>(2), *cells = run.input<T>(3);
    size_t next = 4;
    const T* dy = has_dy ? run.input<T>(next++) : nullptr;
    const T* dh_end = has_dh ? run.input<T>(next++) : nullptr;
    const T* dc_end = has_dc ? run.input<T>(next++) : nullptr;
    T *dgates = run.output<T>(0), *dh0 = run.output<T>(1), *dc0 = run.output<T>(2);
    Acc* dh = static_cast<Acc*>(run.workspace);
    Acc* dc = dh + size.cells();
    std::span<std::byte> gemm_space(reinterpret_cast<std::byte*>(dc + size.cells()), gemm_bytes);
    for (int64_t i = 0; i < size.cells(); ++i) {
      dh[i] = dh_end != nullptr ? static_cast<Acc>(dh_end[i]) : Acc(0);
      dc[i] = dc_end != nullptr ? static_cast<Acc>(dc_end[i]) : Acc(0);
    }
    for (int64_t t = size.times - 1; t >= 0; --t) {
      const T* before = t == 0 ? c0 : cells + (t - 1) * size.cells();
      run.threads->parallel_for(size.batch, size.grain(), [&, t](int64_t begin, int64_t end) {
        for (int64_t n = begin; n < end; ++n) {
          int64_t inside = n * size.hidden, at = t * size.cells() + inside;
          row(gates + 4 * at, cells + at, before + inside, dy != nullptr ? dy + at : nullptr, dh + inside, dc + inside,
              dgates + 4 * at);
        }
      });
      gemm(product(), dgates + 4 * t * size.cells(), w_hh, nullptr, dh, gemm_space, *run.threads);
    }
    for (int64_t i = 0; i < size.cells(); ++i) {
      dh0[i] = static_cast<T>(dh[i]);
      dc0[i] = static_cast<T>(dc[i]);
    }
  }
};

std::vector<Candidate> backward_candidates(const KernelRequest& request) {
  const TensorSpec& gates = request.node.inputs[2].spec();
  const Attributes& attributes = request.node.attributes;
  return for_floating(gates.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    Backward<T> layer{LstmSizes(gates.shape), attributes.flag("has_dy"), attributes.flag("has_dh"),
                      attributes.flag("has_dc")};
    size_t gemm_bytes = gemm_workspace(layer.product(), cpu_threads());
    auto candidates = one_candidate(request, [layer, gemm_bytes](const Run& run) { layer.run(run, gemm_bytes); });
    candidates[0].workspace_bytes = static_cast<size_t>(layer.state_elements()) * sizeof(Compute<T>) + gemm_bytes;
    return candidates;
  });
}

const bool registered = register_kernel("lstm_layer", DeviceType::cpu, forward_candidates) &&
                        register_kernel("lstm_layer_gradient", DeviceType::cpu, backward_candidates);

}  // namespace
}  // namespace bonfire::cpu
