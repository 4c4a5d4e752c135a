// Matrix products through cuBLASLt, with bias and activation in the product's epilogue where the library has them, else
// in a generated kernel after it.
#include <algorithm>
#include <array>

#include "bonfire/backend/cuda/candidate.h"
#include "bonfire/backend/cuda/cublas_lt.h"
#include "bonfire/backend/cuda/expression.h"
#include "bonfire/base/error.h"

namespace bonfire::cuda {

namespace {

// One call: C [m, n] = op(A) op(B) for `batch` matrices, each `stride` elements after the one before.
struct Product {
  int64_t m = 0, n = 0, k = 0;
  bool transpose_a = false, transpose_b = false;
  int64_t batch = 1, stride_a = 0, stride_b = 0, stride_c = 0;
  DType dtype = DType::f32;
  bool bias = false;    // of dtype, in the epilogue
  int activation = -1;  // in the epilogue: -1, relu or gelu_tanh

  friend bool operator==(const Product&, const Product&) = default;
};

bool in_epilogue(int activation) {
  return activation == -1 || activation == static_cast<int>(ElementwiseFunction::relu) ||
         activation == static_cast<int>(ElementwiseFunction::gelu_tanh);
}

cublasLtEpilogue_t epilogue_of(const Product& product) {
  if (product.activation == static_cast<int>(ElementwiseFunction::relu))
    return product.bias ? CUBLASLT_EPILOGUE_RELU_BIAS : CUBLASLT_EPILOGUE_RELU;
  if (product.activation == static_cast<int>(ElementwiseFunction::gelu_tanh))
    return product.bias ? CUBLASLT_EPILOGUE_GELU_BIAS : CUBLASLT_EPILOGUE_GELU;
  return product.bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
}

template <class T>
void set(cublasLtMatmulDesc_t descriptor, cublasLtMatmulDescAttributes_t name, T value) {
  check(cublasLtMatmulDescSetAttribute(descriptor, name, &value, sizeof value), "cublasLtMatmulDescSetAttribute");
}
template <class T>
void set(cublasLtMatmulPreference_t preference, cublasLtMatmulPreferenceAttributes_t name, T value) {
  check(cublasLtMatmulPreferenceSetAttribute(preference, name, &value, sizeof value),
        "cublasLtMatmulPreferenceSetAttribute");
}

// The library stores by columns: to it a row-major matrix is its transpose. So it computes Cᵀ = op(B)ᵀ op(A)ᵀ, and the
// bias along our columns runs along its rows, as its epilogue wants.
class MatmulPlan {
 public:
  explicit MatmulPlan(const Product& product) : product_(product) {
    cudaDataType_t type = cuda_type(product.dtype);
    bool f64 = product.dtype == DType::f64;
    cublasLtMatmulDesc_t descriptor = nullptr;
    check(cublasLtMatmulDescCreate(&descriptor, f64 ? CUBLAS_COMPUTE_64F : CUBLAS_COMPUTE_32F,
                                   f64 ? CUDA_R_64F : CUDA_R_32F),
          "cublasLtMatmulDescCreate");
    descriptor_ = MatmulDescriptor(descriptor);
    set(descriptor, CUBLASLT_MATMUL_DESC_TRANSA, product.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N);
    set(descriptor, CUBLASLT_MATMUL_DESC_TRANSB, product.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N);
    set(descriptor, CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue_of(product));
    if (product.bias) set(descriptor, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, static_cast<int32_t>(type));
    first_ = product.transpose_b ? layout(type, product.k, product.n, product.stride_b)
                                 : layout(type, product.n, product.k, product.stride_b);
    second_ = product.transpose_a ? layout(type, product.m, product.k, product.stride_a)
                                  : layout(type, product.k, product.m, product.stride_a);
    result_ = layout(type, product.n, product.m, product.stride_c);
    choose();
  }

  bool found() const { return found_; }
  size_t workspace_bytes() const { return choice_.workspaceSize; }

