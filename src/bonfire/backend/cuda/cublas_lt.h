#pragma once
// cuBLASLt in C++.

#include <cublasLt.h>

#include "bonfire/backend/cuda/runtime.h"
#include "bonfire/tensor/dtype.h"

namespace bonfire::cuda {

void check(cublasStatus_t status, const char* call);

using MatmulDescriptor = Handle<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy>;
using MatrixLayout = Handle<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>;
using MatmulPreference = Handle<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy>;

cublasLtHandle_t cublas_lt();  // of the current device; made at first use, kept for ever
cudaDataType_t cuda_type(DType dtype);

}  // namespace bonfire::cuda
