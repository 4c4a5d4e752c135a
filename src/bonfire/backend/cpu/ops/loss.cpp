#include "bonfire/ops/loss.h"

#include "bonfire/backend/cpu/ops/softmax_columns.h"
#include "bonfire/backend/cpu/simd/every_instruction_set.h"
#include "bonfire/base/error.h"

namespace bonfire::cpu {

namespace {

struct CrossEntropy {
  SoftmaxShape shape;
  double label_smoothing;
  int64_t ignore_index;
  Reduction reduction;

  CrossEntropy(const Shape& logits, const Attributes& attributes)
      : shape(logits, 1),
        label_smoothing(attributes.number("label_smoothing")),
        ignore_index(attributes.integer("ignore_index")),
        reduction(static_cast<Reduction>(attributes.integer("reduction"))) {}

  int64_t rows() const { return shape.outer * shape.inner; }

  // How many targets are not ignored. DataError for one that is no class.
  int64_t count_targets(const int64_t* target) const {
    int64_t count = 0;
    for (int64_t row = 0; row < rows(); ++row) {
      if (target[row] == ignore_index) continue;
      if (target[row] < 0 || target[row] >= shape.length)
        throw_error<DataError>(
            "[cross_entropy] target {} of row {} is not a class: expected 0 to {}, or {} to ignore it", target[row],
            row, shape.length - 1, ignore_index);
      ++count;
    }
    return count;
  }

  // Loss and log_sum of the rows of one block: log Σ exp(x) − (1 − s) x[target] − s mean(x).
  template <class T, class Acc>
  void block_losses(const T* x, const int64_t* target, int64_t columns, Acc* loss, Acc* log_sum) const {
    Acc largest[kColumns], sum[kColumns];
    softmax_statistics(x, shape.length, shape.inner, columns, largest, sum);
    const Acc smoothing = static_cast<Acc>(label_smoothing);
    for (int64_t j = 0; j < columns; ++j) {
      Acc log_of_sum = std::log(sum[j]);
      log_sum[j] = largest[j] + log_of_sum;
      loss[j] = 0;
      if (target[j] == ignore_index) continue;
      // Differences to the largest come first: they are exact where the loss is small.
      Acc expected = (1 - smoothing) * (static_cast<Acc>(x[target[j] * shape.inner + j]) - largest[j]);
      if (smoothing != 0) {
        Acc total = row_sum<Acc>(shape.length,
                                 [&](int64_t i) { return static_cast<Acc>(x[i * shape.inner + j]) - largest[j]; });
        expected += smoothing * total / static_cast<Acc>(shape.length);
      }
      loss[j] = log_of_sum - expected;
    }
  }

  // `losses` has room for rows().
  template <class T, class Acc>
  void forward(const T* logits, const int64_t* target, T* loss, Acc* log_sum, int64_t* count, Acc* losses,
               ThreadPool& threads) const {
    *count = count_targets(target);
    shape.for_each_block(threads, [&](int64_t first, int64_t row, int64_t columns) {
      block_losses(logits + first, target + row, columns, losses + row, log_sum + row);
    });
    if (reduction == Reduction::none) {
      for (int64_t row = 0; row < rows(); ++row) loss[row] = static_cast<T>(losses[row]);
      return;
    }
    double total = 0;
    for (int64_t row = 0; row < rows(); ++row) total += static_cast<double>(losses[row]);
    if (reduction == Reduction::mean) total /= static_cast<double>(*count);
    loss[0] = static_cast<T>(static_cast<Acc>(total));
  }

  template <class T, class Acc>
  void backward(const T* dloss, const T* __restrict logits, const int64_t* target, const Acc* log_sum, int64_t count,
                T* __restrict dlogits, ThreadPool& threads) const {
    const Acc smoothing = static_cast<Acc>(label_smoothing);
    const Acc spread = smoothing / static_cast<Acc>(shape.length);
    shape.for_each_block(threads, [&](int64_t first, int64_t row, int64_t columns) {
      Acc scale[kColumns];
      for (int64_t j = 0; j < columns; ++j) {
        Acc given = static_cast<Acc>(dloss[reduction == Reduction::none ? row + j : 0]);
        if (reduction == Reduction::mean) given /= static_cast<Acc>(count);
        scale[j] = target[row + j] == ignore_index ? Acc(0) : given;
      }
      auto write = [&](int64_t at, int64_t j) {
        Acc probability = quick_exponential(static_cast<Acc>(logits[at]) - log_sum[row + j]);
        dlogits[at] = static_cast<T>(scale[j] * (probability - spread));
      };
      if (shape.inner == 1) {
        for (int64_t i = 0; i < shape.length; ++i) write(first + i, 0);
      } else {
        for (int64_t i = 0; i < shape.length; ++i)
          for (int64_t j = 0; j < columns; ++j) write(first + i * shape.inner + j, j);
      }
      for (int64_t j = 0; j < columns; ++j) {
        if (target[row + j] == ignore_index) {
          for (int64_t i = 0; i < shape.length; ++i) dlogits[first + i * shape.inner + j] = T(0);
          continue;
        }
        int64_t at = first + target[row + j] * shape.inner + j;
        Acc probability = quick_exponential(static_cast<Acc>(logits[at]) - log_sum[row + j]);
        dlogits[at] = static_cast<T>(scale[j] * (probability - spread - (1 - smoothing)));
      }
    });
  }
};

std::vector<Candidate> forward_candidates(const KernelRequest& request) {
  const TensorSpec& logits = request.node.inputs[0].spec();
  return for_floating(logits.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    using Acc = Compute<T>;
    CrossEntropy loss(logits.shape, request.node.attributes);
    auto candidates = one_candidate(request, [loss](const Run& run) {
      loss.forward(run.input<T>(0), run.input<int64_t>(1), run.output<T>(0), run.output<Acc>(1), run.output<int64_t>(2),
                   static_cast<Acc*>(run.workspace), *run.threads);
    });
    candidates[0].workspace_bytes = static_cast<size_t>(loss.rows()) * sizeof(Acc);
    return candidates;
  });
}

std::vector<Candidate> backward_candidates(const KernelRequest& request) {
  const TensorSpec& logits = request.node.inputs[1].spec();
  return for_floating(logits.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    using Acc = Compute<T>;
    return one_candidate(request, [loss = CrossEntropy(logits.shape, request.node.attributes)](const Run& run) {
      loss.backward(run.input<T>(0), run.input<T>(1), run.input<int64_t>(2), run.input<Acc>(3), *run.input<int64_t>(4),
                    run.output<T>(), *run.threads);
    });
  });
}

}  // namespace

BONFIRE_CPU_KERNELS(loss, {"cross_entropy", forward_candidates}, {"cross_entropy_gradient", backward_candidates})

}  // namespace bonfire::cpu
