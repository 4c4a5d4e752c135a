#pragma once
// fleet::spawn: a program that starts its own ranks.
//
//   int main() {
//     fleet::spawn([] {                                                // four processes, each a rank
//       auto model = fleet::distributed_model(models::mnist_cnn());
//       ...
//     }, 4);
//   }

#include <functional>

#include "bonfire/parallel/fleet.h"

namespace bonfire::fleet {

// Starts this program anew as `ranks` processes, as `bonfire launch` would, and returns when all have ended. Each of
// them runs main() up to this call, and here joins the job, runs the body and ends: what stands before the call is done
// by every process, what stands after it by the first one only. One rank is this process itself.
//
// CommError when a rank failed; what it printed, and who it was, is on stderr. ConfigError where it cannot be: in a
// process that is a rank already, or that has computed something.
void spawn(const std::function<void()>& body, int ranks, const Options& options = {});

}  // namespace bonfire::fleet
