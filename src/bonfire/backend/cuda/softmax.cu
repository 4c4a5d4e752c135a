// Softmax, its logarithm, and cross-entropy: x [outer, classes, inner], one row of classes for each (outer, inner). A
// warp takes a row; in rows that lie apart (inner > 1) neighbouring threads take neighbouring rows.
#include "bonfire/backend/cuda/candidate.h"
#include "bonfire/backend/cuda/channels.cuh"
#include "bonfire/backend/cuda/counters.h"

namespace bonfire::cuda {

namespace {

constexpr int kThreads = 256;

struct Rows {
  int64_t outer, classes, inner;

  __host__ __device__ int64_t count() const { return outer * inner; }
};

// The threads that share a row: a warp, or one thread.
struct RowThreads {
  int64_t row;
  int first, step;
};

__device__ inline RowThreads row_threads(const Rows& rows) {
  int64_t thread = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (rows.inner > 1) return {thread, 0, 1};
  return {thread / 32, static_cast<int>(thread % 32), 32};
}

template <class C>
__device__ inline C sum_row(C value, int step) {
  if (step == 32)
    for (int distance = 16; distance > 0; distance /= 2) value += __shfl_xor_sync(0xffffffffU, value, distance);
  return value;
}
template <class C>
__device__ inline C max_row(C value, int step) {
  if (step == 32) {
    for (int distance = 16; distance > 0; distance /= 2) {
      C other = __shfl_xor_sync(0xffffffffU, value, distance);
      value = other > value ? other : value;
    }
  }
  return value;
}

template <class T>
struct RowView {
  const T* data;
  int64_t stride;

