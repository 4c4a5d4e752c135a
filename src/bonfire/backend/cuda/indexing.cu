// Ops that pick elements by an index. Sums over an index are made by whoever owns the result, in the order of the
// index, so that they are the same on every run. An index out of range reads as zero and adds nothing: a kernel cannot
// throw.
#include "bonfire/backend/cuda/candidate.h"
#include "bonfire/backend/cuda/numbers.cuh"

namespace bonfire::cuda {

namespace {

constexpr int kThreads = 256;

// data [outer, extent, inner] against an index of `count` rows.
struct Rows {
  int64_t outer, extent, inner, count;
};

template <class T, class Index>
__global__ void __launch_bounds__(kThreads) select_rows(Rows rows, const T* data, const Index* index, T* result) {
  int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= rows.outer * rows.count * rows.inner) return;
  int64_t row = index[i / rows.inner % rows.count], outer = i / rows.inner / rows.count;
  bool inside = row >= 0 && row < rows.extent;
  result[i] = inside ? data[(outer * rows.extent + row) * rows.inner + i % rows.inner] : T{};
}

template <class T, class Index>
__global__ void __launch_bounds__(kThreads)
    sum_rows(Rows rows, int64_t left_out, const T* values, const Index* index, T* result) {
  int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= rows.outer * rows.extent * rows.inner) return;
  int64_t row = i / rows.inner % rows.extent, outer = i / rows.inner / rows.extent;
  float sum = 0;
  if (row != left_out)
    for (int64_t k = 0; k < rows.count; ++k)
      if (index[k] == row) sum += load(values[(outer * rows.count + k) * rows.inner + i % rows.inner]);
  result[i] = store<T>(sum);
}

// gather and scatter_add: an index of the data's rank, no larger than it but along `axis`.
struct Lanes {
  int rank, axis;
  int64_t data[Shape::kMaxRank], index[Shape::kMaxRank];                // extents
  int64_t data_stride[Shape::kMaxRank], index_stride[Shape::kMaxRank];  // row-major
  int64_t count;                                                        // threads
};

template <class T, class Index>
__global__ void __launch_bounds__(kThreads) gather(Lanes lanes, const T* data, const Index* index, T* result) {
  int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= lanes.count) return;
  int64_t at = 0, picked = index[i];
  for (int axis = 0; axis < lanes.rank; ++axis) {
    int64_t coordinate = axis == lanes.axis ? picked : i / lanes.index_stride[axis] % lanes.index[axis];
    at += coordinate * lanes.data_stride[axis];
  }
  result[i] = picked >= 0 && picked < lanes.data[lanes.axis] ? data[at] : T{};
}

template <class T, class Index>
__global__ void __launch_bounds__(kThreads) scatter_add(Lanes lanes, const T* values, const Index* index, T* result) {
  int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= lanes.count) return;
  int64_t first = 0, own = 0;
  bool reached = true;
  for (int axis = 0; axis < lanes.rank; ++axis) {
    int64_t coordinate = i / lanes.data_stride[axis] % lanes.data[axis];
    if (axis == lanes.axis) {
      own = coordinate;
    } else {
      reached = reached && coordinate < lanes.index[axis];
      first += coordinate * lanes.index_stride[axis];
    }
  }
  float sum = 0;
  if (reached) {
    for (int64_t k = 0; k < lanes.index[lanes.axis]; ++k) {
      int64_t from = first + k * lanes.index_stride[lanes.axis];
      if (index[from] == own) sum += load(values[from]);
    }
  }
  result[i] = store<T>(sum);
}

template <class T, class Index>
__global__ void __launch_bounds__(kThreads) one_hot(const Index* ids, int64_t classes, int64_t count, T* result) {
  int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < count) result[i] = static_cast<T>(ids[i / classes] == i % classes ? 1.0F : 0.0F);
}

// --- hosts ---------------------------------------------------------------------------------------------------------

template <class Body>
void dispatch_index(DType dtype, Body&& body) {
  dtype == DType::i32 ? body(TypeTag<int32_t>{}) : body(TypeTag<int64_t>{});
}

// Elements that are only moved.
template <class Body>
void dispatch_bytes(size_t bytes, Body&& body) {
  switch (bytes) {
    case 1: return body(TypeTag<uint8_t>{});
    case 2: return body(TypeTag<uint16_t>{});
    case 4: return body(TypeTag<uint32_t>{});
    default: return body(TypeTag<uint64_t>{});
  }
}

Rows rows_of(const Shape& data, int axis, int64_t count) {
  Rows rows{1, data[axis], 1, count};
  for (int i = 0; i < data.rank(); ++i) {
    if (i < axis) rows.outer *= data[i];
    if (i > axis) rows.inner *= data[i];
  }
  return rows;
}

std::vector<Candidate> selection(const KernelRequest& request, int axis) {
  const TensorSpec &data = request.node.inputs[0].spec(), &index = request.node.inputs[1].spec();
  Rows rows = rows_of(data.shape, axis, index.shape.count());
  return one_candidate(request, [=, bytes = size_of(data.dtype), type = index.dtype](const Run& run) {
    int64_t work = rows.outer * rows.count * rows.inner;
    if (work == 0) return;
    dispatch_bytes(bytes, [&](auto tag) {
      using T = typename decltype(tag)::type;
      dispatch_index(type, [&](auto index_tag) {
        using Index = typename decltype(index_tag)::type;
        select_rows<T, Index><<<blocks_for(work, kThreads), kThreads, 0, stream_of(run)>>>(
            rows, run.input<T>(0), run.input<Index>(1), run.output<T>(0));
      });
    });
    check(cudaGetLastError(), "select_rows");
  });
}

