// Optimizer updates: one sweep over all tensors of a node. Squares are summed per block, then in the order of the
// blocks. What has norms is three ops: one for the squares, one that applies them, and one for both.
#include <algorithm>
#include <vector>

#include "bonfire/backend/cuda/candidate.h"
#include "bonfire/backend/cuda/counters.h"
#include "bonfire/backend/cuda/numbers.cuh"
#include "bonfire/backend/cuda/sum_block.cuh"
#include "bonfire/backend/cuda/tensor_pieces.cuh"
#include "bonfire/ops/optimizer_functions.h"

namespace bonfire::cuda {

namespace {

constexpr int kThreads = 256;
constexpr int kTensors = kTensorsOfAKernel;
constexpr size_t kNumbers = 5;  // inputs before the counts: lr, weight_decay, first, second, eps
constexpr int kMostStates = 2;

// Which of the three ops: the sums of squares, what is done with them, or both.
enum class Work { squares, by_squares, both };

struct Cut : TensorPieces {
  int place[kTensors];  // in the counts of updates; of optimizer_update
};

template <class T>
struct Tensors {
  using Acc = Compute<T>;
  const T *parameter[kTensors], *gradient[kTensors];
  const Acc* state[kMostStates][kTensors];
  T* new_parameter[kTensors];
  Acc* new_state[kMostStates][kTensors];
};

struct Numbers {
  const double* number[kNumbers];
  const int64_t* updates;  // counts of all parameters
  int64_t* new_updates;
  unsigned* counter;  // of blocks that are done
};

template <class Acc, OptimizerRule rule>
__device__ inline OptimizerStep<Acc> shared_step(const Numbers& numbers, int place) {
  __shared__ OptimizerStep<Acc> step;
  if (threadIdx.x == 0) {
    const double* const* n = numbers.number;
    if constexpr (state_count(rule) < 2) {  // no corrections: their powers take longer than a small sweep
      step = {};
      step.lr = static_cast<Acc>(*n[0]);
      step.weight_decay = static_cast<Acc>(*n[1]);
      step.first = static_cast<Acc>(*n[2]);
      step.second = static_cast<Acc>(*n[3]);
      step.eps = static_cast<Acc>(*n[4]);
    } else {
      step = OptimizerStep<Acc>::from({*n[0], *n[1], *n[2], *n[3], *n[4], numbers.updates[place] + 1});
    }
  }
  __syncthreads();
  return step;
}

// The squares for the trust ratio of each block; LAMB's moments are updated on the way, and kept where they are wanted.
template <class T, OptimizerRule rule, Work work>
__global__ void __launch_bounds__(kThreads)
    measure(const __grid_constant__ Cut cut, const __grid_constant__ Tensors<T> t, Numbers numbers, double* sums) {
  using Acc = Compute<T>;
  TensorPieces::Piece piece = cut.piece(static_cast<int>(blockIdx.x));
  int i = piece.tensor;
  OptimizerStep<Acc> s = shared_step<Acc, rule>(numbers, cut.place[i]);
  double own = 0, other = 0;
  for (int64_t e = piece.begin + threadIdx.x; e < piece.end; e += kThreads) {
    Acc parameter = load(t.parameter[i][e]), direction = load(t.gradient[i][e]);
    if constexpr (rule == OptimizerRule::lamb) {
      Acc mean = t.state[0][i][e], square = t.state[1][i][e];
      update_moments(s, direction, mean, square);
      if constexpr (work == Work::both) {
        t.new_state[0][i][e] = mean;
        t.new_state[1][i][e] = square;
      }
      direction = lamb_direction(s, parameter, mean, square);
    }
    own += static_cast<double>(parameter) * static_cast<double>(parameter);
    other += static_cast<double>(direction) * static_cast<double>(direction);
  }
  own = sum_block<kThreads>(own);
  other = sum_block<kThreads>(other);
  if (threadIdx.x != 0) return;
  sums[2 * blockIdx.x] = own;
  sums[2 * blockIdx.x + 1] = other;
}

// The squares [2, row] of tensors side by side, from the first of a part on.
template <class Number>
struct Squares {
  Number* first = nullptr;
  int64_t row = 0;
  __device__ Number& operator()(int which, int tensor) const { return first[which * row + tensor]; }
};

// Σ over the tensor's blocks.
__global__ void __launch_bounds__(kThreads)
    add_up(const __grid_constant__ Cut cut, const double* sums, Squares<double> squares) {
  int tensor = static_cast<int>(blockIdx.x);
  for (int which = 0; which < 2; ++which) {
    double sum = 0;
    for (int b = cut.first_block[tensor] + static_cast<int>(threadIdx.x); b < cut.first_block[tensor + 1];
         b += kThreads)
      sum += sums[2 * b + which];
    sum = sum_block<kThreads>(sum);
    if (threadIdx.x == 0) squares(which, tensor) = sum;
  }
}

template <class T, OptimizerRule rule, bool nesterov, Work work>
__global__ void __launch_bounds__(kThreads) sweep(const __grid_constant__ Cut cut, const __grid_constant__ Tensors<T> t,
                                                  Numbers numbers, Squares<const double> squares) {
  using Acc = Compute<T>;
  constexpr int kStates = state_count(rule), kWidth = 4;
  TensorPieces::Piece piece = cut.piece(static_cast<int>(blockIdx.x));
  int i = piece.tensor;
  OptimizerStep<Acc> s = shared_step<Acc, rule>(numbers, cut.place[i]);
  Acc ratio = 1;
  if constexpr (has_trust_ratio(rule)) {
    Acc own = static_cast<Acc>(::sqrt(squares(0, i))), other = static_cast<Acc>(::sqrt(squares(1, i)));
    ratio = rule == OptimizerRule::lars ? lars_ratio(s, own, other) : lamb_ratio(own, other);
  }
  constexpr bool kIsLamb = rule == OptimizerRule::lamb;
  constexpr bool kMoved = kIsLamb && work == Work::both;  // states are updated already
  const Acc* state0 = kStates > 0 ? (kMoved ? t.new_state[0][i] : t.state[0][i]) : nullptr;
  const Acc* state1 = kStates > 1 ? (kMoved ? t.new_state[1][i] : t.state[1][i]) : nullptr;
  // Outputs are mostly the inputs' own memory: a thread reads its elements before it writes them.
  for (int64_t e = piece.begin + static_cast<int64_t>(threadIdx.x) * kWidth; e < piece.end; e += kThreads * kWidth) {
    int n = piece.end - e < kWidth ? static_cast<int>(piece.end - e) : kWidth;
    Pack<T, kWidth> parameter, gradient;
    Pack<Acc, kWidth> first{}, second{};
    if (n == kWidth) {
      parameter = load_pack<kWidth>(t.parameter[i] + e);
      gradient = load_pack<kWidth>(t.gradient[i] + e);
      if constexpr (kStates > 0) first = load_pack<kWidth>(state0 + e);
      if constexpr (kStates > 1) second = load_pack<kWidth>(state1 + e);
    } else {
      for (int k = 0; k < n; ++k) {
        parameter.item[k] = t.parameter[i][e + k];
        gradient.item[k] = t.gradient[i][e + k];
        if constexpr (kStates > 0) first.item[k] = state0[e + k];
        if constexpr (kStates > 1) second.item[k] = state1[e + k];
      }
    }
#pragma unroll
    for (int k = 0; k < kWidth; ++k) {
      if (k >= n) break;
      Acc value = load(parameter.item[k]);
      if constexpr (kIsLamb && !kMoved) update_moments(s, load(gradient.item[k]), first.item[k], second.item[k]);
      update_element<rule, nesterov>(s, load(gradient.item[k]), ratio, value, first.item[k], second.item[k]);
      parameter.item[k] = store<T>(value);
    }
    if (n == kWidth) {
      store_pack(t.new_parameter[i] + e, parameter);
      if constexpr (kStates > 0) store_pack(t.new_state[0][i] + e, first);
      if constexpr (kStates > 1) store_pack(t.new_state[1][i] + e, second);
    } else {
      for (int k = 0; k < n; ++k) {
        t.new_parameter[i][e + k] = parameter.item[k];
        if constexpr (kStates > 0) t.new_state[0][i][e + k] = first.item[k];
        if constexpr (kStates > 1) t.new_state[1][i][e + k] = second.item[k];
      }
    }
  }
  // Counts are mostly updated in their own memory too: not before every block has read them.
  __shared__ bool last;
  if (threadIdx.x == 0) last = atomicAdd(numbers.counter, 1) == gridDim.x - 1;
  __syncthreads();
  if (!last) return;
  if (threadIdx.x == 0) *numbers.counter = 0;
  for (int tensor = static_cast<int>(threadIdx.x); tensor < cut.tensors; tensor += kThreads)
    numbers.new_updates[cut.place[tensor]] = numbers.updates[cut.place[tensor]] + 1;
}

// --- hosts ---------------------------------------------------------------------------------------------------------

using Part = TensorPart<Cut>;

std::vector<int64_t> counts_of(std::span<const GraphValue> values) {
  std::vector<int64_t> counts;
  for (const GraphValue& value : values) counts.push_back(value.spec().shape.count());
  return counts;
}

template <class T, OptimizerRule rule, bool nesterov, Work work>
class Update {
 public:
  using Acc = Compute<T>;
  static constexpr int kStates = state_count(rule);
  static constexpr bool kMeasures = has_trust_ratio(rule) && work != Work::by_squares;

