// Speed of the CPU matrix product, beside OpenBLAS where it was found: bench_gemm [threads] [instruction set]
// Calls of the two are interleaved; the figures are medians in GFLOP/s. One thread is measured in processor time, so
// that a busy machine does not disturb it much, several in real time.

#include "bonfire/backend/cpu/gemm.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <string>
#include <vector>

#include "bonfire/base/random.h"

#if defined(BONFIRE_BENCH_OPENBLAS)
extern "C" {
void openblas_set_num_threads(int threads);
void cblas_sgemm(int order, int transpose_a, int transpose_b, int m, int n, int k, float alpha, const float* a, int lda,
                 const float* b, int ldb, float beta, float* c, int ldc);
}
#endif

namespace {

using namespace bonfire;
using cpu::Gemm;

double seconds_of(const auto& call, int threads) {
  timespec start{}, end{};
  const clockid_t clock = threads == 1 ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC;
  clock_gettime(clock, &start);
  call();
  clock_gettime(clock, &end);
  return static_cast<double>(end.tv_sec - start.tv_sec) + 1e-9 * static_cast<double>(end.tv_nsec - start.tv_nsec);
}

double median(std::vector<double> numbers) {
  std::nth_element(numbers.begin(), numbers.begin() + numbers.size() / 2, numbers.end());
  return numbers[numbers.size() / 2];
}

template <class T>
std::vector<T> random_numbers(int64_t count, uint64_t stream) {
  std::vector<T> numbers(count);
  for (int64_t i = 0; i < count; ++i) numbers[i] = 2 * uniform_at(1, stream, i) - 1;
  return numbers;
}

struct Case {
  const char* what;
  int64_t m, n, k;
  bool transpose_a = false, transpose_b = false;
  DType type = DType::f32;
};

#if defined(BONFIRE_BENCH_OPENBLAS)
void yardstick(const Gemm& g, const float* a, const float* b, float* c) {
  constexpr int kRowMajor = 101, kPlain = 111, kTransposed = 112;
  cblas_sgemm(kRowMajor, g.transpose_a ? kTransposed : kPlain, g.transpose_b ? kTransposed : kPlain,
              static_cast<int>(g.m), static_cast<int>(g.n), static_cast<int>(g.k), 1, a, static_cast<int>(g.lda), b,
              static_cast<int>(g.ldb), 0, c, static_cast<int>(g.ldc));
}
constexpr bool kYardstick = true;
#else
void yardstick(const Gemm&, const float*, const float*, float*) {}
constexpr bool kYardstick = false;
#endif

template <class T>
void measure(const Case& one, ThreadPool& pool) {
  const Gemm g{.m = one.m,
               .n = one.n,
               .k = one.k,
               .input = dtype_of<T>(),
               .output = dtype_of<T>(),
               .transpose_a = one.transpose_a,
               .transpose_b = one.transpose_b,
               .lda = one.transpose_a ? one.m : one.k,
               .ldb = one.transpose_b ? one.k : one.n,
               .ldc = one.n};
  const auto a = random_numbers<T>(g.m * g.k, 1), b = random_numbers<T>(g.k * g.n, 2);
  std::vector<T> c(g.m * g.n);
  std::vector<std::byte> workspace(cpu::gemm_workspace(g, pool.size()));
  const double operations = 2.0 * static_cast<double>(g.m) * static_cast<double>(g.n) * static_cast<double>(g.k);
  // One sample lasts some 2 ms, so that the clock does not matter.
  const int calls = static_cast<int>(std::clamp(2e-3 * 5e10 / operations, 1.0, 1000.0));
  auto ours = [&] {
    for (int i = 0; i < calls; ++i) cpu::gemm(g, a.data(), b.data(), nullptr, c.data(), workspace, pool);
  };
  [[maybe_unused]] auto theirs = [&] {
    if constexpr (std::is_same_v<T, float>)
      for (int i = 0; i < calls; ++i) yardstick(g, a.data(), b.data(), c.data());
  };
  const bool compare = kYardstick && std::is_same_v<T, float>;
  std::vector<double> our_seconds, their_seconds;
  for (int sample = 0; sample < 16; ++sample) {
    our_seconds.push_back(seconds_of(ours, pool.size()));
    if (compare) their_seconds.push_back(seconds_of(theirs, pool.size()));
  }
  const double speed = operations * calls / median(our_seconds) * 1e-9;
  fmt::print("{:<28} {:>6} {:>6} {:>6} {}{} {:<5} {:>8.1f}", one.what, g.m, g.n, g.k, g.transpose_a ? 'T' : 'N',
             g.transpose_b ? 'T' : 'N', name_of(g.input), speed);
  if (compare) {
    const double peer = operations * calls / median(their_seconds) * 1e-9;
    fmt::print(" {:>8.1f} {:>6.2f}", peer, speed / peer);
  }
  fmt::print("\n");
}

const Case kCases[] = {
    {"square", 1024, 1024, 1024},
    {"square", 1024, 1024, 1024, false, true},
    {"square", 1024, 1024, 1024, true, false},
    {"square", 512, 512, 512},
    {"square", 256, 256, 256},
    {"square", 128, 128, 128},
    {"square", 64, 64, 64},
    {"square", 32, 32, 32},
    {"linear, BERT-mini", 4096, 1024, 256, false, true},
    {"its weight gradient", 1024, 256, 4096, true, false},
    {"convolution 64 at 28x28", 64, 12544, 576},
    {"convolution, channels last", 12544, 64, 576, false, true},
    {"its weight gradient", 64, 576, 12544, false, true},
    {"classifier", 256, 10, 320, false, true},
    {"its weight gradient", 10, 320, 256, true, false},
    {"column vector", 1024, 1, 1024},
    {"row vector", 1, 1024, 1024},
    {"row vector", 1, 1024, 1024, false, true},
    {"outer product", 512, 512, 1},
    {"square", 1024, 1024, 1024, false, false, DType::bf16},
    {"linear, BERT-mini", 4096, 1024, 256, false, true, DType::bf16},
    {"square", 512, 512, 512, false, false, DType::f64},
};

}  // namespace

int main(int argc, char** argv) {
  const int threads = argc > 1 ? std::atoi(argv[1]) : 1;
  if (argc > 2)
    for (cpu::InstructionSet set : cpu::available_instruction_sets())
      if (cpu::name_of(set) == argv[2]) cpu::set_instruction_set_for_test(set);
  ThreadPool pool(threads);
#if defined(BONFIRE_BENCH_OPENBLAS)
  openblas_set_num_threads(threads);
#endif
  fmt::print("{} on {} thread(s), GFLOP/s\n", cpu::name_of(cpu::instruction_set()), threads);
  fmt::print("{:<28} {:>6} {:>6} {:>6} {:<2} {:<5} {:>8}{}\n", "case", "m", "n", "k", "", "type", "ours",
             kYardstick ? " OpenBLAS  ratio" : "");
  for (const Case& one : kCases) {
    if (one.type == DType::f64)
      measure<double>(one, pool);
    else if (one.type == DType::bf16)
      measure<bfloat16>(one, pool);
    else
      measure<float>(one, pool);
  }
}