  void run(const void* a, const void* b, const void* bias, void* c, void* workspace, cudaStream_t stream) const {
    if (product_.bias) set(descriptor_.get(), CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
    float one = 1, zero = 0;
    double one_f64 = 1, zero_f64 = 0;
    bool f64 = product_.dtype == DType::f64;
    check(cublasLtMatmul(cublas_lt(), descriptor_.get(), f64 ? static_cast<void*>(&one_f64) : &one, b, first_.get(), a,
                         second_.get(), f64 ? static_cast<void*>(&zero_f64) : &zero, c, result_.get(), c, result_.get(),
                         &choice_.algo, workspace, choice_.workspaceSize, stream),
          "cublasLtMatmul");
  }

 private:
  MatrixLayout layout(cudaDataType_t type, int64_t rows, int64_t columns, int64_t stride) const {
    cublasLtMatrixLayout_t raw = nullptr;
    check(cublasLtMatrixLayoutCreate(&raw, type, static_cast<uint64_t>(rows), static_cast<uint64_t>(columns), rows),
          "cublasLtMatrixLayoutCreate");
    MatrixLayout made(raw);
    auto batch = static_cast<int32_t>(product_.batch);
    check(cublasLtMatrixLayoutSetAttribute(raw, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &batch, sizeof batch),
          "cublasLtMatrixLayoutSetAttribute");
    check(cublasLtMatrixLayoutSetAttribute(raw, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &stride, sizeof stride),
          "cublasLtMatrixLayoutSetAttribute");
    return made;
  }

  void choose() {
    constexpr uint64_t kWorkspace = 32 << 20;  // bytes
    constexpr uint32_t kAlignment = 16;        // bytes, that every address has
    cublasLtMatmulPreference_t raw = nullptr;
    check(cublasLtMatmulPreferenceCreate(&raw), "cublasLtMatmulPreferenceCreate");
    MatmulPreference preference(raw);
    set(raw, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kWorkspace);
    for (auto name : {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
                      CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES})
      set(raw, name, kAlignment);
    // Sums of parts go through the workspace, in an order that does not vary.
    set(raw, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
        static_cast<uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE | CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE));
    int count = 0;
    cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(cublas_lt(), descriptor_.get(), first_.get(), second_.get(),
                                                           result_.get(), result_.get(), raw, 1, &choice_, &count);
    found_ = status == CUBLAS_STATUS_SUCCESS && count > 0;
  }

  Product product_;
  MatmulDescriptor descriptor_;
  MatrixLayout first_, second_, result_;
  cublasLtMatmulHeuristicResult_t choice_{};
  bool found_ = false;
};

// Which matrices of A and B belong to each of the result. All in one call where the strides allow, else one call each.
struct Batches {
  int64_t per_call = 1, stride_a = 0, stride_b = 0;
  std::vector<std::array<int64_t, 2>> offsets;  // elements into A and B, of each call
};

Batches batches_of(const Shape& a, const Shape& b, const Shape& result) {
  int64_t matrix_a = a[-1] * a[-2], matrix_b = b[-1] * b[-2];
  int64_t count = result.count() / std::max<int64_t>(1, result[-1] * result[-2]);
  auto leading = [](const Shape& shape) {
    int64_t product = 1;
    for (int i = 0; i < shape.rank() - 2; ++i) product *= shape[i];
    return product;
  };
  auto uniform = [&](const Shape& shape) { return leading(shape) == 1 || leading(shape) == count; };
  if (uniform(a) && uniform(b))
    return {count, leading(a) == 1 ? 0 : matrix_a, leading(b) == 1 ? 0 : matrix_b, {{0, 0}}};
  Batches batches;
  auto offset = [&](const Shape& shape, int64_t index, int64_t matrix) {
    int64_t at = 0, stride = matrix;
    for (int axis = result.rank() - 3; axis >= 0; --axis) {
      int own = axis - (result.rank() - shape.rank());
      int64_t coordinate = index % result[axis];
      index /= result[axis];
      if (own < 0) continue;
      if (shape[own] != 1) at += coordinate * stride;
      stride *= shape[own];
    }
    return at;
  };
  for (int64_t i = 0; i < count; ++i) batches.offsets.push_back({offset(a, i, matrix_a), offset(b, i, matrix_b)});
  return batches;
}

class MatmulKernel final : public Kernel {
 public:
  MatmulKernel(std::shared_ptr<MatmulPlan> plan, Batches batches, int64_t result_elements, size_t element_bytes,
               std::unique_ptr<Kernel> after)
      : plan_(std::move(plan)),
        batches_(std::move(batches)),
        result_elements_(result_elements),
        element_bytes_(static_cast<int64_t>(element_bytes)),
        after_(std::move(after)) {}

