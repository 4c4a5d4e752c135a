// Speed of the CPU matrix product, per shape, type and kernel.
//
//   bench_gemm [--threads N] [--kernels amx,avx512|all] [--case TEXT] [--json FILE]
//
// Of cases only those whose name contains the text. Kernels are measured in turns with the sgemm of OpenBLAS and of
// BLIS where they are installed, also those that multiply bf16; the figures are medians in GFLOP/s. Where f32 is split
// into parts of bf16, it is also measured whole: plans take what is faster. One thread is measured in processor time,
// so that a busy machine does not disturb it much, several in real time. In the file: rows of {"case", "m", "n", "k",
// "transpose", "threads", "dtype", "kernel", "ours", "peer", "ratio"}, the last two where a library is installed.

#include "bonfire/backend/cpu/gemm/gemm.h"

#include <dlfcn.h>
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <ctime>
#include <fstream>
#include <functional>
#include <new>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bonfire/base/random.h"
#include "instruction_sets.h"

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

// Numbers as a tensor has them: from the beginning of a cache line on.
template <class T>
struct AlignedAllocator {
  using value_type = T;
  static constexpr std::align_val_t kAlignment{64};
  T* allocate(size_t count) { return static_cast<T*>(::operator new(count * sizeof(T), kAlignment)); }
  void deallocate(T* numbers, size_t) { ::operator delete(numbers, kAlignment); }
  bool operator==(const AlignedAllocator&) const = default;
};
template <class T>
using Numbers = std::vector<T, AlignedAllocator<T>>;

template <class T>
Numbers<T> random_numbers(int64_t count, uint64_t stream) {
  Numbers<T> numbers(count);
  for (int64_t i = 0; i < count; ++i) numbers[i] = 2 * uniform_at(1, stream, i) - 1;
  return numbers;
}

struct Case {
  const char* what;
  int64_t m, n, k;
  bool transpose_a = false, transpose_b = false;
};

// Another library's sgemm, loaded when the benchmark runs: all of them have the same names.
class Yardstick {
 public:
  // Number: what its function that sets the number of threads takes.
  template <class Number>
  static Yardstick load(const char* name, const char* file, const char* set_threads, Number threads) {
    Yardstick loaded(name);
    void* library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) return loaded;
    loaded.sgemm_ = reinterpret_cast<Sgemm*>(dlsym(library, "cblas_sgemm"));
    if (void* set = dlsym(library, set_threads)) reinterpret_cast<void (*)(Number)>(set)(threads);
    return loaded;
  }

  bool is_here() const { return sgemm_ != nullptr; }
  const char* name() const { return name_; }
  void multiply(const Gemm& g, const float* a, const float* b, float* c) const {
    constexpr int kRowMajor = 101, kPlain = 111, kTransposed = 112;
    sgemm_(kRowMajor, g.transpose_a ? kTransposed : kPlain, g.transpose_b ? kTransposed : kPlain, static_cast<int>(g.m),
           static_cast<int>(g.n), static_cast<int>(g.k), 1, a, static_cast<int>(g.lda), b, static_cast<int>(g.ldb), 0,
           c, static_cast<int>(g.ldc));
  }

 private:
  using Sgemm = void(int order, int transpose_a, int transpose_b, int m, int n, int k, float alpha, const float* a,
                     int lda, const float* b, int ldb, float beta, float* c, int ldc);
  explicit Yardstick(const char* name) : name_(name) {}
  const char* name_;
  Sgemm* sgemm_ = nullptr;
};

// A shape with operands of one type.
template <class T>
struct Operands {
  Gemm gemm;
  Numbers<T> a, b, c;
  std::vector<std::byte> workspace;

  explicit Operands(const Case& one)
      : gemm{.m = one.m,
             .n = one.n,
             .k = one.k,
             .input = dtype_of<T>(),
             .output = dtype_of<T>(),
             .transpose_a = one.transpose_a,
             .transpose_b = one.transpose_b,
             .lda = one.transpose_a ? one.m : one.k,
             .ldb = one.transpose_b ? one.k : one.n,
             .ldc = one.n},
        a(random_numbers<T>(one.m * one.k, 1)),
        b(random_numbers<T>(one.k * one.n, 2)),
        c(one.m * one.n) {}
};

// One row of the table: something that multiplies, and how long it took.
struct Contender {
  std::string kernel;
  DType type;
  std::function<void()> multiply;
  std::vector<double> seconds{};
};

template <class T>
Contender contender(cpu::InstructionSet set, Operands<T>& o, ThreadPool& pool, cpu::F32 f32 = cpu::F32::split) {
  Gemm gemm = o.gemm;
  gemm.f32 = f32;
  o.workspace.resize(std::max(o.workspace.size(), cpu::gemm_workspace(gemm, pool.size())));
  return {std::string(cpu::name_of(set)) + (f32 == cpu::F32::whole ? ", whole" : ""), dtype_of<T>(),
          [&o, &pool, set, gemm] {
            cpu::set_instruction_set_for_test(set);
            cpu::gemm(gemm, o.a.data(), o.b.data(), nullptr, o.c.data(), o.workspace, pool);
          }};
}

