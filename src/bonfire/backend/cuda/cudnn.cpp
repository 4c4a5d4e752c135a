#include "bonfire/backend/cuda/cudnn.h"

#include <algorithm>

#include "bonfire/base/error.h"

namespace bonfire::cuda {

namespace {

constexpr int64_t kMostWorkspace = int64_t{1} << 30;  // bytes; what needs more is not worth its memory
constexpr int64_t kAlignment = 16;                    // bytes, that every address has

struct CudnnState {
  std::mutex mutex;
  std::vector<cudnnHandle_t> handles{static_cast<size_t>(device_count())};
};

CudnnState& state() {
  static auto* instance = new CudnnState;
  return *instance;
}

}  // namespace

void check(cudnnStatus_t status, const char* call) {
  if (status == CUDNN_STATUS_SUCCESS) return;
  char text[512] = {};
  cudnnGetLastErrorString(text, sizeof text);
  throw_error<DeviceError>("[cudnn] {} failed: {} {}", call, cudnnGetErrorString(status), text);
}

CudnnLock::CudnnLock() : lock_(state().mutex) {
  int device = 0;
  check(cudaGetDevice(&device), "cudaGetDevice");
  cudnnHandle_t& handle = state().handles.at(static_cast<size_t>(device));
  if (handle == nullptr) check(cudnnCreate(&handle), "cudnnCreate");
  handle_ = handle;
}

CudnnDescriptor::CudnnDescriptor(cudnnBackendDescriptorType_t type) {
  cudnnBackendDescriptor_t raw = nullptr;
  check(cudnnBackendCreateDescriptor(type, &raw), "cudnnBackendCreateDescriptor");
  handle_ = decltype(handle_)(raw);
}

void CudnnDescriptor::set_raw(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t count,
                              const void* values) {
  check(cudnnBackendSetAttribute(get(), name, type, count, values), "cudnnBackendSetAttribute");
}

CudnnDescriptor& CudnnDescriptor::set(cudnnBackendAttributeName_t name, const CudnnDescriptor& descriptor) {
  return set(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, descriptor.get());
}

CudnnDescriptor& CudnnDescriptor::finalize() {
  check(cudnnBackendFinalize(get()), "cudnnBackendFinalize");
  return *this;
}

bool CudnnDescriptor::try_finalize() { return cudnnBackendFinalize(get()) == CUDNN_STATUS_SUCCESS; }

std::vector<CudnnDescriptor> CudnnDescriptor::get_descriptors(cudnnBackendAttributeName_t name,
                                                              cudnnBackendDescriptorType_t type, int64_t most) const {
  std::vector<CudnnDescriptor> descriptors;
  std::vector<cudnnBackendDescriptor_t> raw;
  for (int64_t i = 0; i < most; ++i) raw.push_back(descriptors.emplace_back(type).get());
  int64_t count = 0;
  check(cudnnBackendGetAttribute(get(), name, CUDNN_TYPE_BACKEND_DESCRIPTOR, most, &count, raw.data()),
        "cudnnBackendGetAttribute");
  descriptors.erase(descriptors.begin() + std::min(count, most), descriptors.end());
  return descriptors;
}

int64_t CudnnDescriptor::get_integer(cudnnBackendAttributeName_t name) const {
  int64_t value = 0, count = 0;
  check(cudnnBackendGetAttribute(get(), name, CUDNN_TYPE_INT64, 1, &count, &value), "cudnnBackendGetAttribute");
  return value;
}

std::vector<cudnnBackendNumericalNote_t> CudnnDescriptor::numerical_notes() const {
  std::vector<cudnnBackendNumericalNote_t> notes(CUDNN_NUMERICAL_NOTE_TYPE_COUNT);
  int64_t count = 0;
  check(cudnnBackendGetAttribute(get(), CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE,
                                 CUDNN_NUMERICAL_NOTE_TYPE_COUNT, &count, notes.data()),
        "cudnnBackendGetAttribute");
  notes.resize(static_cast<size_t>(std::min<int64_t>(count, CUDNN_NUMERICAL_NOTE_TYPE_COUNT)));
  return notes;
}

cudnnDataType_t cudnn_type(DType dtype) {
  switch (dtype) {
    case DType::f64: return CUDNN_DATA_DOUBLE;
    case DType::bf16: return CUDNN_DATA_BFLOAT16;
    case DType::f16: return CUDNN_DATA_HALF;
    default: BONFIRE_CHECK(dtype == DType::f32, "cuDNN does not take {}", name_of(dtype));
  }
  return CUDNN_DATA_FLOAT;
}

CudnnDescriptor cudnn_tensor(int64_t uid, const Shape& shape, const Layout& layout, DType dtype) {
  Shape strides = strides_of(shape, layout);
  CudnnDescriptor tensor(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
  tensor.set(CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, cudnn_type(dtype))
      .set(CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, shape.extents())
      .set(CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, strides.extents())
      .set(CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, uid)
      .set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, kAlignment);
  tensor.finalize();
  return tensor;
}

void CudnnPlan::run(std::span<void* const> tensors, void* workspace, cudaStream_t stream) const {
  std::vector<int64_t> uids;
  for (size_t i = 0; i < tensors.size(); ++i) uids.push_back(static_cast<int64_t>(i) + 1);
  CudnnDescriptor pack(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
  pack.set(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, tensors)
      .set(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, std::span<const int64_t>(uids))
      .set(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, workspace);
  pack.finalize();
  CudnnLock lock;
  check(cudnnSetStream(lock.handle(), stream), "cudnnSetStream");
  check(cudnnBackendExecute(lock.handle(), plan.get(), pack.get()), "cudnnBackendExecute");
}

std::vector<CudnnPlan> cudnn_plans(const CudnnDescriptor& operation, bool exact, size_t most) {
  constexpr int64_t kMostConfigurations = 64;
  CudnnLock lock;
  CudnnDescriptor graph(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
  graph.set(CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, lock.handle())
      .set(CUDNN_ATTR_OPERATIONGRAPH_OPS, operation);
  std::vector<CudnnPlan> plans;
  size_t kept = 0;  // plans that keep zeros
  if (!graph.try_finalize()) return plans;
  for (cudnnBackendHeurMode_t mode : {CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_FALLBACK}) {
    CudnnDescriptor heuristics(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
    heuristics.set(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph)
        .set(CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, mode);
    if (!heuristics.try_finalize()) continue;
    for (CudnnDescriptor& configuration : heuristics.get_descriptors(
             CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, kMostConfigurations)) {
      auto engines = configuration.get_descriptors(CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_BACKEND_ENGINE_DESCRIPTOR, 1);
      auto notes = engines.at(0).numerical_notes();
      auto noted = [&](cudnnBackendNumericalNote_t note) {
        return std::find(notes.begin(), notes.end(), note) != notes.end();
      };
      const bool transforms = noted(CUDNN_NUMERICAL_NOTE_FFT) || noted(CUDNN_NUMERICAL_NOTE_WINOGRAD) ||
                              noted(CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_4x4) ||
                              noted(CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_6x6) ||
                              noted(CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_13x13);
      if (noted(CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC)) continue;
      if (exact && (noted(CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS) || noted(CUDNN_NUMERICAL_NOTE_TENSOR_CORE)))
        continue;
      CudnnDescriptor plan(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
      plan.set(CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, lock.handle())
          .set(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, configuration);
      if (!plan.try_finalize()) continue;
      int64_t workspace = plan.get_integer(CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE);
      if (workspace > kMostWorkspace) continue;
      // The same engine may come with several settings: the place in the list tells them apart.
      int64_t engine = engines[0].get_integer(CUDNN_ATTR_ENGINE_GLOBAL_INDEX);
      plans.push_back({fmt::format("cudnn {} engine {}", plans.size(), engine), engine, std::move(plan),
                       static_cast<size_t>(workspace), !transforms});
      kept += transforms ? 0 : 1;
      if (kept == most) return plans;
    }
  }
  return plans;
}

}  // namespace bonfire::cuda