  explicit Update(const GraphNode& node)
      : count_(static_cast<size_t>(node.attributes.integer("parameters"))),
        parts_(parts_of<Cut>(counts_of(std::span(node.inputs).subspan(kNumbers + 1, count_)))),
        count_bytes_(node.inputs[kNumbers].spec().bytes()) {
    std::span<const int64_t> places = node.attributes.list("places");
    for (Part& part : parts_)
      for (int i = 0; i < part.cut.tensors; ++i)
        part.cut.place[i] = static_cast<int>(places[part.first + static_cast<size_t>(i)]);
  }

  // Two sums per block of the largest part; two per tensor where they are not the result.
  size_t workspace_bytes() const {
    if (!kMeasures) return 0;
    return 2 * (most_blocks() + (work == Work::both ? count_ : 0)) * sizeof(double);
  }

  void operator()(const Run& run, unsigned* counter) const {
    Numbers numbers{};
    numbers.counter = counter;
    for (size_t i = 0; i < kNumbers; ++i) numbers.number[i] = run.input<double>(i);
    numbers.updates = run.input<int64_t>(kNumbers);
    if constexpr (work != Work::squares) {
      numbers.new_updates = run.output<int64_t>(0);
      if (numbers.updates != numbers.new_updates)  // those of parameters that are not updated now stay
        check(cudaMemcpyAsync(numbers.new_updates, numbers.updates, count_bytes_, cudaMemcpyDeviceToDevice,
                              stream_of(run)),
              "cudaMemcpyAsync");
    }
    for (const Part& part : parts_) update(part, numbers, run);
    check(cudaGetLastError(), "optimizer_update");
  }

