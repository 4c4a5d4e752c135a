#include "bonfire/comm/reduce.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <type_traits>

#include "bonfire/base/error.h"

namespace bonfire::comm {
namespace {

constexpr size_t kBlock = 1024;  // elements whose partial sums stay in the first-level cache

// How T lies in memory, what sums of it are kept in, and the way from one to the other.
template <class T>
struct Arithmetic {
  using Stored = T;
  using Sum = T;
  static Sum read(Stored value) { return value; }
  static Stored rounded(Sum sum) { return sum; }
};
template <>
struct Arithmetic<bool> : Arithmetic<uint8_t> {};  // any byte but 0 is true
template <>
struct Arithmetic<int32_t> : Arithmetic<uint32_t> {};  // sums wrap around
template <>
struct Arithmetic<int64_t> : Arithmetic<uint64_t> {};

// The conversions of tensor/dtype.h without branches, on plain integers, so that the compiler makes vectors of them.
template <>
struct Arithmetic<bfloat16> {
  using Stored = uint16_t;
  using Sum = float;
  static float read(uint16_t value) { return std::bit_cast<float>(static_cast<uint32_t>(value) << 16); }
  static uint16_t rounded(float sum) {
    auto word = std::bit_cast<uint32_t>(sum);
    uint32_t nan = word | 0x400000U, number = word + 0x7FFFU + ((word >> 16) & 1U);
    return static_cast<uint16_t>((sum != sum ? nan : number) >> 16);
  }
};
template <>
struct Arithmetic<float16> {
  using Stored = uint16_t;
  using Sum = float;
  static float read(uint16_t value) {
    int32_t magnitude = value & 0x7FFF, sign = (value & 0x8000) << 16;
    auto small = std::bit_cast<int32_t>(static_cast<float>(magnitude) * 0x1.0p-24F);
    int32_t normal = (magnitude << 13) + (magnitude < 0x7C00 ? 0x38000000 : 0x70000000);
    return std::bit_cast<float>(sign | (magnitude < 0x0400 ? small : normal));
  }
  static uint16_t rounded(float sum) {
    auto word = std::bit_cast<int32_t>(sum);
    int32_t magnitude = word & 0x7FFFFFFF, nan = 0x7E00 | ((magnitude >> 13) & 0x3FF);
    int32_t small = std::bit_cast<int32_t>(std::bit_cast<float>(magnitude) + 0.5F) - 0x3F000000;
    int32_t normal = (magnitude - 0x38000000 + 0xFFF + ((magnitude >> 13) & 1)) >> 13;
    int32_t half = magnitude < 0x47800000 ? normal : 0x7C00;
    half = magnitude < 0x38800000 ? small : half;
    half = magnitude > 0x7F800000 ? nan : half;
    return static_cast<uint16_t>(((word >> 16) & 0x8000) | half);
  }
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

// Rows of values in memory, and rows of partial sums.
template <class T>
struct ValueRow {
  typename Arithmetic<T>::Stored* at;
  auto operator[](size_t i) const { return Arithmetic<T>::read(at[i]); }
  void put(size_t i, typename Arithmetic<T>::Sum sum) const { at[i] = Arithmetic<T>::rounded(sum); }
};
template <class Sum>
struct SumRow {
  Sum* at;
  Sum operator[](size_t i) const { return at[i]; }
  void put(size_t i, Sum sum) const { at[i] = sum; }
};

// to[i] = a[i] and b[i] combined. `to` may be `a` or `b`: a line is read before it is written, which also lets the
// compiler make vectors of it.
template <class Combine, class A, class B, class To, class Finish>
void combine_rows(A a, B b, To to, size_t count, Finish finish) {
  // A sum asks for more memory at a time than the processor fetches ahead by itself, across the end of a page too.
  constexpr size_t kLine = 64 / sizeof(*a.at), kAhead = 16 * kLine;
  using Sum = std::remove_cvref_t<decltype(a[0])>;
  size_t begin = 0;
  for (; begin + kLine <= count; begin += kLine) {
    __builtin_prefetch(a.at + begin + kAhead);
    __builtin_prefetch(b.at + begin + kAhead);
    Sum line[kLine];
    for (size_t i = 0; i < kLine; ++i) line[i] = finish(Combine::combine(a[begin + i], b[begin + i]));
    for (size_t i = 0; i < kLine; ++i) to.put(begin + i, line[i]);
  }
  for (size_t i = begin; i < count; ++i) to.put(i, finish(Combine::combine(a[i], b[i])));
}

template <class T, class Combine, class Finish>
void reduce_block(std::span<const void* const> sources, void* result, size_t begin, size_t count, Finish finish) {
  using Sum = typename Arithmetic<T>::Sum;
  using Stored = typename Arithmetic<T>::Stored;
  // Sources are only read; a row that is written is a result.
  auto source = [&](size_t rank) {
    return ValueRow<T>{static_cast<Stored*>(const_cast<void*>(sources[rank])) + begin};
  };
  ValueRow<T> to{static_cast<Stored*>(result) + begin};
  size_t last = sources.size() - 1;
  if (last == 0) {
    for (size_t i = 0; i < count; ++i) to.put(i, finish(source(0)[i]));
    return;
  }
  if (last == 1) return combine_rows<Combine>(source(0), source(1), to, count, finish);
  Sum sums[kBlock];
  SumRow<Sum> partial{sums};
  combine_rows<Combine>(source(0), source(1), partial, count, Keep{});
  for (size_t rank = 2; rank < last; ++rank) combine_rows<Combine>(partial, source(rank), partial, count, Keep{});
  combine_rows<Combine>(partial, source(last), to, count, finish);
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
    else if (std::is_integral_v<T> || reduction.kind == Reduce::sum)  // there is no mean of integers
      reduce_blocks<T, Add>(sources, results, count, Keep{});
    else if constexpr (!std::is_integral_v<T>)
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
