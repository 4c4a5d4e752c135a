// A linear layer and the cross-entropy of its result, forward and backward, without holding all logits at once. Where
// they are kept, a block of rows at a time: the block's logits are made by one product, turned into their gradient
// where they stand, and used by two more products. Nothing is computed twice, and memory holds only one block of
// logits.

#include "bonfire/backend/cpu/linear_cross_entropy.h"

#include <algorithm>
#include <cmath>

#include "bonfire/backend/cpu/every_instruction_set.h"
#include "bonfire/backend/cpu/gemm.h"
#include "bonfire/backend/cpu/linear_cross_entropy_twice.h"
#include "bonfire/backend/cpu/simd.h"
#include "bonfire/backend/cpu/threads.h"
#include "bonfire/base/vector_math.h"

namespace bonfire::cpu {

namespace {

// Bytes of a block's logits: large blocks read the weight less often.
constexpr int64_t kBlockBytes = int64_t{64} << 20;
constexpr int64_t kFewestRows = 64;
constexpr int64_t kWholeRows = 256;  // products are cut at multiples of this

template <class T>
class LogitsKept {
 public:
  using Acc = Compute<T>;

  explicit LogitsKept(const LinearLoss<T>& loss)
      : loss_(loss), rows_(loss.rows), depth_(loss.depth), classes_(loss.classes) {
    stride_ = static_cast<int64_t>(aligned_bytes(classes_ * int64_t{sizeof(Acc)}) / sizeof(Acc));
    const int64_t row_bytes = std::max<int64_t>(1, stride_ * int64_t{sizeof(Acc)});
    block_ = std::max(kFewestRows, kBlockBytes / row_bytes);
    if (block_ > kWholeRows) block_ -= block_ % kWholeRows;
    block_ = std::min(rows_, block_);
    for (int64_t rows : {block_, block_ > 0 ? rows_ % block_ : 0})
      for (const Gemm& g : {logits_of(rows), dx_of(rows), dweight_of(rows, false)})
        if (rows > 0) gemm_bytes_ = std::max(gemm_bytes_, gemm_workspace(g, cpu_threads()));
  }

  // logits [block, V], losses [N], then what products need.
  size_t workspace_bytes() const { return logits_bytes() + losses_bytes() + gemm_bytes_; }

  void operator()(const Run& run) const {
    auto* memory = static_cast<std::byte*>(run.workspace);
    auto* logits = reinterpret_cast<Acc*>(memory);
    auto* losses = reinterpret_cast<Acc*>(memory + logits_bytes());
    std::span<std::byte> space(memory + logits_bytes() + losses_bytes(), gemm_bytes_);
    const T *x = run.input<T>(0), *weight = run.input<T>(1);
    const int64_t* target = loss_.target(run);
    const int64_t count = loss_.count_targets(run);
    const Acc given = loss_.given(run, count);
    if (rows_ == 0) std::fill_n(run.output<Acc>(2), classes_ * depth_, Acc(0));
    if (loss_.has_bias) std::fill_n(run.output<Acc>(3), classes_, Acc(0));
    for (int64_t first = 0; first < rows_; first += block_) {
      const int64_t rows = std::min(block_, rows_ - first);
      gemm(logits_of(rows), x + first * depth_, weight, loss_.bias(run), logits, space, *run.threads);
      run.threads->parallel_for(rows, std::max<int64_t>(1, 8192 / std::max<int64_t>(1, classes_)),
                                [&](int64_t begin, int64_t end) {
                                  for (int64_t r = begin; r < end; ++r)
                                    losses[first + r] = differentiate(logits + r * stride_, target[first + r], given);
                                });
      const T* gradient = reinterpret_cast<const T*>(logits);
      if (loss_.has_bias) add_columns(gradient, rows, run.output<Acc>(3), *run.threads);
      gemm(dx_of(rows), gradient, weight, nullptr, run.output<T>(1) + first * depth_, space, *run.threads);
      gemm(dweight_of(rows, first > 0), gradient, x + first * depth_, nullptr, run.output<Acc>(2), space, *run.threads);
    }
    loss_.finish(run, losses, count);
  }

 private:
  size_t logits_bytes() const { return static_cast<size_t>(block_ * stride_) * sizeof(Acc); }
  size_t losses_bytes() const { return aligned_bytes(rows_ * static_cast<int64_t>(sizeof(Acc))); }

