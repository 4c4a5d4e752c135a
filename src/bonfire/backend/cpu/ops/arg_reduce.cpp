// CPU kernels of argmax, argmin and top_k. All see their input as [outer, extent, inner].

#include <algorithm>
#include <numeric>

#include "bonfire/kernel/kernel.h"

namespace bonfire::cpu {

namespace {

constexpr int64_t kGrain = 16384;  // elements worth a thread of their own
constexpr int64_t kColumns = 128;  // neighbours that are searched together

struct Folded {
  int64_t outer = 1, extent = 1, inner = 1;

  Folded(const Shape& shape, int64_t axis) : extent(shape[static_cast<int>(axis)]) {
    for (int i = 0; i < shape.rank(); ++i) {
      if (i < axis) outer *= shape[i];
      if (i > axis) inner *= shape[i];
    }
  }
};

template <class T>
using Compared = std::conditional_t<std::is_same_v<T, bfloat16> || std::is_same_v<T, float16>, float, T>;

// Whether x wins over y, which came earlier. NaN wins over everything but an earlier NaN.
template <bool Largest, class C>
bool wins(C x, C y) {
  return (Largest ? x > y : x < y) | ((x != x) & (y == y));
}

template <bool Largest, class T>
int64_t search_run(const T* x, int64_t extent) {
  Compared<T> best = x[0];
  int64_t index = 0;
  for (int64_t i = 1; i < extent; ++i) {
    Compared<T> value = x[i];
    if (!wins<Largest>(value, best)) continue;
    best = value;
    index = i;
  }
  return index;
}

template <bool Largest, class T>
void search_columns(const T* x, int64_t extent, int64_t stride, int64_t columns, int64_t* indices) {
  if (stride == 1) {  // a single column
    indices[0] = search_run<Largest>(x, extent);
    return;
  }
  Compared<T> best[kColumns];
  for (int64_t c = 0; c < columns; ++c) best[c] = x[c];
  std::fill_n(indices, columns, 0);
  for (int64_t i = 1; i < extent; ++i) {
    const T* row = x + i * stride;
    for (int64_t c = 0; c < columns; ++c) {
      Compared<T> value = row[c];
      bool better = wins<Largest>(value, best[c]);
      best[c] = better ? value : best[c];
      indices[c] = better ? i : indices[c];
    }
  }
}

template <bool Largest>
std::vector<Candidate> arg_extremum(const KernelRequest& request) {
  const TensorSpec& input = request.node.inputs[0].spec();
  Folded folded(input.shape, request.node.attributes.list("axes")[0]);
  return dispatch(input.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    return one_candidate(request, [folded](const Run& run) {
      const T* x = run.input<T>(0);              // [outer, extent, inner]
      int64_t* indices = run.output<int64_t>();  // [outer, inner]
      int64_t tiles = (folded.inner + kColumns - 1) / kColumns;
      int64_t unit = std::max<int64_t>(1, folded.extent * std::min(folded.inner, kColumns));  // elements
      run.threads->parallel_for(
          folded.outer * tiles, std::max<int64_t>(1, kGrain / unit), [&](int64_t begin, int64_t end) {
            for (int64_t i = begin; i < end; ++i) {
              int64_t outer = i / tiles, column = i % tiles * kColumns;
              search_columns<Largest>(x + outer * folded.extent * folded.inner + column, folded.extent, folded.inner,
                                      std::min(kColumns, folded.inner - column),
                                      indices + outer * folded.inner + column);
            }
          });
    });
  });
}

template <class T>
void select_largest(const T* x, const Folded& folded, int64_t k, std::vector<int64_t>& order, T* values,
                    int64_t* indices) {
  order.resize(static_cast<size_t>(folded.extent));
  std::iota(order.begin(), order.end(), int64_t{0});
  auto before = [&](int64_t a, int64_t b) {
    Compared<T> left = x[a * folded.inner], right = x[b * folded.inner];
    return wins<true>(left, right) || (!wins<true>(right, left) && a < b);
  };
  std::partial_sort(order.begin(), order.begin() + k, order.end(), before);
  for (int64_t i = 0; i < k; ++i) {
    indices[i * folded.inner] = order[static_cast<size_t>(i)];
    values[i * folded.inner] = x[order[static_cast<size_t>(i)] * folded.inner];
  }
}

std::vector<Candidate> top_k(const KernelRequest& request) {
  const TensorSpec& input = request.node.inputs[0].spec();
  Folded folded(input.shape, request.node.attributes.integer("axis"));
  int64_t k = request.node.attributes.integer("k");
  return dispatch(input.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    return one_candidate(request, [folded, k](const Run& run) {
      const T* x = run.input<T>(0);               // [outer, extent, inner]
      T* values = run.output<T>(0);               // [outer, k, inner]
      int64_t* indices = run.output<int64_t>(1);  // [outer, k, inner]
      int64_t grain = std::max<int64_t>(1, kGrain / 4 / std::max<int64_t>(1, folded.extent));
      run.threads->parallel_for(folded.outer * folded.inner, grain, [&](int64_t begin, int64_t end) {
        std::vector<int64_t> order;
        for (int64_t i = begin; i < end; ++i) {
          int64_t outer = i / folded.inner, inner = i % folded.inner;
          int64_t target = outer * k * folded.inner + inner;
          select_largest(x + outer * folded.extent * folded.inner + inner, folded, k, order, values + target,
                         indices + target);
        }
      });
    });
  });
}

[[maybe_unused]] const bool registered[] = {
    register_kernel("argmax", DeviceType::cpu, arg_extremum<true>),
    register_kernel("argmin", DeviceType::cpu, arg_extremum<false>),
    register_kernel("top_k", DeviceType::cpu, top_k),
};

}  // namespace

}  // namespace bonfire::cpu