  __device__ Compute<T> operator[](int64_t i) const { return load(data[i * stride]); }
};

__device__ inline int64_t row_offset(const Rows& rows, int64_t row) {
  return row / rows.inner * rows.classes * rows.inner + row % rows.inner;
}

template <class C>
struct LogSum {
  C largest, sum;  // log Σ exp = largest + log(sum)
};

template <class T>
__device__ inline LogSum<Compute<T>> log_sum(const RowView<T>& x, const Rows& rows, const RowThreads& own) {
  using C = Compute<T>;
  C largest = -INFINITY;
  for (int64_t i = own.first; i < rows.classes; i += own.step) largest = x[i] > largest ? x[i] : largest;
  largest = max_row(largest, own.step);
  C sum = 0;
  for (int64_t i = own.first; i < rows.classes; i += own.step) sum += static_cast<C>(::exp(x[i] - largest));
  return {largest, sum_row(sum, own.step)};
}

template <class T, bool kLog>
__global__ void __launch_bounds__(kThreads) softmax(Rows rows, const T* x, T* y) {
  using C = Compute<T>;
  RowThreads own = row_threads(rows);
  if (own.row >= rows.count()) return;
  int64_t offset = row_offset(rows, own.row);
  RowView<T> view{x + offset, rows.inner};
  LogSum<C> total = log_sum(view, rows, own);
  C log_total = static_cast<C>(::log(total.sum));
  for (int64_t i = own.first; i < rows.classes; i += own.step) {
    C shifted = view[i] - total.largest;
    y[offset + i * rows.inner] = store<T>(kLog ? shifted - log_total : static_cast<C>(::exp(shifted)) / total.sum);
  }
}

template <class T, bool kLog>
__global__ void __launch_bounds__(kThreads) softmax_gradient(Rows rows, const T* dy, const T* y, T* dx) {
  using C = Compute<T>;
  RowThreads own = row_threads(rows);
  if (own.row >= rows.count()) return;
  int64_t offset = row_offset(rows, own.row);
  RowView<T> gradient{dy + offset, rows.inner}, result{y + offset, rows.inner};
  C sum = 0;
  for (int64_t i = own.first; i < rows.classes; i += own.step) sum += kLog ? gradient[i] : gradient[i] * result[i];
  sum = sum_row(sum, own.step);
  for (int64_t i = own.first; i < rows.classes; i += own.step) {
    C value = kLog ? gradient[i] - static_cast<C>(::exp(result[i])) * sum : result[i] * (gradient[i] - sum);
    dx[offset + i * rows.inner] = store<T>(value);
  }
}

enum class Reduction : int { none, mean, sum };  // as in ops/loss.h

template <class T>
struct CrossEntropy {
  using C = Compute<T>;
  Rows rows;
  const T* logits;
  const int64_t* target;  // [rows]
  C smoothing;
  int64_t ignored;
  Reduction reduction;
};

// The loss of each row (to `losses`), log Σ exp, and by the last block the sum over the rows.
template <class T>
__global__ void __launch_bounds__(kThreads) cross_entropy(CrossEntropy<T> p, Compute<T>* losses, T* loss,
                                                          Compute<T>* log_sums, int64_t* count, unsigned* counter) {
  using C = Compute<T>;
  RowThreads own = row_threads(p.rows);
  if (own.row < p.rows.count()) {
    int64_t label = p.target[own.row];
    RowView<T> x{p.logits + row_offset(p.rows, own.row), p.rows.inner};
    LogSum<C> total = log_sum(x, p.rows, own);
    C log_total = total.largest + static_cast<C>(::log(total.sum));
    C mean_logit = 0;
    if (p.smoothing != C(0)) {
      for (int64_t i = own.first; i < p.rows.classes; i += own.step) mean_logit += x[i];
      mean_logit = sum_row(mean_logit, own.step) / static_cast<C>(p.rows.classes);
    }
    if (own.first == 0) {
      bool valid = label >= 0 && label < p.rows.classes;
      C hit = valid ? x[label] : C(NAN);  // a label outside the classes shows in the loss
      C value = log_total - (C(1) - p.smoothing) * hit - p.smoothing * mean_logit;
      losses[own.row] = label == p.ignored ? C(0) : value;
      log_sums[own.row] = log_total;
      if (p.reduction == Reduction::none) loss[own.row] = store<T>(losses[own.row]);
    }
  }
  if (!is_last_block(counter, gridDim.x)) return;
  __shared__ C shared[kThreads];
  __shared__ int64_t counts[kThreads];
  C sum = 0;
  int64_t counted = 0;
  for (int64_t row = threadIdx.x; row < p.rows.count(); row += kThreads) {
    sum += __ldcg(losses + row);
    counted += p.target[row] != p.ignored;
  }
  shared[threadIdx.x] = sum;
  counts[threadIdx.x] = counted;
  for (int half = kThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) {
      shared[threadIdx.x] += shared[threadIdx.x + half];
      counts[threadIdx.x] += counts[threadIdx.x + half];
    }
  }
  if (threadIdx.x != 0) return;
  *count = counts[0];
  if (p.reduction == Reduction::mean) *loss = store<T>(shared[0] / static_cast<C>(counts[0]));
  if (p.reduction == Reduction::sum) *loss = store<T>(shared[0]);
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    cross_entropy_gradient(CrossEntropy<T> p, const T* dloss, const Compute<T>* log_sums, const int64_t* count, T* dx) {
  using C = Compute<T>;
  int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= p.rows.count() * p.rows.classes) return;
  int64_t inner = i % p.rows.inner, c = i / p.rows.inner % p.rows.classes;
  int64_t row = i / p.rows.inner / p.rows.classes * p.rows.inner + inner, label = p.target[row];
  C scale = load(dloss[p.reduction == Reduction::none ? row : 0]);
  if (p.reduction == Reduction::mean) scale = scale / static_cast<C>(*count);
  C value = static_cast<C>(::exp(load(p.logits[i]) - log_sums[row])) - p.smoothing / static_cast<C>(p.rows.classes);
  if (c == label) value -= C(1) - p.smoothing;
  dx[i] = label == p.ignored ? store<T>(C(0)) : store<T>(scale * value);
}

// --- hosts ---------------------------------------------------------------------------------------------------------

Rows rows_of(const Shape& shape, int axis) {
  Rows rows{1, shape[axis], 1};
  for (int i = 0; i < shape.rank(); ++i) {
    if (i < axis) rows.outer *= shape[i];
    if (i > axis) rows.inner *= shape[i];
  }
  return rows;
}

unsigned blocks_of(const Rows& rows) { return blocks_for(rows.inner > 1 ? rows.count() : rows.count() * 32, kThreads); }

template <bool kLog>
std::vector<Candidate> forward(const KernelRequest& request) {
  const TensorSpec& x = request.node.inputs[0].spec();
  if (!has_kernels(x.dtype)) return {};
  Rows rows = rows_of(x.shape, static_cast<int>(request.node.attributes.integer("axis")));
  std::vector<Candidate> list = one_candidate(request, [=, dtype = x.dtype](const Run& run) {
    if (rows.count() * rows.classes == 0) return;
    dispatch_floating(dtype, [&](auto tag) {
      using T = typename decltype(tag)::type;
      softmax<T, kLog><<<blocks_of(rows), kThreads, 0, stream_of(run)>>>(rows, run.input<T>(0), run.output<T>(0));
    });
    check(cudaGetLastError(), "softmax");
  });
  list[0].in_place = {{0, 0}};
  return list;
}

template <bool kLog>
std::vector<Candidate> backward(const KernelRequest& request) {
  const TensorSpec& dy = request.node.inputs[0].spec();
  if (!has_kernels(dy.dtype)) return {};
  Rows rows = rows_of(dy.shape, static_cast<int>(request.node.attributes.integer("axis")));
  std::vector<Candidate> list = one_candidate(request, [=, dtype = dy.dtype](const Run& run) {
    if (rows.count() * rows.classes == 0) return;
    dispatch_floating(dtype, [&](auto tag) {
      using T = typename decltype(tag)::type;
      softmax_gradient<T, kLog>
          <<<blocks_of(rows), kThreads, 0, stream_of(run)>>>(rows, run.input<T>(0), run.input<T>(1), run.output<T>(0));
    });
    check(cudaGetLastError(), "softmax_gradient");
  });
  list[0].in_place = {{0, 0}, {0, 1}};
  return list;
}

struct LossSetup {
  Rows rows;
  DType dtype;
  double smoothing;
  int64_t ignored;
  Reduction reduction;