  // The gradient of a row lies at the head of its logits' memory; so its rows are this many of its elements apart.
  int64_t gradient_stride() const {
    constexpr int64_t kAccBytes = sizeof(Acc), kBytes = sizeof(T);
    return stride_ * (kAccBytes / kBytes);
  }

  Gemm logits_of(int64_t rows) const {
    return {.m = rows,
            .n = classes_,
            .k = depth_,
            .input = dtype_of<T>(),
            .output = dtype_of<Acc>(),
            .transpose_b = true,
            .lda = depth_,
            .ldb = depth_,
            .ldc = stride_,
            .bias = loss_.has_bias ? BiasAlong::columns : BiasAlong::none,
            .bias_type = loss_.bias_type};
  }
  Gemm dx_of(int64_t rows) const {
    return {.m = rows,
            .n = depth_,
            .k = classes_,
            .input = dtype_of<T>(),
            .output = dtype_of<T>(),
            .lda = gradient_stride(),
            .ldb = depth_,
            .ldc = depth_};
  }
  Gemm dweight_of(int64_t rows, bool add) const {
    return {.m = classes_,
            .n = depth_,
            .k = rows,
            .input = dtype_of<T>(),
            .output = dtype_of<Acc>(),
            .transpose_a = true,
            .lda = gradient_stride(),
            .ldb = depth_,
            .ldc = depth_,
            .accumulate = add};
  }

  // Turns a row of logits into given (softmax − (1 − s) onehot − s / V) and returns its loss.
  Acc differentiate(Acc* row, int64_t target, Acc given) const {
    T* gradient = reinterpret_cast<T*>(row);
    if (target == loss_.ignore_index) {
      std::fill_n(gradient, classes_, T(0));
      return 0;
    }
    const Acc largest = row_max<Acc>(classes_, [&](int64_t i) { return row[i]; });
    // Differences to the largest come first: they are exact where the loss is small.
    Acc expected = (1 - loss_.smoothing) * (row[target] - largest);
    if (loss_.smoothing != 0)
      expected += loss_.smoothing / static_cast<Acc>(classes_) *
                  row_sum<Acc>(classes_, [&](int64_t i) { return row[i] - largest; });
    const Acc sum = row_sum<Acc>(classes_, [&](int64_t i) { return row[i] = base::exponential(row[i] - largest); });
    const Acc factor = given / sum, spread = given * loss_.smoothing / static_cast<Acc>(classes_);
    const Acc at_target = row[target] * factor - spread - given * (1 - loss_.smoothing);
#pragma GCC ivdep  // an element is read before its place is written
    for (int64_t i = 0; i < classes_; ++i) gradient[i] = static_cast<T>(row[i] * factor - spread);
    gradient[target] = static_cast<T>(at_target);
    return std::log(sum) - expected;
  }

  void add_columns(const T* gradient, int64_t rows, Acc* sums, ThreadPool& threads) const {
    threads.parallel_for(classes_, 2048, [&](int64_t begin, int64_t end) {
      for (int64_t r = 0; r < rows; ++r) {
        const T* row = gradient + r * gradient_stride();
#pragma GCC ivdep
        for (int64_t i = begin; i < end; ++i) sums[i] += static_cast<Acc>(row[i]);
      }
    });
  }

  LinearLoss<T> loss_;
  int64_t rows_, depth_, classes_;  // N, K, V
  int64_t stride_;                  // between rows of logits: each begins a cache line
  int64_t block_ = 0;               // rows
  size_t gemm_bytes_ = 0;
};

template <class Way>
void offer(const KernelRequest& request, const char* name, const Way& way, std::vector<Candidate>& list) {
  Candidate candidate = make_candidate(request, name, way);
  candidate.workspace_bytes = way.workspace_bytes();
  list.push_back(std::move(candidate));
}

std::vector<Candidate> candidates(const KernelRequest& request) {
  return for_floating(request.node.inputs[0].spec().dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const LinearLoss<T> loss(request.node);
    std::vector<Candidate> list;
    if (instruction_set() == InstructionSet::amx) offer(request, "logits_twice", LogitsTwice<T>(loss), list);
    offer(request, "logits_kept", LogitsKept<T>(loss), list);
    if (instruction_set() != InstructionSet::amx) offer(request, "logits_twice", LogitsTwice<T>(loss), list);
    return list;
  });
}

}  // namespace

BONFIRE_CPU_KERNELS(linear_cross_entropy, {"linear_cross_entropy", candidates})

}  // namespace bonfire::cpu
