// Throws damaged files at the safetensors parser for as long as it is told:
//   fuzz_safetensors [SECONDS = 60] [SEED = 1] [FIRST NUMBER = 0]
// Build it with sanitizers. A finding ends it; the last line printed says from which number to go on to meet it again.

#include <fmt/core.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "tests/nn/safetensors_mutator.h"

int main(int argc, char** argv) {
  using namespace bonfire::nn::testing;
  using Clock = std::chrono::steady_clock;
  double seconds = argc > 1 ? std::atof(argv[1]) : 60;
  uint64_t seed = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 1;
  uint64_t first = argc > 3 ? std::strtoull(argv[3], nullptr, 10) : 0;

  auto start = Clock::now();
  uint64_t number = first, taken = 0;
  auto elapsed = [start] { return std::chrono::duration<double>(Clock::now() - start).count(); };
  while (elapsed() < seconds) {
    fmt::print("seed {}, from number {}\n", seed, number);
    std::fflush(stdout);
    for (int i = 0; i < 100'000 && elapsed() < seconds; ++i) taken += parses(SafetensorsMutator(seed, number++).file());
  }
  fmt::print("{} files in {:.1f} s: {} taken, {} refused with a DataError, no finding\n", number - first, elapsed(),
             taken, number - first - taken);
}