std::vector<Candidate> index_select(const KernelRequest& request) {
  return selection(request, static_cast<int>(request.node.attributes.integer("axis")));
}
std::vector<Candidate> embedding(const KernelRequest& request) { return selection(request, 0); }

std::vector<Candidate> sums(const KernelRequest& request, int axis, int64_t left_out) {
  const TensorSpec& result = request.node.outputs[0];
  if (!has_kernels(result.dtype)) return {};
  Rows rows = rows_of(result.shape, axis, request.node.inputs[1].spec().shape.count());
  return one_candidate(request, [=, type = result.dtype, index = request.node.inputs[1].spec().dtype](const Run& run) {
    int64_t work = rows.outer * rows.extent * rows.inner;
    if (work == 0) return;
    dispatch_floating(type, [&](auto tag) {
      using T = typename decltype(tag)::type;
      dispatch_index(index, [&](auto index_tag) {
        using Index = typename decltype(index_tag)::type;
        sum_rows<T, Index><<<blocks_for(work, kThreads), kThreads, 0, stream_of(run)>>>(
            rows, left_out, run.input<T>(0), run.input<Index>(1), run.output<T>(0));
      });
    });
    check(cudaGetLastError(), "sum_rows");
  });
}

std::vector<Candidate> index_add(const KernelRequest& request) {
  return sums(request, static_cast<int>(request.node.attributes.integer("axis")), -1);
}
std::vector<Candidate> embedding_gradient(const KernelRequest& request) {
  return sums(request, 0, request.node.attributes.integer("padding_index"));
}

Lanes lanes_of(const Shape& data, const Shape& index, int axis, int64_t count) {
  Lanes lanes{};
  lanes.rank = data.rank();
  lanes.axis = axis;
  lanes.count = count;
  Shape data_strides = row_major_strides(data), index_strides = row_major_strides(index);
  for (int i = 0; i < lanes.rank; ++i) {
    lanes.data[i] = data[i];
    lanes.index[i] = index[i];
    lanes.data_stride[i] = data_strides[i];
    lanes.index_stride[i] = index_strides[i];
  }
  return lanes;
}

std::vector<Candidate> gathering(const KernelRequest& request) {
  const TensorSpec &data = request.node.inputs[0].spec(), &index = request.node.inputs[1].spec();
  auto axis = static_cast<int>(request.node.attributes.integer("axis"));
  Lanes lanes = lanes_of(data.shape, index.shape, axis, index.shape.count());
  return one_candidate(request, [=, bytes = size_of(data.dtype), type = index.dtype](const Run& run) {
    if (lanes.count == 0) return;
    dispatch_bytes(bytes, [&](auto tag) {
      using T = typename decltype(tag)::type;
      dispatch_index(type, [&](auto index_tag) {
        using Index = typename decltype(index_tag)::type;
        gather<T, Index><<<blocks_for(lanes.count, kThreads), kThreads, 0, stream_of(run)>>>(
            lanes, run.input<T>(0), run.input<Index>(1), run.output<T>(0));
      });
    });
    check(cudaGetLastError(), "gather");
  });
}

std::vector<Candidate> scattering(const KernelRequest& request) {
  const TensorSpec &index = request.node.inputs[1].spec(), &result = request.node.outputs[0];
  if (!has_kernels(result.dtype)) return {};
  auto axis = static_cast<int>(request.node.attributes.integer("axis"));
  Lanes lanes = lanes_of(result.shape, index.shape, axis, result.shape.count());
  return one_candidate(request, [=, type = result.dtype, index_type = index.dtype](const Run& run) {
    if (lanes.count == 0) return;
    dispatch_floating(type, [&](auto tag) {
      using T = typename decltype(tag)::type;
      dispatch_index(index_type, [&](auto index_tag) {
        using Index = typename decltype(index_tag)::type;
        scatter_add<T, Index><<<blocks_for(lanes.count, kThreads), kThreads, 0, stream_of(run)>>>(
            lanes, run.input<T>(0), run.input<Index>(1), run.output<T>(0));
      });
    });
    check(cudaGetLastError(), "scatter_add");
  });
}

std::vector<Candidate> one_hots(const KernelRequest& request) {
  const TensorSpec& result = request.node.outputs[0];
  if (!has_kernels(result.dtype) && result.dtype != DType::i64) return {};
  int64_t classes = request.node.attributes.integer("classes"), count = result.shape.count();
  return one_candidate(request, [=, type = result.dtype, index = request.node.inputs[0].spec().dtype](const Run& run) {
    if (count == 0) return;
    dispatch_index(index, [&](auto index_tag) {
      using Index = typename decltype(index_tag)::type;
      auto go = [&](auto tag) {
        using T = typename decltype(tag)::type;
        one_hot<T, Index><<<blocks_for(count, kThreads), kThreads, 0, stream_of(run)>>>(run.input<Index>(0), classes,
                                                                                        count, run.output<T>(0));
      };
      type == DType::i64 ? go(TypeTag<int64_t>{}) : dispatch_floating(type, go);
    });
    check(cudaGetLastError(), "one_hot");
  });
}

const bool registered = register_kernel("index_select", DeviceType::cuda, index_select) &&
                        register_kernel("embedding", DeviceType::cuda, embedding) &&
                        register_kernel("index_add", DeviceType::cuda, index_add) &&
                        register_kernel("embedding_gradient", DeviceType::cuda, embedding_gradient) &&
                        register_kernel("gather", DeviceType::cuda, gathering) &&
                        register_kernel("scatter_add", DeviceType::cuda, scattering) &&
                        register_kernel("one_hot", DeviceType::cuda, one_hots);

}  // namespace

}  // namespace bonfire::cuda
