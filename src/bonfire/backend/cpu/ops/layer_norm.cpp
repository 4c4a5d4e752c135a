#include <algorithm>
#include <cmath>

#include "bonfire/backend/cpu/simd/every_instruction_set.h"
#include "bonfire/backend/cpu/simd/floating.h"

namespace bonfire::cpu {

namespace {

// Rows of the gradient are cut into this many chunks at most, whatever the thread count: each has its own sums for the
// weight and the bias, added up in order at the end.
constexpr int64_t kChunks = 32;

struct LayerNorm {
  int64_t rows = 1, columns = 1;
  double eps;

  LayerNorm(const Shape& x, const Attributes& attributes) : eps(attributes.number("eps")) {
    int64_t leading = x.rank() - attributes.integer("rank");
    for (int i = 0; i < x.rank(); ++i) (i < leading ? rows : columns) *= x[i];
  }

  int64_t grain() const { return std::max<int64_t>(1, 8192 / std::max<int64_t>(1, columns)); }
  int64_t chunks() const { return std::min(rows, kChunks); }

  // weight and bias may be null.
  template <class T, class W, class Acc>
  void forward(const T* __restrict x, const W* __restrict weight, const W* __restrict bias, T* __restrict y,
               Acc* __restrict mean, Acc* __restrict reciprocal, ThreadPool& threads) const {
    threads.parallel_for(rows, grain(), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const T* from = x + r * columns;
        T* to = y + r * columns;
        const Acc count = static_cast<Acc>(columns);
        const Acc m = row_sum<Acc>(columns, [&](int64_t i) { return static_cast<Acc>(from[i]); }) / count;
        const Acc variance = row_sum<Acc>(columns,
                                          [&](int64_t i) {
                                            Acc difference = static_cast<Acc>(from[i]) - m;
                                            return difference * difference;
                                          }) /
                             count;
        const Acc scale = Acc(1) / std::sqrt(variance + static_cast<Acc>(eps));
        for (int64_t i = 0; i < columns; ++i) {
          Acc value = (static_cast<Acc>(from[i]) - m) * scale;
          if (weight != nullptr) value *= static_cast<Acc>(weight[i]);
          if (bias != nullptr) value += static_cast<Acc>(bias[i]);
          to[i] = static_cast<T>(value);
        }
        mean[r] = m;
        reciprocal[r] = scale;
      }
    });
  }

  template <class T, class W, class Acc>
  struct Gradient {
    const T *dy, *x;
    const Acc *mean, *reciprocal;
    const W* weight;  // or null
    T* dx;
    W *dweight, *dbias;  // or null
    Acc* sums;           // [chunks, 2, columns]: of dweight, of dbias
  };

  template <class T, class W, class Acc>
  void backward_row(const Gradient<T, W, Acc>& g, int64_t r, Acc* dweight, Acc* dbias) const {
    const T *dy = g.dy + r * columns, *x = g.x + r * columns;
    const W* weight = g.weight;
    T* dx = g.dx + r * columns;
    const Acc m = g.mean[r], scale = g.reciprocal[r], count = static_cast<Acc>(columns);
    auto normal = [=](int64_t i) { return (static_cast<Acc>(x[i]) - m) * scale; };
    auto through = [&](const auto& scaled) {  // scaled(i): the gradient by the normalised element
      const Acc mean_g = row_sum<Acc>(columns, scaled) / count;
      const Acc mean_gn = row_sum<Acc>(columns, [=](int64_t i) { return scaled(i) * normal(i); }) / count;
#pragma GCC ivdep
      for (int64_t i = 0; i < columns; ++i) dx[i] = static_cast<T>((scaled(i) - mean_g - normal(i) * mean_gn) * scale);
    };
    if (weight == nullptr) return through([=](int64_t i) { return static_cast<Acc>(dy[i]); });
    through([=](int64_t i) { return static_cast<Acc>(dy[i]) * static_cast<Acc>(weight[i]); });
#pragma GCC ivdep
    for (int64_t i = 0; i < columns; ++i) {
      dweight[i] += static_cast<Acc>(dy[i]) * normal(i);
      dbias[i] += static_cast<Acc>(dy[i]);
    }
  }

