#pragma once
// Forcing a candidate, so that each can be tested and timed by itself.
//
//   for (const std::string& name : offered_kernels("conv2d")) {
//     ForcedKernel forced(name);
//     ...  // plans compiled here use that candidate wherever it is offered
//   }
//
// BONFIRE_KERNEL=winograd does the same for a whole process.

#include <string>
#include <string_view>
#include <vector>

#include "bonfire/kernel/kernel.h"

namespace bonfire {

// While it lives, a node that has candidates with `part` in their names has only those; other nodes choose as ever.
// Plans made before are not used meanwhile, and those made meanwhile not afterwards. One at a time.
class ForcedKernel {
 public:
  explicit ForcedKernel(std::string part);
  ~ForcedKernel();
  ForcedKernel(const ForcedKernel&) = delete;
  ForcedKernel& operator=(const ForcedKernel&) = delete;

 private:
  std::string before_;
};

std::string forced_kernel();  // the part in force; empty: none

// Leaves the candidates that are forced, all of them when none is. candidates_for() calls it.
std::vector<Candidate> forced_among(std::string_view op, std::vector<Candidate> candidates);

// The names of all candidates that nodes of this op have been offered since the process began, or since they were
// forgotten; in order.
std::vector<std::string> offered_kernels(std::string_view op);
void forget_offered_kernels();

}  // namespace bonfire