  template <class T>
  CrossEntropy<T> parameters(const void* logits, const void* target) const {
    return {rows,
            static_cast<const T*>(logits),
            static_cast<const int64_t*>(target),
            static_cast<Compute<T>>(smoothing),
            ignored,
            reduction};
  }
};

LossSetup loss_setup(const GraphNode& node, size_t logits) {
  const TensorSpec& x = node.inputs[logits].spec();
  return {rows_of(x.shape, 1), x.dtype, node.attributes.number("label_smoothing"),
          node.attributes.integer("ignore_index"), static_cast<Reduction>(node.attributes.integer("reduction"))};
}

std::vector<Candidate> loss_forward(const KernelRequest& request) {
  LossSetup setup = loss_setup(request.node, 0);
  if (!has_kernels(setup.dtype)) return {};
  Candidate candidate = row_major_candidate(request, "own");
  int device = request.node.device().index;
  candidate.workspace_bytes = static_cast<size_t>(setup.rows.count() + 1) * sizeof(float);
  build_on_device(candidate, request, [=] {
    auto counter = std::make_shared<Counters>(device, 1);
    auto run = [=](const Run& r) {
      dispatch_floating(setup.dtype, [&](auto tag) {
        using T = typename decltype(tag)::type;
        using C = Compute<T>;
        cross_entropy<T><<<std::max(1U, blocks_of(setup.rows)), kThreads, 0, stream_of(r)>>>(
            setup.parameters<T>(r.inputs[0], r.inputs[1]), static_cast<C*>(r.workspace), r.output<T>(0), r.output<C>(1),
            r.output<int64_t>(2), counter->get());
      });
      check(cudaGetLastError(), "cross_entropy");
    };
    return std::make_unique<FunctionKernel<decltype(run)>>(run);
  });
  return {std::move(candidate)};
}

std::vector<Candidate> loss_backward(const KernelRequest& request) {
  LossSetup setup = loss_setup(request.node, 1);
  if (!has_kernels(setup.dtype)) return {};
  std::vector<Candidate> list = one_candidate(request, [=](const Run& run) {
    int64_t elements = setup.rows.count() * setup.rows.classes;
    if (elements == 0) return;
    dispatch_floating(setup.dtype, [&](auto tag) {
      using T = typename decltype(tag)::type;
      cross_entropy_gradient<T><<<blocks_for(elements, kThreads), kThreads, 0, stream_of(run)>>>(
          setup.parameters<T>(run.inputs[1], run.inputs[2]), run.input<T>(0), run.input<Compute<T>>(3),
          run.input<int64_t>(4), run.output<T>(0));
    });
    check(cudaGetLastError(), "cross_entropy_gradient");
  });
  list[0].in_place = {{0, 1}};
  return list;
}

const bool registered = register_kernel("softmax", DeviceType::cuda, forward<false>) &&
                        register_kernel("log_softmax", DeviceType::cuda, forward<true>) &&
                        register_kernel("softmax_gradient", DeviceType::cuda, backward<false>) &&
                        register_kernel("log_softmax_gradient", DeviceType::cuda, backward<true>) &&
                        register_kernel("cross_entropy", DeviceType::cuda, loss_forward) &&
                        register_kernel("cross_entropy_gradient", DeviceType::cuda, loss_backward);

}  // namespace

}  // namespace bonfire::cuda
