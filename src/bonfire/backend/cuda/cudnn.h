#pragma once
// cuDNN's graph interface in C++: descriptors that are set up, finalised and read, and plans that run.

#include <cudnn.h>

#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "bonfire/backend/cuda/runtime.h"
#include "bonfire/tensor/storage.h"

namespace bonfire::cuda {

void check(cudnnStatus_t status, const char* call);

// The current device's handle, for as long as this lives. One thread at a time.
class CudnnLock {
 public:
  CudnnLock();
  cudnnHandle_t handle() const { return handle_; }

 private:
  std::unique_lock<std::mutex> lock_;
  cudnnHandle_t handle_;
};

// A backend descriptor. set() before finalize(), get() after it.
class CudnnDescriptor {
 public:
  CudnnDescriptor() = default;
  explicit CudnnDescriptor(cudnnBackendDescriptorType_t type);

  template <class T>
  CudnnDescriptor& set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, std::span<const T> values) {
    set_raw(name, type, static_cast<int64_t>(values.size()), values.data());
    return *this;
  }
  template <class T>
  CudnnDescriptor& set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, const T& value) {
    set_raw(name, type, 1, &value);
    return *this;
  }
  CudnnDescriptor& set(cudnnBackendAttributeName_t name, const CudnnDescriptor& descriptor);
  CudnnDescriptor& finalize();
  bool try_finalize();  // false when cuDNN does not support it

  // `most` descriptors of `type` at most: what this one holds under `name`.
  std::vector<CudnnDescriptor> get_descriptors(cudnnBackendAttributeName_t name, cudnnBackendDescriptorType_t type,
                                               int64_t most) const;
  int64_t get_integer(cudnnBackendAttributeName_t name) const;
  std::vector<cudnnBackendNumericalNote_t> numerical_notes() const;  // of an engine
  cudnnBackendDescriptor_t get() const { return handle_.get(); }

 private:
  void set_raw(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t count, const void* values);

  Handle<cudnnBackendDescriptor_t, cudnnBackendDestroyDescriptor> handle_;
};

cudnnDataType_t cudnn_type(DType dtype);

// A tensor of an operation graph, named by `uid`.
CudnnDescriptor cudnn_tensor(int64_t uid, const Shape& shape, const Layout& layout, DType dtype);

// One way to run a graph of one operation.
struct CudnnPlan {
  std::string name;  // "cudnn 0 engine 38"
  int64_t engine;    // its number, among those of the operation
  CudnnDescriptor plan;
  size_t workspace_bytes = 0;
  bool keeps_zeros = true;  // as Candidate::keeps_zeros: false for Winograd's algorithm and Fourier transforms

  // Addresses of tensors 1, 2, 3, … as their uids were given.
  void run(std::span<void* const> tensors, void* workspace, cudaStream_t stream) const;
};

// At most `most` plans that keep zeros, and others, for the operation, the one that cuDNN expects to be the fastest
// first. Engines whose results vary from run to run are left out; so are those that round f32 inputs, when `exact`.
std::vector<CudnnPlan> cudnn_plans(const CudnnDescriptor& operation, bool exact, size_t most);

}  // namespace bonfire::cuda
