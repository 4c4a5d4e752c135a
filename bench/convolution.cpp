// Speed of the CPU convolution cores, medians in GFLOP/s: bench_convolution [threads] [instruction set]
// One thread is measured in processor time, so that a busy machine does not disturb it much, several in real time.

#include <fmt/core.h>

#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <vector>

#include "bonfire/backend/cpu/convolution_core.h"
#include "bonfire/base/random.h"

namespace {

using namespace bonfire;
using cpu::Convolution;
using cpu::ConvolutionPass;

template <class T>
std::vector<T> random_numbers(int64_t count, uint64_t stream) {
  std::vector<T> numbers(count);
  for (int64_t i = 0; i < count; ++i) numbers[i] = 2 * uniform_at(1, stream, i) - 1;
  return numbers;
}

double median_seconds(int threads, const auto& call) {
  const clockid_t clock = threads == 1 ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC;
  std::vector<double> seconds;
  for (int sample = 0; sample < 9; ++sample) {
    timespec start{}, end{};
    clock_gettime(clock, &start);
    call();
    clock_gettime(clock, &end);
    seconds.push_back(static_cast<double>(end.tv_sec - start.tv_sec) +
                      1e-9 * static_cast<double>(end.tv_nsec - start.tv_nsec));
  }
  std::nth_element(seconds.begin(), seconds.begin() + 4, seconds.end());
  return seconds[4];
}

struct Case {
  const char* what;
  Convolution convolution;
};

template <class T>
void measure(const Case& one, ThreadPool& pool) {
  const Convolution& c = one.convolution;
  const int64_t outputs = c.batch * c.out_channels * c.out_height() * c.out_width();
  const int64_t patch = c.in_channels / c.groups * c.kernel_height * c.kernel_width;
  auto x = random_numbers<T>(c.batch * c.in_channels * c.in_height * c.in_width, 1), dx = x;
  auto weight = random_numbers<T>(c.out_channels * patch, 2), bias = random_numbers<T>(c.out_channels, 3);
  auto y = random_numbers<T>(outputs, 4);
  std::vector<float> dweight(weight.size());
  size_t bytes = 0;
  for (auto pass : {ConvolutionPass::forward, ConvolutionPass::backward_data, ConvolutionPass::backward_weight})
    bytes = std::max(bytes, cpu::convolution_workspace(c, pass, pool.size()));
  std::vector<std::byte> workspace(bytes);
  const double operations = 2.0 * static_cast<double>(outputs) * static_cast<double>(patch);
  const double forward = median_seconds(pool.size(), [&] {
    cpu::convolution_forward(c, x.data(), weight.data(), bias.data(), cpu::Activation::relu, y.data(), workspace, pool);
  });
  const double data = median_seconds(pool.size(), [&] {
    cpu::convolution_backward_data(c, y.data(), weight.data(), false, dx.data(), workspace, pool);
  });
  const double weights = median_seconds(pool.size(), [&] {
    cpu::convolution_backward_weight(c, x.data(), y.data(), false, dweight.data(), workspace, pool);
  });
  fmt::print("{:<24} {:<5} {:<13} {:>8.1f} {:>8.1f} {:>8.1f} {:>10.1f}\n", one.what, name_of(c.type),
             c.channels_last ? "channels-last" : "row-major", operations / forward * 1e-9, operations / data * 1e-9,
             operations / weights * 1e-9, static_cast<double>(bytes) / (1 << 20));
}

Convolution square(int64_t batch, int64_t in, int64_t size, int64_t out, int64_t kernel, int64_t stride,
                   int64_t padding) {
  return {.batch = batch,
          .in_channels = in,
          .in_height = size,
          .in_width = size,
          .out_channels = out,
          .kernel_height = kernel,
          .kernel_width = kernel,
          .stride_height = stride,
          .stride_width = stride,
          .padding_height = padding,
          .padding_width = padding};
}

const Case kCases[] = {
    {"stem 1@28 5x5 20", square(64, 1, 28, 20, 5, 1, 0)},  {"20@12 5x5 50", square(64, 20, 12, 50, 5, 1, 0)},
    {"stem 3@64 7x7/2 64", square(8, 3, 64, 64, 7, 2, 3)}, {"64@28 3x3", square(8, 64, 28, 64, 3, 1, 1)},
    {"64@28 3x3/2 128", square(16, 64, 28, 128, 3, 2, 1)}, {"64@28 1x1/2 128", square(16, 64, 28, 128, 1, 2, 0)},
    {"128@14 3x3", square(16, 128, 14, 128, 3, 1, 1)},     {"256@7 3x3", square(32, 256, 7, 256, 3, 1, 1)},
    {"512@4 3x3", square(32, 512, 4, 512, 3, 1, 1)},       {"64@56 1x1 256", square(2, 64, 56, 256, 1, 1, 0)},
};

}  // namespace

int main(int argc, char** argv) {
  const int threads = argc > 1 ? std::atoi(argv[1]) : 1;
  if (argc > 2)
    for (cpu::InstructionSet set : cpu::available_instruction_sets())
      if (cpu::name_of(set) == argv[2]) cpu::set_instruction_set_for_test(set);
  ThreadPool pool(threads);
  fmt::print("{} on {} thread(s), GFLOP/s\n", cpu::name_of(cpu::instruction_set()), threads);
  fmt::print("{:<24} {:<5} {:<13} {:>8} {:>8} {:>8} {:>10}\n", "case", "type", "layout", "forward", "dx", "dweight",
             "space, MiB");
  for (DType type : {DType::f32, DType::bf16})
    for (bool channels_last : {false, true})
      for (Case one : kCases) {
        one.convolution.type = type;
        one.convolution.channels_last = channels_last;
        type == DType::bf16 ? measure<bfloat16>(one, pool) : measure<float>(one, pool);
      }
}