 private:
  size_t most_blocks() const {
    size_t most = 0;
    for (const Part& part : parts_) most = std::max(most, static_cast<size_t>(part.cut.blocks));
    return most;
  }

  Tensors<T> tensors(const Part& part, const Run& run) const {
    Tensors<T> t{};
    for (int i = 0; i < part.cut.tensors; ++i) {
      size_t tensor = part.first + static_cast<size_t>(i), input = kNumbers + 1 + tensor, output = 1 + tensor;
      t.parameter[i] = run.input<T>(input);
      t.gradient[i] = run.input<T>(input + count_);
      for (int s = 0; s < kStates; ++s) t.state[s][i] = run.input<Acc>(input + (2 + static_cast<size_t>(s)) * count_);
      if constexpr (work != Work::squares) {
        t.new_parameter[i] = run.output<T>(output);
        for (int s = 0; s < kStates; ++s)
          t.new_state[s][i] = run.output<Acc>(output + (1 + static_cast<size_t>(s)) * count_);
      }
    }
    return t;
  }

  void update(const Part& part, const Numbers& numbers, const Run& run) const {
    if (part.cut.tensors == 0) return;
    const Tensors<T> t = tensors(part, run);
    const auto row = static_cast<int64_t>(count_);
    auto blocks = static_cast<unsigned>(part.cut.blocks);
    Squares<const double> given{nullptr, row};
    if constexpr (kMeasures) {
      double* sums = static_cast<double*>(run.workspace);
      double* squares = work == Work::both ? sums + 2 * most_blocks() : run.output<double>(0);
      Squares<double> own{squares + part.first, row};
      if (blocks > 0) measure<T, rule, work><<<blocks, kThreads, 0, stream_of(run)>>>(part.cut, t, numbers, sums);
      add_up<<<static_cast<unsigned>(part.cut.tensors), kThreads, 0, stream_of(run)>>>(part.cut, sums, own);
      given.first = own.first;
    } else if constexpr (has_trust_ratio(rule)) {
      given.first = run.input<double>(kNumbers + 1 + (2 + size_t{kStates}) * count_) + part.first;
    }
    if constexpr (work != Work::squares)
      if (blocks > 0)
        sweep<T, rule, nesterov, work><<<blocks, kThreads, 0, stream_of(run)>>>(part.cut, t, numbers, given);
  }

