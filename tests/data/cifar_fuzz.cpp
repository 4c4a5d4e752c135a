// fuzz_cifar [SECONDS = 60] [SEED = 1] [FIRST NUMBER = 0]: damaged files for the reader; build it with sanitizers.

#include "tests/data/reader_mutators.h"
#include "tests/support/fuzz_loop.h"

int main(int argc, char** argv) { return bonfire::testing::fuzz(argc, argv, bonfire::data::testing::takes_cifar); }
