// Optimizer updates and gradient clipping. All tensors are cut into blocks, and threads share out the blocks of all
// tensors: one sweep over memory, however many parameters there are. Norms are summed per block and then in the order
// of the blocks, so they do not depend on the thread count.

#include "bonfire/ops/optimizer_update.h"

#include <algorithm>
#include <iterator>

#include "bonfire/backend/cpu/every_instruction_set.h"
#include "bonfire/backend/cpu/floating.h"

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
  T* new_parameter;
  Acc *new_state0 = nullptr, *new_state1 = nullptr;
};

template <class T, OptimizerRule rule, bool nesterov>
class Update {
 public:
  using Acc = Compute<T>;
  static constexpr int kStates = state_count(rule);

  explicit Update(const GraphNode& node)
      : count_(static_cast<size_t>(node.attributes.integer("parameters"))),
        blocks_(cut(std::span(node.inputs).subspan(kNumbers + 1, count_))),
        all_counts_(static_cast<size_t>(node.outputs[0].shape[0])) {
    std::ranges::copy(node.attributes.list("places"), std::back_inserter(places_));
  }

  // Two sums per block and two norms per tensor.
  size_t workspace_bytes() const { return has_trust_ratio(rule) ? (blocks_.size() + count_) * 2 * sizeof(double) : 0; }

  void operator()(const Run& run) const {
    const std::vector<OptimizerStep<Acc>> steps = steps_of(run);
    double* norms = nullptr;
    if constexpr (has_trust_ratio(rule)) {
      double* sums = static_cast<double*>(run.workspace);
      norms = sums + 2 * blocks_.size();
      for_blocks(run, [&](size_t b) {
        const OptimizerStep<Acc> s = steps[blocks_[b].tensor];  // a copy: nothing that is written can be part of it
        measure(s, slices(run, blocks_[b]), blocks_[b].count, sums + 2 * b);
      });
      add_up<double>(blocks_, sums, 2, {norms, count_});
      add_up<double>(blocks_, sums + 1, 2, {norms + count_, count_});
    }
    for_blocks(run, [&](size_t b) {
      const OptimizerStep<Acc> s = steps[blocks_[b].tensor];
      Acc ratio = 1;
      if constexpr (has_trust_ratio(rule)) {
        Acc own = static_cast<Acc>(std::sqrt(norms[blocks_[b].tensor]));
        Acc other = static_cast<Acc>(std::sqrt(norms[count_ + blocks_[b].tensor]));
        ratio = rule == OptimizerRule::lars ? lars_ratio(s, own, other) : lamb_ratio(own, other);
      }
      sweep(s, ratio, slices(run, blocks_[b]), blocks_[b].count);
    });
    count(run);
  }

