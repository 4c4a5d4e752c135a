#pragma once
// The ops that GPUs do not have yet: the one list of them.

#include <span>
#include <string_view>

namespace bonfire {

// Names, sorted. tests/kernel compares them with the registered ops and the sources: an op that has neither a CUDA
// kernel nor a line here fails it, and so does one that has both.
std::span<const std::string_view> ops_without_cuda_kernel();

bool is_without_cuda_kernel(std::string_view op);

}  // namespace bonfire
