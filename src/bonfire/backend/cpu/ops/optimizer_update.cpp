// Optimizer updates and gradient clipping. All tensors are cut into blocks, and threads share out the blocks of all
// tensors: one sweep over memory, however many parameters there are. Norms are summed per block and then in the order
// of the blocks, so they do not depend on the thread count. What has norms is three ops: one for the squares, one that
// applies them, and one for both; their loops are the same, so two give the bits of one.

#include "bonfire/ops/optimizer_update.h"

#include <algorithm>
#include <iterator>

#include "bonfire/backend/cpu/simd/every_instruction_set.h"
#include "bonfire/backend/cpu/simd/floating.h"

namespace bonfire::cpu {

namespace {

constexpr int64_t kBlock = 4096;  // elements
constexpr int64_t kGrain = 4;     // blocks that a thread must have to be worth waking
constexpr size_t kNumbers = 5;    // inputs before the counts

struct Block {
  size_t tensor;
  int64_t begin, count;  // elements
};

std::vector<Block> cut(std::span<const GraphValue> tensors) {
  std::vector<Block> blocks;
  for (size_t i = 0; i < tensors.size(); ++i) {
    int64_t total = tensors[i].spec().shape.count();
    for (int64_t begin = 0; begin < total; begin += kBlock)
      blocks.push_back({i, begin, std::min(kBlock, total - begin)});
  }
  return blocks;
}

// Which of the three ops: the sums of squares, what is done with them, or both.
enum class Work { squares, by_squares, both };

// Σ over the tensor's blocks of sums[block * stride], for each of `tensors`.
template <class Result>
void add_up(const std::vector<Block>& blocks, const double* sums, size_t stride, std::span<Result> totals) {
  std::fill(totals.begin(), totals.end(), Result(0));
  for (size_t b = 0; b < blocks.size(); ++b) totals[blocks[b].tensor] += sums[b * stride];
}

// ---- optimizer_update ----

// The tensors of a node that block b is part of, from its first element on.
template <class T>
struct Slices {
  using Acc = Compute<T>;
  const T *parameter, *gradient;
  const Acc *state0 = nullptr, *state1 = nullptr;
  T* new_parameter = nullptr;  // of update_squares none
  Acc *new_state0 = nullptr, *new_state1 = nullptr;
};

template <class T, OptimizerRule rule, bool nesterov, Work work>
class Update {
 public:
  using Acc = Compute<T>;
  static constexpr int kStates = state_count(rule);
  static constexpr bool kMeasures = has_trust_ratio(rule) && work != Work::by_squares;

  explicit Update(const GraphNode& node)
      : count_(static_cast<size_t>(node.attributes.integer("parameters"))),
        blocks_(cut(std::span(node.inputs).subspan(kNumbers + 1, count_))),
        all_counts_(static_cast<size_t>(node.inputs[kNumbers].spec().shape[0])) {
    std::ranges::copy(node.attributes.list("places"), std::back_inserter(places_));
  }

  // Two sums per block; two per tensor where they are not the result.
  size_t workspace_bytes() const {
    return kMeasures ? (blocks_.size() + (work == Work::both ? count_ : 0)) * 2 * sizeof(double) : 0;
  }

  void operator()(const Run& run) const {
    const std::vector<OptimizerStep<Acc>> steps = steps_of(run);
    if constexpr (work == Work::squares) {
      measure(run, steps, run.output<double>(0));
    } else {
      const double* squares = nullptr;  // [2, count_]
      if constexpr (kMeasures) {
        double* own = static_cast<double*>(run.workspace) + 2 * blocks_.size();
        measure(run, steps, own);
        squares = own;
      } else if constexpr (has_trust_ratio(rule)) {
        squares = run.input<double>(kNumbers + 1 + (2 + size_t{kStates}) * count_);
      }
      apply(run, steps, squares);
      count(run);
    }
  }

 private:
  void measure(const Run& run, const std::vector<OptimizerStep<Acc>>& steps, double* squares) const {
    double* sums = static_cast<double*>(run.workspace);
    for_blocks(run, [&](size_t b) {
      const OptimizerStep<Acc> s = steps[blocks_[b].tensor];  // a copy: nothing that is written can be part of it
      Slices<T> x = slices(run, blocks_[b]);
      if constexpr (work == Work::squares && rule == OptimizerRule::lamb) {  // the moved moments are not kept
        Acc moments[2][kBlock];
        x.new_state0 = moments[0];
        x.new_state1 = moments[1];
        measure(s, x, blocks_[b].count, sums + 2 * b);
      } else {
        measure(s, x, blocks_[b].count, sums + 2 * b);
      }
    });
    add_up<double>(blocks_, sums, 2, {squares, count_});
    add_up<double>(blocks_, sums + 1, 2, {squares + count_, count_});
  }

