#include "bonfire/backend/cuda/cublas_lt.h"

#include <mutex>
#include <vector>

#include "bonfire/base/error.h"

namespace bonfire::cuda {

void check(cublasStatus_t status, const char* call) {
  if (status != CUBLAS_STATUS_SUCCESS)
    throw_error<DeviceError>("[cublaslt] {} failed: {}", call, cublasLtGetStatusString(status));
}

cublasLtHandle_t cublas_lt() {
  static std::mutex mutex;
  static auto handles = std::vector<cublasLtHandle_t>(static_cast<size_t>(device_count()));
  int device = 0;
  check(cudaGetDevice(&device), "cudaGetDevice");
  std::lock_guard lock(mutex);
  cublasLtHandle_t& handle = handles.at(static_cast<size_t>(device));
  if (handle == nullptr) check(cublasLtCreate(&handle), "cublasLtCreate");
  return handle;
}

cudaDataType_t cuda_type(DType dtype) {
  switch (dtype) {
    case DType::f64: return CUDA_R_64F;
    case DType::bf16: return CUDA_R_16BF;
    case DType::f16: return CUDA_R_16F;
    default: BONFIRE_CHECK(dtype == DType::f32, "no matrix products of {}", name_of(dtype));
  }
  return CUDA_R_32F;
}

}  // namespace bonfire::cuda