  size_t count_;
  std::vector<Part> parts_;
  size_t count_bytes_;  // of all counts
};

// A parameter, its gradient and its states are taken as the parameter lies: the order of elements does not matter.
Candidate candidate_for(const KernelRequest& request, Work work, size_t states) {
  Candidate candidate = row_major_candidate(request, "sweep");
  auto n = static_cast<size_t>(request.node.attributes.integer("parameters"));
  if (work != Work::squares) candidate.in_place.emplace_back(0, static_cast<int>(kNumbers));
  for (size_t i = 0; i < (2 + states) * n; ++i) {
    const Layout& layout = request.arriving[kNumbers + 1 + i % n];
    size_t input = kNumbers + 1 + i;
    if (layout.block == 0) candidate.input_layouts[input] = layout;
    if (work == Work::squares || (i >= n && i < 2 * n)) continue;  // gradients stay
    size_t output = 1 + (i < n ? i : i - n);
    candidate.output_layouts[output] = candidate.input_layouts[input];
    candidate.in_place.emplace_back(static_cast<int>(output), static_cast<int>(input));
  }
  return candidate;
}

template <class T, Work work, OptimizerRule rule, bool nesterov = false>
std::vector<Candidate> update_candidates(const KernelRequest& request) {
  Candidate candidate = candidate_for(request, work, size_t{state_count(rule)});
  auto update = std::make_shared<Update<T, rule, nesterov, work>>(request.node);
  candidate.workspace_bytes = update->workspace_bytes();
  build_on_device(candidate, request, [update, device = request.node.device().index] {
    auto counter = std::make_shared<Counters>(device, 1);
    auto run = [update, counter](const Run& r) { (*update)(r, counter->get()); };
    return std::make_unique<FunctionKernel<decltype(run)>>(run);
  });
  return {std::move(candidate)};
}

using Rule = OptimizerRule;
Rule rule_of(const KernelRequest& request) { return static_cast<Rule>(request.node.attributes.integer("rule")); }
DType type_of(const KernelRequest& request) { return request.node.inputs[kNumbers + 1].spec().dtype; }

std::vector<Candidate> candidates(const KernelRequest& request) {
  if (!has_kernels(type_of(request))) return {};
  return dispatch_floating(type_of(request), [&](auto tag) -> std::vector<Candidate> {
    using T = typename decltype(tag)::type;
    constexpr Work kBoth = Work::both;
    switch (rule_of(request)) {
      case Rule::sgd: return update_candidates<T, kBoth, Rule::sgd>(request);
      case Rule::momentum:
        return request.node.attributes.flag("nesterov") ? update_candidates<T, kBoth, Rule::momentum, true>(request)
                                                        : update_candidates<T, kBoth, Rule::momentum>(request);
      case Rule::adagrad: return update_candidates<T, kBoth, Rule::adagrad>(request);
      case Rule::adam: return update_candidates<T, kBoth, Rule::adam>(request);
      case Rule::adamw: return update_candidates<T, kBoth, Rule::adamw>(request);
      case Rule::lars: return update_candidates<T, kBoth, Rule::lars>(request);
      case Rule::lamb: return update_candidates<T, kBoth, Rule::lamb>(request);
    }
    return {};
  });
}

// Of update_squares and optimizer_update_by_squares, which only rules with a trust ratio have.
template <Work work>
std::vector<Candidate> trust_ratio_candidates(const KernelRequest& request) {
  if (!has_kernels(type_of(request))) return {};
  return dispatch_floating(type_of(request), [&](auto tag) -> std::vector<Candidate> {
    using T = typename decltype(tag)::type;
    return rule_of(request) == Rule::lars ? update_candidates<T, work, Rule::lars>(request)
                                          : update_candidates<T, work, Rule::lamb>(request);
  });
}

const bool registered =
    register_kernel("optimizer_update", DeviceType::cuda, candidates) &&
    register_kernel("update_squares", DeviceType::cuda, trust_ratio_candidates<Work::squares>) &&
    register_kernel("optimizer_update_by_squares", DeviceType::cuda, trust_ratio_candidates<Work::by_squares>);

}  // namespace

}  // namespace bonfire::cuda