  template <class T, class W, class Acc>
  void backward(const Gradient<T, W, Acc>& g, ThreadPool& threads) const {
    threads.run(chunks(), [&](int64_t chunk) {
      Acc* sums = g.weight == nullptr ? nullptr : g.sums + chunk * 2 * columns;
      if (sums != nullptr) std::fill_n(sums, 2 * columns, Acc(0));
      for (int64_t r = rows * chunk / chunks(); r < rows * (chunk + 1) / chunks(); ++r)
        backward_row(g, r, sums, sums == nullptr ? nullptr : sums + columns);
    });
    if (g.weight == nullptr) return;
    threads.parallel_for(columns, 1024, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        Acc weight = 0, bias = 0;
        for (int64_t chunk = 0; chunk < chunks(); ++chunk) {
          weight += g.sums[chunk * 2 * columns + i];
          bias += g.sums[(chunk * 2 + 1) * columns + i];
        }
        g.dweight[i] = static_cast<W>(weight);
        g.dbias[i] = static_cast<W>(bias);
      }
    });
  }
};

// Calls body with the types of x and of the weight (that of x, or the one it is computed in).
template <class Body>
std::vector<Candidate> for_types(DType x, DType weight, const Body& body) {
  return for_floating(x, [&](auto tag) -> std::vector<Candidate> {
    using T = typename decltype(tag)::type;
    if (weight == x) return body(TypeTag<T>{}, TypeTag<T>{});
    if (weight == dtype_of<Compute<T>>()) return body(TypeTag<T>{}, TypeTag<Compute<T>>{});
    return {};
  });
}

std::vector<Candidate> forward_candidates(const KernelRequest& request) {
  const auto& inputs = request.node.inputs;
  const TensorSpec& x = inputs[0].spec();
  DType weight_type = inputs.size() > 1 ? inputs[1].spec().dtype : x.dtype;
  return for_types(x.dtype, weight_type, [&](auto x_tag, auto weight_tag) {
    using T = typename decltype(x_tag)::type;
    using W = typename decltype(weight_tag)::type;
    return one_candidate(request, [norm = LayerNorm(x.shape, request.node.attributes)](const Run& run) {
      const W* weight = run.inputs.size() > 1 ? run.input<W>(1) : nullptr;
      const W* bias = run.inputs.size() > 2 ? run.input<W>(2) : nullptr;
      norm.forward(run.input<T>(0), weight, bias, run.output<T>(0), run.output<Compute<T>>(1),
                   run.output<Compute<T>>(2), *run.threads);
    });
  });
}

std::vector<Candidate> backward_candidates(const KernelRequest& request) {
  const auto& inputs = request.node.inputs;
  const TensorSpec& x = inputs[1].spec();
  bool has_weight = inputs.size() > 4;
  DType weight_type = has_weight ? inputs[4].spec().dtype : x.dtype;
  return for_types(x.dtype, weight_type, [&](auto x_tag, auto weight_tag) {
    using T = typename decltype(x_tag)::type;
    using W = typename decltype(weight_tag)::type;
    using Acc = Compute<T>;
    LayerNorm norm(x.shape, request.node.attributes);
    auto candidates = one_candidate(request, [norm, has_weight](const Run& run) {
      norm.backward<T, W, Acc>({.dy = run.input<T>(0),
                                .x = run.input<T>(1),
                                .mean = run.input<Acc>(2),
                                .reciprocal = run.input<Acc>(3),
                                .weight = has_weight ? run.input<W>(4) : nullptr,
                                .dx = run.output<T>(0),
                                .dweight = has_weight ? run.output<W>(1) : nullptr,
                                .dbias = has_weight ? run.output<W>(2) : nullptr,
                                .sums = static_cast<Acc*>(run.workspace)},
                               *run.threads);
    });
    if (has_weight) candidates[0].workspace_bytes = static_cast<size_t>(norm.chunks() * 2 * norm.columns) * sizeof(Acc);
    return candidates;
  });
}

}  // namespace

BONFIRE_CPU_KERNELS(layer_norm, {"layer_norm", forward_candidates}, {"layer_norm_gradient", backward_candidates})

}  // namespace bonfire::cpu
