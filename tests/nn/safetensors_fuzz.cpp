// Throws damaged files at the safetensors parser for as long as it is told:
//   fuzz_safetensors [SECONDS = 60] [SEED = 1] [FIRST NUMBER = 0]
// Build it with sanitizers.

#include "tests/nn/safetensors_mutator.h"
#include "tests/support/fuzz_loop.h"

int main(int argc, char** argv) {
  using namespace bonfire::nn::testing;
  return bonfire::testing::fuzz(
      argc, argv, [](uint64_t seed, uint64_t number) { return parses(SafetensorsMutator(seed, number).file()); });
}
