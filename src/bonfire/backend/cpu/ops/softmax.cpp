#include "bonfire/backend/cpu/ops/softmax_columns.h"
#include "bonfire/backend/cpu/simd/every_instruction_set.h"

namespace bonfire::cpu {

namespace {

// What the two functions do differently.
struct Softmax {
  template <class Acc>
  static Acc prepare(Acc sum) {
    return Acc(1) / sum;
  }
  template <class Acc>
  static Acc value(Acc shifted, Acc prepared) {
    return quick_exponential(shifted) * prepared;
  }
  template <class Acc>
  static Acc term(Acc dy, Acc y) {
    return dy * y;
  }
  template <class Acc>
  static Acc gradient(Acc dy, Acc y, Acc total) {
    return y * (dy - total);
  }
};

struct LogSoftmax {
  template <class Acc>
  static Acc prepare(Acc sum) {
    return std::log(sum);
  }
  template <class Acc>
  static Acc value(Acc shifted, Acc prepared) {
    return shifted - prepared;
  }
  template <class Acc>
  static Acc term(Acc dy, Acc) {
    return dy;
  }
  template <class Acc>
  static Acc gradient(Acc dy, Acc y, Acc total) {
    return dy - quick_exponential(y) * total;
  }
};

template <class Function, class T>
void forward(const SoftmaxShape& shape, const T* __restrict x, T* __restrict y, ThreadPool& threads) {
  using Acc = Compute<T>;
  shape.for_each_block(threads, [&](int64_t first, int64_t, int64_t columns) {
    Acc largest[kColumns], prepared[kColumns];
    softmax_statistics(x + first, shape.length, shape.inner, columns, largest, prepared);
    for (int64_t j = 0; j < columns; ++j) prepared[j] = Function::prepare(prepared[j]);
    auto write = [&](int64_t at, int64_t j) {
      y[at] = static_cast<T>(Function::value(static_cast<Acc>(x[at]) - largest[j], prepared[j]));
    };
    if (shape.inner == 1) {
      for (int64_t i = 0; i < shape.length; ++i) write(first + i, 0);
    } else {
      for (int64_t i = 0; i < shape.length; ++i)
        for (int64_t j = 0; j < columns; ++j) write(first + i * shape.inner + j, j);
    }
  });
}

template <class Function, class T>
void backward(const SoftmaxShape& shape, const T* __restrict dy, const T* __restrict y, T* __restrict dx,
              ThreadPool& threads) {
  using Acc = Compute<T>;
  shape.for_each_block(threads, [&](int64_t first, int64_t, int64_t columns) {
    Acc total[kColumns] = {};
    auto term = [&](int64_t at) { return Function::term(static_cast<Acc>(dy[at]), static_cast<Acc>(y[at])); };
    auto write = [&](int64_t at, int64_t j) {
      dx[at] = static_cast<T>(Function::gradient(static_cast<Acc>(dy[at]), static_cast<Acc>(y[at]), total[j]));
    };
    if (shape.inner == 1) {
      total[0] = row_sum<Acc>(shape.length, [&](int64_t i) { return term(first + i); });
      for (int64_t i = 0; i < shape.length; ++i) write(first + i, 0);
    } else {
      for (int64_t i = 0; i < shape.length; ++i)
        for (int64_t j = 0; j < columns; ++j) total[j] += term(first + i * shape.inner + j);
      for (int64_t i = 0; i < shape.length; ++i)
        for (int64_t j = 0; j < columns; ++j) write(first + i * shape.inner + j, j);
    }
  });
}

SoftmaxShape shape_of(const GraphNode& node) {
  return {node.outputs[0].shape, static_cast<int>(node.attributes.integer("axis"))};
}

template <class Function>
std::vector<Candidate> forward_candidates(const KernelRequest& request) {
  return for_floating(request.node.outputs[0].dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    return one_candidate(request, [shape = shape_of(request.node)](const Run& run) {
      forward<Function>(shape, run.input<T>(0), run.output<T>(), *run.threads);
    });
  });
}

template <class Function>
std::vector<Candidate> backward_candidates(const KernelRequest& request) {
  return for_floating(request.node.outputs[0].dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    return one_candidate(request, [shape = shape_of(request.node)](const Run& run) {
      backward<Function>(shape, run.input<T>(0), run.input<T>(1), run.output<T>(), *run.threads);
    });
  });
}

}  // namespace

BONFIRE_CPU_KERNELS(softmax, {"softmax", forward_candidates<Softmax>}, {"log_softmax", forward_candidates<LogSoftmax>},
                    {"softmax_gradient", backward_candidates<Softmax>},
                    {"log_softmax_gradient", backward_candidates<LogSoftmax>})

}  // namespace bonfire::cpu
