// A program that starts its own ranks. Its argument says what they do:
//   sum       twice: each rank prints the sum over ranks, the second time of three of them; the first process prints
//             "done"
//   alone     one rank
//   fail      rank 1 throws
//   late      spawns after something was computed
//   inner     spawns in a rank

#include <cstdio>
#include <cstring>

#include "bonfire/bonfire.h"

namespace {

using namespace bonfire;

void print_sum() {
  double sum = fleet::rank() + 1;
  if (fleet::world_size() > 1) fleet::group().all_reduce({&sum, 1, DType::f64}, comm::Reduce::sum);
  std::printf("rank %d of %d: sum %g\n", fleet::rank(), fleet::world_size(), sum);
}

void fail() {
  if (fleet::rank() == 1) throw_error<ConfigError>("rank 1 does not like this");
  double sum = 0;
  fleet::group().all_reduce({&sum, 1, DType::f64}, comm::Reduce::sum);
}

}  // namespace

int main(int argc, char** argv) try {
  const char* what = argc > 1 ? argv[1] : "";
  if (std::strcmp(what, "sum") == 0) {
    fleet::spawn(print_sum, 2);
    std::printf("between\n");
    std::fflush(stdout);
    fleet::spawn(print_sum, 3);
    std::printf("done\n");
  } else if (std::strcmp(what, "alone") == 0) {
    fleet::spawn(print_sum, 1);
  } else if (std::strcmp(what, "fail") == 0) {
    fleet::spawn(fail, 2);
  } else if (std::strcmp(what, "late") == 0) {
    sum(ones({4})).item();
    fleet::spawn(print_sum, 2);
  } else if (std::strcmp(what, "inner") == 0) {
    fleet::spawn([] { fleet::spawn(print_sum, 2); }, 2);
  }
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 3;
}