nlohmann::json measure(const Case& one, const std::vector<cpu::InstructionSet>& sets,
                       const std::vector<Yardstick>& yardsticks, ThreadPool& pool) {
  Operands<float> f32(one);
  Operands<bfloat16> bf16(one);
  std::vector<Contender> contenders;
  for (const Yardstick& each : yardsticks)
    contenders.push_back(
        {each.name(), DType::f32, [&] { each.multiply(f32.gemm, f32.a.data(), f32.b.data(), f32.c.data()); }});
  for (cpu::InstructionSet set : sets) {
    cpu::set_instruction_set_for_test(set);
    contenders.push_back(contender(set, f32, pool));
    if (cpu::is_split(f32.gemm)) contenders.push_back(contender(set, f32, pool, cpu::F32::whole));
    contenders.push_back(contender(set, bf16, pool));
  }
  const double operations = 2.0 * static_cast<double>(one.m) * static_cast<double>(one.n) * static_cast<double>(one.k);
  // One sample lasts some 2 ms, so that the clock does not matter.
  const int calls = static_cast<int>(std::clamp(2e-3 * 5e10 / operations, 1.0, 1000.0));
  for (int sample = 0; sample < 16; ++sample)
    for (Contender& each : contenders)
      each.seconds.push_back(seconds_of(
          [&] {
            for (int i = 0; i < calls; ++i) each.multiply();
          },
          pool.size()));
  auto speed = [&](const Contender& each) { return operations * calls / median(each.seconds) * 1e-9; };
  double peer = 0;  // the faster library
  for (size_t i = 0; i < yardsticks.size(); ++i) peer = std::max(peer, speed(contenders[i]));
  const std::string transpose{one.transpose_a ? 'T' : 'N', one.transpose_b ? 'T' : 'N'};
  nlohmann::json rows = nlohmann::json::array();
  for (size_t i = 0; i < contenders.size(); ++i) {
    const Contender& each = contenders[i];
    const double ours = speed(each);
    fmt::print("{:<28} {:>6} {:>6} {:>6} {} {:<5} {:<11} {:>8.1f}", one.what, one.m, one.n, one.k, transpose,
               name_of(each.type), each.kernel, ours);
    if (peer > 0) fmt::print(" {:>6.2f}", ours / peer);
    fmt::print("\n");
    if (i < yardsticks.size()) continue;
    rows.push_back({{"case", one.what},
                    {"m", one.m},
                    {"n", one.n},
                    {"k", one.k},
                    {"transpose", transpose},
                    {"threads", pool.size()},
                    {"dtype", name_of(each.type)},
                    {"kernel", each.kernel},
                    {"ours", ours}});
    if (peer > 0) rows.back().update({{"peer", peer}, {"ratio", ours / peer}});
  }
  return rows;
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
    {"linear, BERT-mini", 2048, 256, 256, false, true},
    {"wide linear, BERT-mini", 4096, 1024, 256, false, true},
    {"its weight gradient", 1024, 256, 4096, true, false},
    {"convolution 64 at 28x28", 64, 12544, 576},
    {"convolution, channels last", 12544, 64, 576, false, true},
    {"its weight gradient", 64, 576, 12544, false, true},
    {"stem, 20 of 5x5", 20, 36864, 25},
    {"linear, MNIST CNN", 64, 500, 800, false, true},
    {"classifier", 256, 10, 320, false, true},
    {"its weight gradient", 10, 320, 256, true, false},
    {"column vector", 1024, 1, 1024},
    {"row vector", 1, 1024, 1024},
    {"row vector", 1, 1024, 1024, false, true},
    {"outer product", 512, 512, 1},
};

struct Settings {
  int threads = 1;
  std::vector<std::string> kernels;
  std::string text, json;
};

std::vector<cpu::InstructionSet> sets_of(const Settings& settings) {
  const auto available = cpu::available_instruction_sets();
  if (settings.kernels.empty()) return {available.back()};
  if (settings.kernels == std::vector<std::string>{"all"}) return {available.begin(), available.end()};
  std::vector<cpu::InstructionSet> sets;
  for (const std::string& name : settings.kernels) sets.push_back(bench::instruction_set_named(name));
  return sets;
}

void run(const Settings& settings) {
  const std::vector<cpu::InstructionSet> sets = sets_of(settings);
  ThreadPool pool(settings.threads);
  std::vector<Yardstick> yardsticks;
  for (const Yardstick& each :
       {Yardstick::load<int>("OpenBLAS", "libopenblas.so.0", "openblas_set_num_threads", settings.threads),
        Yardstick::load<int64_t>("BLIS", "libblis.so.4", "bli_thread_set_num_threads", settings.threads)})
    if (each.is_here()) yardsticks.push_back(each);
  fmt::print(
      "{} thread(s); ratio: to the faster f32 of {}\n", settings.threads,
      yardsticks.empty() ? "no other library: none is installed (libopenblas0, libblis4)" : "the other libraries");
  fmt::print("{:<28} {:>6} {:>6} {:>6} {:<2} {:<5} {:<11} {:>8}  ratio\n", "case", "m", "n", "k", "", "type", "kernel",
             "GFLOP/s");
  nlohmann::json rows = nlohmann::json::array();
  for (const Case& one : kCases)
    if (std::string(one.what).find(settings.text) != std::string::npos)
      for (const nlohmann::json& row : measure(one, sets, yardsticks, pool)) rows.push_back(row);
  if (rows.empty()) throw_error<ConfigError>("[bench_gemm] --case: no case has '{}' in its name", settings.text);
  if (!settings.json.empty()) std::ofstream(settings.json) << rows.dump(1) << '\n';
}

}  // namespace

int main(int argc, char** argv) {
  try {
    Settings settings;
    CLI::App flags("Matrix products, beside OpenBLAS's, BLIS's and oneDNN's", "bench_gemm");
    flags.add_option("--threads", settings.threads, "of each product")->check(CLI::PositiveNumber);
    flags.add_option("--kernels", settings.kernels, "instruction sets, separated by commas, or all")
        ->delimiter(',')
        ->allow_extra_args(false);
    flags.add_option("--case", settings.text, "cases whose name has this in it");
    flags.add_option("--json", settings.json, "a file for what was measured");
    CLI11_PARSE(flags, argc, argv);
    run(settings);
  } catch (const Error& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
}
