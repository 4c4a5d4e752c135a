#pragma once
// What the fuzz programs share: the loop, and changes to bytes that are a pure function of (seed, number).

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "bonfire/base/random.h"

namespace bonfire::testing {

// PROGRAM [SECONDS = 60] [SEED = 1] [FIRST NUMBER = 0]: calls takes(seed, number) for one number after another. A
// finding ends the program; the last line printed says from which number to go on to meet it again.
template <class Takes>
int fuzz(int argc, char** argv, const Takes& takes) {
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
    for (int i = 0; i < 100'000 && elapsed() < seconds; ++i) taken += takes(seed, number++) ? 1U : 0U;
  }
  fmt::print("{} files in {:.1f} s: {} taken, {} refused with a DataError, no finding\n", number - first, elapsed(),
             taken, number - first - taken);
  return 0;
}

// Draws, and damage to bytes.
class ByteMutator {
 public:
  ByteMutator(uint64_t seed, uint64_t number) : seed_(seed), number_(number) {}

  size_t below(size_t limit) { return philox(seed_, number_, drawn_++).word[0] % limit; }

  void change(std::string& bytes) {
    size_t at = below(bytes.size() + 1), length = below(std::min<size_t>(bytes.size() - at, 40) + 1);
    switch (below(6)) {
      case 0: bytes.erase(at, length); break;
      case 1: bytes.insert(below(bytes.size() + 1), bytes.substr(at, length)); break;
      case 2: bytes.resize(at); break;
      case 3:
        for (size_t width = size_t{1} << below(4); width > 0 && at < bytes.size(); --width) bytes[at++] = extreme();
        break;
      default:
        if (!bytes.empty()) bytes[below(bytes.size())] = static_cast<char>(below(256));
    }
  }

 private:
  char extreme() {
    constexpr uint8_t kValues[] = {0, 1, 2, 0x7F, 0x80, 0xFF};
    return static_cast<char>(kValues[below(sizeof kValues)]);
  }

  uint64_t seed_, number_, drawn_ = 0;
};

}  // namespace bonfire::testing
