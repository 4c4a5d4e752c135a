#include "bonfire/comm/reduce.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "bonfire/base/error.h"

namespace bonfire::comm {
namespace {

constexpr size_t kBlock = 1024;  // elements whose partial sums stay in the first-level cache

// What sums of T are kept in, and how T lies in memory.
template <class T>
struct Arithmetic {
  using Sum = std::conditional_t<std::is_same_v<T, bfloat16> || std::is_same_v<T, float16>, float, T>;
  using Stored = T;
};
template <>
struct Arithmetic<bool> {  // any byte but 0 is true
  using Sum = uint8_t;
  using Stored = uint8_t;
};
template <>
struct Arithmetic<int32_t> {  // sums wrap around
  using Sum = uint32_t;
  using Stored = uint32_t;
};
template <>
struct Arithmetic<int64_t> {
  using Sum = uint64_t;
  using Stored = uint64_t;
};

struct Add {
  template <class Sum>
  static Sum combine(Sum a, Sum b) {
    return static_cast<Sum>(a + b);
  }
};

template <class T>
struct Maximum {
  template <class Sum>
  static Sum combine(Sum a, Sum b) {
    if constexpr (std::is_integral_v<Sum>)
      return static_cast<T>(a) > static_cast<T>(b) ? a : b;  // signed where T is
    else
      return a > b || a != a ? a : b;
  }
};

struct Any {
  template <class Sum>
  static Sum combine(Sum a, Sum b) {
    return (a | b) != 0;
  }
};

struct Keep {
  template <class Sum>
  Sum operator()(Sum sum) const {
    return sum;
  }
};

struct Divide {
  float ranks;
  float operator()(float sum) const { return sum / ranks; }
  double operator()(double sum) const { return sum / static_cast<double>(ranks); }
};

// to[i] = a[i] and b[i] combined. `to` may be `a` or `b`: element i depends on elements i alone.
template <class Combine, class Sum, class A, class B, class To, class Finish>
void combine_rows(const A* a, const B* b, To* to, size_t count, Finish finish) {
#pragma GCC ivdep
  for (size_t i = 0; i < count; ++i)
    to[i] = static_cast<To>(finish(Combine::combine(static_cast<Sum>(a[i]), static_cast<Sum>(b[i]))));
}

template <class Sum, class A, class To, class Finish>
void finish_row(const A* a, To* to, size_t count, Finish finish) {
#pragma GCC ivdep
  for (size_t i = 0; i < count; ++i) to[i] = static_cast<To>(finish(static_cast<Sum>(a[i])));
}

template <class T, class Combine, class Finish>
void reduce_block(std::span<const void* const> sources, void* result, size_t begin, size_t count, Finish finish) {
  using Sum = typename Arithmetic<T>::Sum;
  using Stored = typename Arithmetic<T>::Stored;
  auto source = [&](size_t rank) { return static_cast<const Stored*>(sources[rank]) + begin; };
  Stored* to = static_cast<Stored*>(result) + begin;
  size_t last = sources.size() - 1;
  if (last == 0) return finish_row<Sum>(source(0), to, count, finish);
  if (last == 1) return combine_rows<Combine, Sum>(source(0), source(1), to, count, finish);
  Sum partial[kBlock];
  combine_rows<Combine, Sum>(source(0), source(1), partial, count, Keep{});
  for (size_t rank = 2; rank < last; ++rank) combine_rows<Combine, Sum>(partial, source(rank), partial, count, Keep{});
  combine_rows<Combine, Sum>(partial, source(last), to, count, finish);
}

// Block by block, so that partial sums and the copies for further results are made in the cache.
template <class T, class Combine, class Finish>
void reduce_blocks(std::span<const void* const> sources, std::span<void* const> results, size_t count, Finish finish) {
  for (size_t begin = 0; begin < count; begin += kBlock) {
    size_t here = std::min(kBlock, count - begin);
    reduce_block<T, Combine>(sources, results[0], begin, here, finish);
    for (void* further : results.subspan(1))
      std::memcpy(static_cast<std::byte*>(further) + begin * sizeof(T),
                  static_cast<const std::byte*>(results[0]) + begin * sizeof(T), here * sizeof(T));
  }
}

}  // namespace

void check_reduction(std::string_view where, DType dtype, Reduce kind) {
  if (kind == Reduce::mean && !is_floating(dtype))
    throw_error<ConfigError>("[{}] {} numbers have no mean that is {} again; sum them, or cast them to f32", where,
                             name_of(dtype), name_of(dtype));
}

void reduce_values(std::span<const void* const> sources, std::span<void* const> results, size_t count, DType dtype,
                   Reduction reduction) {
  BONFIRE_CHECK(!sources.empty() && !results.empty());
  dispatch(dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    if constexpr (std::is_same_v<T, bool>)
      reduce_blocks<T, Any>(sources, results, count, Keep{});
    else if (reduction.kind == Reduce::max)
      reduce_blocks<T, Maximum<T>>(sources, results, count, Keep{});
    else if constexpr (std::is_integral_v<T>)
      reduce_blocks<T, Add>(sources, results, count, Keep{});
    else if (reduction.kind == Reduce::sum)
      reduce_blocks<T, Add>(sources, results, count, Keep{});
    else
      reduce_blocks<T, Add>(sources, results, count, Divide{static_cast<float>(reduction.ranks)});
  });
}

std::string_view name_of(Reduce kind) {
  switch (kind) {
    case Reduce::sum: return "sum";
    case Reduce::mean: return "mean";
    case Reduce::max: break;
  }
  return "max";
}

}  // namespace bonfire::comm