  void apply(const Run& run, const std::vector<OptimizerStep<Acc>>& steps, const double* squares) const {
    for_blocks(run, [&](size_t b) {
      const OptimizerStep<Acc> s = steps[blocks_[b].tensor];
      const Slices<T> x = slices(run, blocks_[b]);
      Acc ratio = 1;
      if constexpr (has_trust_ratio(rule)) {
        Acc own = static_cast<Acc>(std::sqrt(squares[blocks_[b].tensor]));
        Acc other = static_cast<Acc>(std::sqrt(squares[count_ + blocks_[b].tensor]));
        ratio = rule == OptimizerRule::lars ? lars_ratio(s, own, other) : lamb_ratio(own, other);
      }
      if constexpr (rule == OptimizerRule::lamb && !kMeasures) move_moments(s, x, blocks_[b].count);
      sweep(s, ratio, x, blocks_[b].count);
    });
  }

  // Of each parameter. Mostly all have the same count, and powers take longer than a small sweep.
  std::vector<OptimizerStep<Acc>> steps_of(const Run& run) const {
    auto number = [&](size_t i) { return *run.input<double>(i); };
    const int64_t* counts = run.input<int64_t>(kNumbers);
    std::vector<OptimizerStep<Acc>> steps;
    steps.reserve(count_);
    for (size_t i = 0; i < count_; ++i) {
      const int64_t before = counts[places_[i]];
      if (i > 0 && before == counts[places_[i - 1]])
        steps.push_back(steps.back());
      else
        steps.push_back(OptimizerStep<Acc>::from({number(0), number(1), number(2), number(3), number(4), before + 1}));
    }
    return steps;
  }

  void count(const Run& run) const {
    const int64_t* counts = run.input<int64_t>(kNumbers);
    int64_t* new_counts = run.output<int64_t>(0);
    if (new_counts != counts) std::copy_n(counts, all_counts_, new_counts);
    for (int64_t place : places_) ++new_counts[place];
  }

  template <class Body>
  void for_blocks(const Run& run, const Body& body) const {
    run.threads->parallel_for(static_cast<int64_t>(blocks_.size()), kGrain, [&](int64_t begin, int64_t end) {
      for (int64_t b = begin; b < end; ++b) body(static_cast<size_t>(b));
    });
  }

  Slices<T> slices(const Run& run, const Block& block) const {
    const size_t input = kNumbers + 1 + block.tensor, output = 1 + block.tensor;
    Slices<T> s{.parameter = run.input<T>(input) + block.begin, .gradient = run.input<T>(input + count_) + block.begin};
    if constexpr (kStates > 0) s.state0 = run.input<Acc>(input + 2 * count_) + block.begin;
    if constexpr (kStates > 1) s.state1 = run.input<Acc>(input + 3 * count_) + block.begin;
    if constexpr (work != Work::squares) {
      s.new_parameter = run.output<T>(output) + block.begin;
      if constexpr (kStates > 0) s.new_state0 = run.output<Acc>(output + count_) + block.begin;
      if constexpr (kStates > 1) s.new_state1 = run.output<Acc>(output + 2 * count_) + block.begin;
    }
    return s;
  }

  static void move_moments(const OptimizerStep<Acc>& s, const Slices<T>& x, int64_t count) {
#pragma GCC ivdep
    for (int64_t i = 0; i < count; ++i) {
      Acc mean = x.state0[i], square = x.state1[i];
      update_moments(s, static_cast<Acc>(x.gradient[i]), mean, square);
      x.new_state0[i] = mean;
      x.new_state1[i] = square;
    }
  }

  // The squares of a block for the trust ratio; LAMB's moments are updated on the way.
  static void measure(const OptimizerStep<Acc>& s, const Slices<T>& x, int64_t count, double* sums) {
    if constexpr (rule == OptimizerRule::lamb) move_moments(s, x, count);
    auto direction = [&](int64_t i) {
      if constexpr (rule == OptimizerRule::lamb)
        return lamb_direction(s, static_cast<Acc>(x.parameter[i]), x.new_state0[i], x.new_state1[i]);
      return static_cast<Acc>(x.gradient[i]);
    };
    sums[0] = static_cast<double>(row_sum<Acc>(count, [&](int64_t i) {
      Acc value = static_cast<Acc>(x.parameter[i]);
      return value * value;
    }));
    sums[1] = static_cast<double>(row_sum<Acc>(count, [&](int64_t i) {
      Acc value = direction(i);
      return value * value;
    }));
  }

