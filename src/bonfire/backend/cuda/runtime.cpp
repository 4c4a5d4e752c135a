#include "bonfire/backend/cuda/runtime.h"

#include <mutex>
#include <vector>

#include "bonfire/base/error.h"

namespace bonfire::cuda {

void check(cudaError_t status, const char* call) {
  if (status == cudaSuccess) [[likely]]
    return;
  cudaGetLastError();  // forget it, where it can be forgotten
  throw_error<DeviceError>("[cuda] {} failed: {}", call, cudaGetErrorString(status));
}

Stream make_stream() {
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  return Stream(stream);
}

Event make_event() {
  cudaEvent_t event = nullptr;
  check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreateWithFlags");
  return Event(event);
}

Event make_timing_event() {
  cudaEvent_t event = nullptr;
  check(cudaEventCreate(&event), "cudaEventCreate");
  return Event(event);
}

DeviceScope::DeviceScope(int index) {
  check(cudaGetDevice(&before_), "cudaGetDevice");
  check(cudaSetDevice(index), "cudaSetDevice");
}
DeviceScope::~DeviceScope() { cudaSetDevice(before_); }

int device_count() {
  static const int count = [] {
    int found = 0;
    if (cudaGetDeviceCount(&found) != cudaSuccess) {
      cudaGetLastError();
      return 0;
    }
    return found;
  }();
  return count;
}

const DeviceTraits& traits_of(int index) {
  static const std::vector<DeviceTraits> all = [] {
    std::vector<DeviceTraits> traits(static_cast<size_t>(device_count()));
    for (int i = 0; i < device_count(); ++i) {
      cudaDeviceProp properties{};
      check(cudaGetDeviceProperties(&properties, i), "cudaGetDeviceProperties");
      traits[static_cast<size_t>(i)] = {.model = properties.name,
                                        .architecture = properties.major * 10 + properties.minor,
                                        .multiprocessors = properties.multiProcessorCount,
                                        .shared_bytes = properties.sharedMemPerBlockOptin,
                                        .memory_bytes = properties.totalGlobalMem};
    }
    return traits;
  }();
  return all.at(static_cast<size_t>(index));
}

const DeviceTraits& current_traits() {
  int index = 0;
  check(cudaGetDevice(&index), "cudaGetDevice");
  return traits_of(index);
}

}  // namespace bonfire::cuda
