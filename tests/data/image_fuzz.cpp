// Throws damaged pictures at the JPEG or the PNG reader for as long as it is told:
//   fuzz_image jpeg|png [SECONDS = 60] [SEED = 1] [FIRST NUMBER = 0]
// Build it with sanitizers.

#include "tests/data/image_mutator.h"
#include "tests/support/fuzz_loop.h"

int main(int argc, char** argv) {
  using namespace bonfire::data::testing;
  std::string kind = argc > 1 ? argv[1] : "";
  if (kind != "jpeg" && kind != "png") {
    fmt::print(stderr, "fuzz_image jpeg|png [SECONDS = 60] [SEED = 1] [FIRST NUMBER = 0]\n");
    return 2;
  }
  std::vector<std::string> whole = whole_files(kind == "jpeg");
  return bonfire::testing::fuzz(argc - 1, argv + 1, [&](uint64_t seed, uint64_t number) {
    ImageMutator mutator(whole, kind == "jpeg", seed, number);
    return decodes(mutator.file(), mutator);
  });
}
