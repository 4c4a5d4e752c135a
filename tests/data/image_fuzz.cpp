// Throws damaged pictures at the JPEG or the PNG reader for as long as it is told:
//   fuzz_image jpeg|png [SECONDS = 60] [SEED = 1] [FIRST NUMBER = 0]
// Build it with sanitizers. A finding ends it; the last line printed says from which number to go on to meet it again.

#include <fmt/core.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "tests/data/image_mutator.h"

int main(int argc, char** argv) {
  using namespace bonfire::data::testing;
  using Clock = std::chrono::steady_clock;
  std::string kind = argc > 1 ? argv[1] : "";
  if (kind != "jpeg" && kind != "png") {
    fmt::print(stderr, "fuzz_image jpeg|png [SECONDS = 60] [SEED = 1] [FIRST NUMBER = 0]\n");
    return 2;
  }
  double seconds = argc > 2 ? std::atof(argv[2]) : 60;
  uint64_t seed = argc > 3 ? std::strtoull(argv[3], nullptr, 10) : 1;
  uint64_t first = argc > 4 ? std::strtoull(argv[4], nullptr, 10) : 0;

  std::vector<std::string> whole = whole_files(kind == "jpeg");
  auto start = Clock::now();
  uint64_t number = first, taken = 0;
  auto elapsed = [start] { return std::chrono::duration<double>(Clock::now() - start).count(); };
  while (elapsed() < seconds) {
    fmt::print("seed {}, from number {}\n", seed, number);
    std::fflush(stdout);
    for (int i = 0; i < 20'000 && elapsed() < seconds; ++i) {
      ImageMutator mutator(whole, kind == "jpeg", seed, number++);
      taken += decodes(mutator.file(), mutator);
    }
  }
  fmt::print("{} {} files in {:.1f} s: {} taken, {} refused with a DataError, no finding\n", number - first, kind,
             elapsed(), taken, number - first - taken);
}
