#pragma once
// The CUDA runtime in C++: failures become exceptions, handles clean up after themselves.

#include <cuda_runtime_api.h>

#include <string>
#include <utility>

namespace bonfire::cuda {

// DeviceError "[cuda] cudaMalloc failed: out of memory" unless the call succeeded.
void check(cudaError_t status, const char* call);

// Owns a handle of a C library. `destroy` is the library's own function.
template <class T, auto destroy>
class Handle {
 public:
  Handle() = default;
  explicit Handle(T raw) : raw_(raw) {}
  Handle(Handle&& other) noexcept : raw_(std::exchange(other.raw_, T{})) {}
  Handle& operator=(Handle&& other) noexcept {
    std::swap(raw_, other.raw_);
    return *this;
  }
  ~Handle() {
    if (raw_ != T{}) destroy(raw_);
  }

  T get() const { return raw_; }
  explicit operator bool() const { return raw_ != T{}; }

 private:
  T raw_{};
};

using Stream = Handle<cudaStream_t, cudaStreamDestroy>;
using Event = Handle<cudaEvent_t, cudaEventDestroy>;

Stream make_stream();  // on the current device; does not wait for the default stream
Event make_event();    // without timing
Event make_timing_event();

// Makes a device current for this thread while it lives.
class DeviceScope {
 public:
  explicit DeviceScope(int index);
  ~DeviceScope();
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

 private:
  int before_ = 0;
};

struct DeviceTraits {
  std::string model;     // "NVIDIA H200"
  int architecture = 0;  // 90 for compute capability 9.0
  int multiprocessors = 0;
  size_t shared_bytes = 0;  // the most that one block can ask for
  size_t memory_bytes = 0;
};
const DeviceTraits& traits_of(int index);
const DeviceTraits& current_traits();  // of the current device

int device_count();  // 0 without a driver or a device; never throws

}  // namespace bonfire::cuda
