#pragma once
// Kernels from generated source: compiled for the current device's architecture once, kept in memory for the life of
// the process and on disk for the next one.

#include <cuda_runtime_api.h>
#include <nvrtc.h>

#include <string>

namespace bonfire::cuda {

void check(nvrtcResult status, const char* call);

// The kernel `name` (declared extern "C") of `source`. What the compiler complains about is a BONFIRE_CHECK failure:
// only a bug can cause it.
cudaKernel_t compile_kernel(const std::string& source, const char* name);

// Machine code for `architecture` (90). Needs no device.
std::string compile_to_cubin(const std::string& source, int architecture);

}  // namespace bonfire::cuda