 private:
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
    Slices<T> s{.parameter = run.input<T>(input) + block.begin,
                .gradient = run.input<T>(input + count_) + block.begin,
                .new_parameter = run.output<T>(output) + block.begin};
    if constexpr (kStates > 0) {
      s.state0 = run.input<Acc>(input + 2 * count_) + block.begin;
      s.new_state0 = run.output<Acc>(output + count_) + block.begin;
    }
    if constexpr (kStates > 1) {
      s.state1 = run.input<Acc>(input + 3 * count_) + block.begin;
      s.new_state1 = run.output<Acc>(output + 2 * count_) + block.begin;
    }
    return s;
  }

  // The squares of a block for the trust ratio; LAMB's moments are updated on the way.
  static void measure(const OptimizerStep<Acc>& s, const Slices<T>& x, int64_t count, double* sums) {
    if constexpr (rule == OptimizerRule::lamb) {
#pragma GCC ivdep
      for (int64_t i = 0; i < count; ++i) {
        Acc mean = x.state0[i], square = x.state1[i];
        update_moments(s, static_cast<Acc>(x.gradient[i]), mean, square);
        x.new_state0[i] = mean;
        x.new_state1[i] = square;
      }
    }
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
Candidate candidate_for(const KernelRequest& request) {
  Candidate candidate = row_major_candidate(request, "sweep");
  const auto n = static_cast<size_t>(request.node.attributes.integer("parameters"));
  candidate.in_place.emplace_back(0, static_cast<int>(kNumbers));
  for (size_t i = 0; i < request.node.inputs.size() - kNumbers - 1; ++i) {
    const Layout& layout = request.arriving[kNumbers + 1 + i % n];
    const size_t input = kNumbers + 1 + i;
    if (layout.block == 0) candidate.input_layouts[input] = layout;
    if (i >= n && i < 2 * n) continue;  // gradients stay
    const size_t output = 1 + (i < n ? i : i - n);
    candidate.output_layouts[output] = candidate.input_layouts[input];
    candidate.in_place.emplace_back(static_cast<int>(output), static_cast<int>(input));
  }
  return candidate;
}

template <class T, OptimizerRule rule, bool nesterov = false>
std::vector<Candidate> update_candidates(const KernelRequest& request) {
  Candidate candidate = candidate_for(request);
  Update<T, rule, nesterov> update(request.node);
  candidate.workspace_bytes = update.workspace_bytes();
  candidate.build = [update = std::move(update)] {
    return std::make_unique<FunctionKernel<Update<T, rule, nesterov>>>(update);
  };
  std::vector<Candidate> list;
  list.push_back(std::move(candidate));
  return list;
}

std::vector<Candidate> optimizer_update_candidates(const KernelRequest& request) {
  using Rule = OptimizerRule;
  const Attributes& attributes = request.node.attributes;
  return for_floating(request.node.inputs[kNumbers + 1].spec().dtype, [&](auto tag) -> std::vector<Candidate> {
    using T = typename decltype(tag)::type;
    switch (static_cast<Rule>(attributes.integer("rule"))) {
      case Rule::sgd: return update_candidates<T, Rule::sgd>(request);
      case Rule::momentum:
        return attributes.flag("nesterov") ? update_candidates<T, Rule::momentum, true>(request)
                                           : update_candidates<T, Rule::momentum>(request);
      case Rule::adagrad: return update_candidates<T, Rule::adagrad>(request);
      case Rule::adam: return update_candidates<T, Rule::adam>(request);
      case Rule::adamw: return update_candidates<T, Rule::adamw>(request);
      case Rule::lars: return update_candidates<T, Rule::lars>(request);
      case Rule::lamb: return update_candidates<T, Rule::lamb>(request);
    }
    return {};
  });
}

// ---- clip_gradients ----

class Clip {
 public:
  explicit Clip(const GraphNode& node) : blocks_(cut(std::span(node.inputs).subspan(1))) {
    for (const GraphValue& input : node.inputs) types_.push_back(input.spec().dtype);
    wide_ = node.outputs[0].dtype == DType::f64;
  }

  size_t workspace_bytes() const { return blocks_.size() * sizeof(double); }

  void operator()(const Run& run) const {
    double* sums = static_cast<double*>(run.workspace);
    for_blocks(run, [&](size_t b, const auto* from, auto*) {
      using Acc = Compute<std::remove_const_t<std::remove_reference_t<decltype(*from)>>>;
      sums[b] = static_cast<double>(row_sum<Acc>(blocks_[b].count, [&](int64_t i) {
        Acc value = static_cast<Acc>(from[i]);
        return value * value;
      }));
    });
    double total = 0;
    for (size_t b = 0; b < blocks_.size(); ++b) total += sums[b];
    const double norm = std::sqrt(total), wanted = *run.input<double>(0) / (norm + 1e-6);
    const double factor = wanted > 1 ? 1 : wanted;  // NaN stays
    for_blocks(run, [&](size_t b, const auto* from, auto* to) {
      if (factor != 1 || from != to) scale(from, factor, to, blocks_[b].count);
    });
    if (wide_)
      *run.output<double>(0) = norm;
    else
      *run.output<float>(0) = static_cast<float>(norm);
  }

 private:
  template <class T>
  static void scale(const T* from, double factor, T* to, int64_t count) {
    const auto f = static_cast<Compute<T>>(factor);
#pragma GCC ivdep
    for (int64_t i = 0; i < count; ++i) to[i] = static_cast<T>(static_cast<Compute<T>>(from[i]) * f);
  }

  // Calls body(block, first element of the gradient, first element of the result).
  template <class Body>
  void for_blocks(const Run& run, const Body& body) const {
    run.threads->parallel_for(static_cast<int64_t>(blocks_.size()), kGrain, [&](int64_t begin, int64_t end) {
      for (auto b = static_cast<size_t>(begin); b < static_cast<size_t>(end); ++b) {
        const Block& block = blocks_[b];
        const size_t at = 1 + block.tensor;
        auto call = [&](auto tag) {
          using T = typename decltype(tag)::type;
          body(b, run.input<T>(at) + block.begin, run.output<T>(at) + block.begin);
        };
        if (types_[at] == DType::f32) call(TypeTag<float>{});
        if (types_[at] == DType::f64) call(TypeTag<double>{});
        if (types_[at] == DType::bf16) call(TypeTag<bfloat16>{});
      }
    });
  }

  std::vector<Block> blocks_;
  std::vector<DType> types_;  // of the inputs
  bool wide_;
};

std::vector<Candidate> clip_gradients_candidates(const KernelRequest& request) {
  for (const GraphValue& input : request.node.inputs)
    if (input.spec().dtype == DType::f16) return {};
  Clip clip(request.node);
  Candidate candidate = row_major_candidate(request, "sweep");
  candidate.workspace_bytes = clip.workspace_bytes();
  for (size_t i = 1; i < request.node.inputs.size(); ++i) {
    if (request.arriving[i].block == 0) candidate.input_layouts[i] = candidate.output_layouts[i] = request.arriving[i];
    candidate.in_place.emplace_back(static_cast<int>(i), static_cast<int>(i));
  }
  candidate.build = [clip = std::move(clip)] { return std::make_unique<FunctionKernel<Clip>>(clip); };
  std::vector<Candidate> list;
  list.push_back(std::move(candidate));
  return list;
}

}  // namespace

BONFIRE_CPU_KERNELS(optimizer_update, {"optimizer_update", optimizer_update_candidates},
                    {"clip_gradients", clip_gradients_candidates})

}  // namespace bonfire::cpu