  void run(const Run& run) override {
    const void* bias = run.inputs.size() > 2 ? run.inputs[2] : nullptr;
    for (size_t i = 0; i < batches_.offsets.size(); ++i) {
      auto [a, b] = batches_.offsets[i];
      plan_->run(run.input<char>(0) + a * element_bytes_, run.input<char>(1) + b * element_bytes_, bias,
                 run.output<char>(0) + static_cast<int64_t>(i) * result_elements_ * element_bytes_, run.workspace,
                 stream_of(run));
    }
    if (!after_) return;
    std::vector<void*> inputs{run.outputs[0]};
    if (bias != nullptr) inputs.push_back(run.inputs[2]);
    after_->run({inputs, run.outputs, nullptr, nullptr, run.stream});
  }

 private:
  std::shared_ptr<MatmulPlan> plan_;
  Batches batches_;
  int64_t result_elements_, element_bytes_;
  std::unique_ptr<Kernel> after_;
};

// An empty sum is zero.
std::vector<Candidate> nothing_to_multiply(const KernelRequest& request, bool has_epilogue) {
  BONFIRE_CHECK(!has_epilogue || request.node.outputs[0].shape.count() == 0, "an empty product with an epilogue");
  return one_candidate(request, [bytes = request.node.outputs[0].bytes()](const Run& run) {
    if (bytes > 0) check(cudaMemsetAsync(run.outputs[0], 0, bytes, stream_of(run)), "cudaMemsetAsync");
  });
}

std::vector<Candidate> candidates(const KernelRequest& request) {
  const GraphNode& node = request.node;
  const TensorSpec &a = node.inputs[0].spec(), &b = node.inputs[1].spec(), &c = node.outputs[0];
  bool fused = node.attributes.has("activation");
  bool has_bias = fused && node.attributes.flag("has_bias");
  int activation = fused ? static_cast<int>(node.attributes.integer("activation")) : -1;
  Product product;
  product.transpose_a = node.attributes.flag("transpose_a");
  product.transpose_b = node.attributes.flag("transpose_b");
  product.m = c.shape[-2];
  product.n = c.shape[-1];
  product.k = a.shape[product.transpose_a ? -2 : -1];
  product.dtype = c.dtype;
  if (c.shape.count() == 0 || product.k == 0) return nothing_to_multiply(request, has_bias || activation != -1);
  Batches batches = batches_of(a.shape, b.shape, c.shape);
  product.batch = batches.per_call;
  product.stride_a = batches.stride_a;
  product.stride_b = batches.stride_b;
  product.stride_c = product.m * product.n;
  bool library_epilogue =
      c.dtype != DType::f64 && in_epilogue(activation) && (!has_bias || node.inputs[2].spec().dtype == c.dtype);
  if (library_epilogue) {
    product.bias = has_bias;
    product.activation = activation;
  }
  DeviceScope device(node.device().index);
  auto plan = std::make_shared<MatmulPlan>(product);
  if (!plan->found() && library_epilogue && (has_bias || activation != -1)) {
    library_epilogue = false;
    product.bias = false;
    product.activation = -1;
    plan = std::make_shared<MatmulPlan>(product);
  }
  if (!plan->found()) return {};
  Candidate candidate = row_major_candidate(request, library_epilogue ? "cublaslt" : "cublaslt+generated");
  candidate.workspace_bytes = plan->workspace_bytes();
  bool has_more = !library_epilogue && (has_bias || activation != -1);
  DType bias_type = has_bias ? node.inputs[2].spec().dtype : c.dtype;
  build_on_device(candidate, request, [=, shape = c.shape, dtype = c.dtype]() -> std::unique_ptr<Kernel> {
    std::unique_ptr<Kernel> after = has_more ? make_bias_act_kernel({.shape = shape,
                                                                     .dtype = dtype,
                                                                     .layout = {},
                                                                     .bias_type = has_bias ? &bias_type : nullptr,
                                                                     .bias_shape = {shape[-1]},
                                                                     .residual = false,
                                                                     .activation = activation})
                                             : nullptr;
    return std::make_unique<MatmulKernel>(plan, batches, product.m * product.n, size_of(dtype), std::move(after));
  });
  return {std::move(candidate)};
}

const bool registered = register_kernel("matmul", DeviceType::cuda, candidates) &&
                        register_kernel("matmul_bias_act", DeviceType::cuda, candidates);

}  // namespace

}  // namespace bonfire::cuda
