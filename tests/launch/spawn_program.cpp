// A program that starts its own ranks. Its argument says what they do:
//   sum       twice: each rank prints the sum over ranks, the second time of three of them; the first process prints
//             "done"
//   alone     one rank
//   fail      rank 1 throws
//   late      spawns after something was computed
//   inner     spawns in a rank
//   children  spawns while it has children of its own: one that lives on and one that ends meanwhile. Prints what has
//             become of them
//   ignoring  the same in a program that ignores SIGCHLD

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>

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

// Only the first process has children: its ranks, too, run what stands before spawn().
void spawn_beside_children(bool ignoring) {
  const bool first = std::getenv("RANK") == nullptr;
  static volatile std::sig_atomic_t told = 0;
  std::signal(
      SIGCHLD, ignoring ? SIG_IGN : [](int) { told = 1; });
  pid_t living = 0, ending = 0;
  if (first && (living = ::fork()) == 0) {
    ::pause();
    ::_exit(0);
  }
  if (first && (ending = ::fork()) == 0) {
    if (pid_t orphan = ::fork(); orphan == 0) {  // whoever loses its parent is not this program's either
      std::this_thread::sleep_for(std::chrono::milliseconds(300));
      ::_exit(0);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    ::_exit(7);
  }
  fleet::spawn(print_sum, 2);
  std::printf("the first child %s\n",
              ::kill(living, 0) == 0 && ::waitpid(living, nullptr, WNOHANG) == 0 ? "lives" : "is gone");
  int status = 0;
  if (!ignoring) {
    const bool own = ::waitpid(ending, &status, 0) == ending;
    std::printf("the second child %s, and the handler was %s\n",
                own ? fmt::format("ended with {}", WEXITSTATUS(status)).c_str() : "was taken away",
                told != 0 ? "called" : "not called");
  }
  int adopts = 0;
  ::prctl(PR_GET_CHILD_SUBREAPER, &adopts);
  std::printf("the program %s\n", adopts == 0 ? "adopts nobody" : "adopts orphans");
  ::kill(living, SIGKILL);
  ::waitpid(living, nullptr, 0);
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
  } else if (std::strcmp(what, "children") == 0 || std::strcmp(what, "ignoring") == 0) {
    spawn_beside_children(std::strcmp(what, "ignoring") == 0);
  }
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 3;
}
