#pragma once
// While one lives, kernels are chosen without timing: what is whole has the same bits on any number of ranks.

#include <cstdlib>

namespace bonfire::testing {

class PinnedKernels {
 public:
  PinnedKernels() { setenv("BONFIRE_TUNE", "off", 1); }
  ~PinnedKernels() { unsetenv("BONFIRE_TUNE"); }
  PinnedKernels(const PinnedKernels&) = delete;
  PinnedKernels& operator=(const PinnedKernels&) = delete;
};

}  // namespace bonfire::testing