  // Outputs are mostly the inputs' own memory: every element is read before it is written.
  static void sweep(const OptimizerStep<Acc>& s, Acc ratio, const Slices<T>& x, int64_t count) {
    const Acc* state0 = rule == OptimizerRule::lamb ? x.new_state0 : x.state0;
    const Acc* state1 = rule == OptimizerRule::lamb ? x.new_state1 : x.state1;
#pragma GCC ivdep
    for (int64_t i = 0; i < count; ++i) {
      Acc parameter = static_cast<Acc>(x.parameter[i]), first = 0, second = 0;
      if constexpr (kStates > 0) first = state0[i];
      if constexpr (kStates > 1) second = state1[i];
      update_element<rule, nesterov>(s, static_cast<Acc>(x.gradient[i]), ratio, parameter, first, second);
      x.new_parameter[i] = static_cast<T>(parameter);
      if constexpr (kStates > 0) x.new_state0[i] = first;
      if constexpr (kStates > 1) x.new_state1[i] = second;
    }
  }

  size_t count_;
  std::vector<Block> blocks_;
  std::vector<int64_t> places_;  // [count_]
  size_t all_counts_;
};

// A parameter, its gradient and its states are taken as the parameter lies: the order of elements does not matter.
Candidate candidate_for(const KernelRequest& request, Work work, size_t states) {
  Candidate candidate = row_major_candidate(request, "sweep");
  const auto n = static_cast<size_t>(request.node.attributes.integer("parameters"));
  if (work != Work::squares) candidate.in_place.emplace_back(0, static_cast<int>(kNumbers));
  for (size_t i = 0; i < (2 + states) * n; ++i) {
    const Layout& layout = request.arriving[kNumbers + 1 + i % n];
    const size_t input = kNumbers + 1 + i;
    if (layout.block == 0) candidate.input_layouts[input] = layout;
    if (work == Work::squares || (i >= n && i < 2 * n)) continue;  // gradients stay
    const size_t output = 1 + (i < n ? i : i - n);
    candidate.output_layouts[output] = candidate.input_layouts[input];
    candidate.in_place.emplace_back(static_cast<int>(output), static_cast<int>(input));
  }
  return candidate;
}

template <class T, Work work, OptimizerRule rule, bool nesterov = false>
std::vector<Candidate> update_candidates(const KernelRequest& request) {
  Candidate candidate = candidate_for(request, work, size_t{state_count(rule)});
  Update<T, rule, nesterov, work> update(request.node);
  candidate.workspace_bytes = update.workspace_bytes();
  candidate.build = [update = std::move(update)] {
    return std::make_unique<FunctionKernel<Update<T, rule, nesterov, work>>>(update);
  };
  std::vector<Candidate> list;
  list.push_back(std::move(candidate));
  return list;
}

using Rule = OptimizerRule;
Rule rule_of(const KernelRequest& request) { return static_cast<Rule>(request.node.attributes.integer("rule")); }
DType type_of(const KernelRequest& request) { return request.node.inputs[kNumbers + 1].spec().dtype; }

std::vector<Candidate> optimizer_update_candidates(const KernelRequest& request) {
  return for_floating(type_of(request), [&](auto tag) -> std::vector<Candidate> {
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
  return for_floating(type_of(request), [&](auto tag) -> std::vector<Candidate> {
    using T = typename decltype(tag)::type;
    return rule_of(request) == Rule::lars ? update_candidates<T, work, Rule::lars>(request)
                                          : update_candidates<T, work, Rule::lamb>(request);
  });
}

// ---- clip_gradients ----

template <Work work>
class Clip {
 public:
  // Of the inputs; max_norm is input 0, and the squares, where they are given, input 1.
  static constexpr size_t kFirst = work == Work::squares ? 0 : work == Work::both ? 1 : 2;

  explicit Clip(const GraphNode& node) : blocks_(cut(std::span(node.inputs).subspan(kFirst))) {
    for (const GraphValue& gradient : std::span(node.inputs).subspan(kFirst)) types_.push_back(gradient.spec().dtype);
    wide_ = node.outputs[0].dtype == DType::f64;
  }

  size_t workspace_bytes() const { return work == Work::by_squares ? 0 : blocks_.size() * sizeof(double); }

  void operator()(const Run& run) const {
    if constexpr (work == Work::squares)
      *run.output<double>(0) = measure(run);
    else
      clip(run, work == Work::both ? measure(run) : *run.input<double>(1));
  }

 private:
  double measure(const Run& run) const {
    double* sums = static_cast<double*>(run.workspace);
    for_blocks(run, [&]<class T>(size_t b, TypeTag<T>) {
      const T* from = run.input<T>(kFirst + blocks_[b].tensor) + blocks_[b].begin;
      sums[b] = static_cast<double>(row_sum<Compute<T>>(blocks_[b].count, [&](int64_t i) {
        auto value = static_cast<Compute<T>>(from[i]);
        return value * value;
      }));
    });
    double total = 0;
    for (size_t b = 0; b < blocks_.size(); ++b) total += sums[b];
    return total;
  }

  void clip(const Run& run, double squares) const {
    const double norm = std::sqrt(squares), wanted = *run.input<double>(0) / (norm + 1e-6);
    const double factor = wanted > 1 ? 1 : wanted;  // NaN stays
    for_blocks(run, [&]<class T>(size_t b, TypeTag<T>) {
      const T* from = run.input<T>(kFirst + blocks_[b].tensor) + blocks_[b].begin;
      T* to = run.output<T>(1 + blocks_[b].tensor) + blocks_[b].begin;
      if (factor != 1 || from != to) scale(from, factor, to, blocks_[b].count);
    });
    if (wide_)
      *run.output<double>(0) = norm;
    else
      *run.output<float>(0) = static_cast<float>(norm);
  }

  template <class T>
  static void scale(const T* from, double factor, T* to, int64_t count) {
    const auto f = static_cast<Compute<T>>(factor);
#pragma GCC ivdep
    for (int64_t i = 0; i < count; ++i) to[i] = static_cast<T>(static_cast<Compute<T>>(from[i]) * f);
  }

  // Calls body(block, the tag of its gradient's type).
  template <class Body>
  void for_blocks(const Run& run, const Body& body) const {
    run.threads->parallel_for(static_cast<int64_t>(blocks_.size()), kGrain, [&](int64_t begin, int64_t end) {
      for (auto b = static_cast<size_t>(begin); b < static_cast<size_t>(end); ++b) {
        const DType type = types_[blocks_[b].tensor];
        if (type == DType::f32) body(b, TypeTag<float>{});
        if (type == DType::f64) body(b, TypeTag<double>{});
        if (type == DType::bf16) body(b, TypeTag<bfloat16>{});
      }
    });
  }

  std::vector<Block> blocks_;
  std::vector<DType> types_;  // of the gradients
  bool wide_;
};

template <Work work>
std::vector<Candidate> clip_candidates(const KernelRequest& request) {
  for (const GraphValue& input : request.node.inputs)
    if (input.spec().dtype == DType::f16) return {};
  Clip<work> clip(request.node);
  Candidate candidate = row_major_candidate(request, "sweep");
  candidate.workspace_bytes = clip.workspace_bytes();
  for (size_t i = Clip<work>::kFirst; i < request.node.inputs.size(); ++i) {
    if (request.arriving[i].block == 0) candidate.input_layouts[i] = request.arriving[i];
    if (work == Work::squares) continue;
    const size_t output = 1 + i - Clip<work>::kFirst;
    candidate.output_layouts[output] = candidate.input_layouts[i];
    candidate.in_place.emplace_back(static_cast<int>(output), static_cast<int>(i));
  }
  candidate.build = [clip = std::move(clip)] { return std::make_unique<FunctionKernel<Clip<work>>>(clip); };
  std::vector<Candidate> list;
  list.push_back(std::move(candidate));
  return list;
}

}  // namespace

BONFIRE_CPU_KERNELS(optimizer_update, {"optimizer_update", optimizer_update_candidates},
                    {"update_squares", trust_ratio_candidates<Work::squares>},
                    {"optimizer_update_by_squares", trust_ratio_candidates<Work::by_squares>},
                    {"clip_gradients", clip_candidates<Work::both>},
                    {"gradient_squares", clip_candidates<Work::squares>},
                    {"clip_gradients_by_squares", clip_candidates<Work::by_squares>})

}  // namespace bonfire::cpu
