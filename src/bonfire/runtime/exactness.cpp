#include "bonfire/runtime/exactness.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "bonfire/base/error.h"
#include "bonfire/kernel/queue.h"
#include "bonfire/tensor/storage.h"

namespace bonfire::runtime {

namespace {

using Bytes = std::vector<std::byte>;
using Numbers = std::vector<double>;

Numbers numbers_of(const Bytes& bytes, DType dtype) {
  Numbers numbers;
  dispatch(dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    std::span<const T> values(reinterpret_cast<const T*>(bytes.data()), bytes.size() / sizeof(T));
    for (const T& value : values) numbers.push_back(static_cast<double>(value));
  });
  return numbers;
}

// Memory of a device for a value that lies so.
class Operand {
 public:
  Operand(const TensorSpec& spec, const Layout& layout)
      : spec_(spec),
        layout_(layout),
        storage_(spec.device, std::max<size_t>(1, bytes_of(spec.shape, spec.dtype, layout))) {}

  void* data() const { return storage_.data(); }

  void write(const Bytes& row_major) const {
    Bytes lying(storage_.bytes());
    convert_layout(row_major.data(), {}, lying.data(), layout_, spec_.shape, spec_.dtype);
    memory_of(spec_.device).copy_from_host(data(), lying.data(), lying.size());
  }

  Numbers read() const {
    Bytes lying(storage_.bytes()), row_major(spec_.bytes());
    memory_of(spec_.device).copy_to_host(lying.data(), data(), lying.size());
    convert_layout(lying.data(), layout_, row_major.data(), {}, spec_.shape, spec_.dtype);
    return numbers_of(row_major, spec_.dtype);
  }

 private:
  TensorSpec spec_;
  Layout layout_;
  Storage storage_;
};

// All outputs.
std::vector<Numbers> results_of(const GraphNode& node, const Candidate& candidate, std::span<const Bytes> inputs) {
  std::vector<std::unique_ptr<Operand>> operands;
  std::vector<void*> in, out;
  for (size_t i = 0; i < inputs.size(); ++i) {
    operands.push_back(std::make_unique<Operand>(node.inputs[i].spec(), candidate.input_layouts[i]));
    operands.back()->write(inputs[i]);
    in.push_back(operands.back()->data());
  }
  for (size_t i = 0; i < node.outputs.size(); ++i) {
    operands.push_back(std::make_unique<Operand>(node.outputs[i], candidate.output_layouts[i]));
    out.push_back(operands.back()->data());
  }
  Storage workspace(node.device(), std::max<size_t>(1, candidate.workspace_bytes));
  std::unique_ptr<Kernel> kernel = candidate.build();
  queue_of(node.device()).run_now([&](const Run& run) {
    kernel->run({in, out, workspace.data(), run.threads, run.stream});
  });
  std::vector<Numbers> results;
  for (size_t i = 0; i < out.size(); ++i) results.push_back(operands[inputs.size() + i]->read());
  return results;
}

std::vector<Candidate> all_candidates(const GraphNode& node) {
  std::vector<Layout> arriving(node.inputs.size());
  return candidates_for({node, arriving, true});
}

// The same node in f64, on the CPU.
std::vector<Numbers> exact_results(const GraphNode& node, std::span<const Bytes> inputs) {
  Graph wide;
  std::vector<GraphValue> values;
  std::vector<Bytes> widened;
  for (size_t i = 0; i < inputs.size(); ++i) {
    TensorSpec spec = node.inputs[i].spec();
    widened.push_back(inputs[i]);
    if (is_floating(spec.dtype)) {
      const Numbers numbers = numbers_of(inputs[i], spec.dtype);
      const std::span<const std::byte> bytes = std::as_bytes(std::span(numbers));
      widened.back().assign(bytes.begin(), bytes.end());
      spec.dtype = DType::f64;
    }
    spec.device = {};
    values.push_back({wide.add_input(LeafKind::feed, spec), 0});
  }
  const GraphNode* same = wide.add(*node.op, std::move(values), node.attributes);
  return results_of(*same, all_candidates(*same).front(), widened);
}

struct Difference {
  double error, not_zeros;
};

Difference difference(const Numbers& found, const Numbers& exact) {
  double squares = 0, norm = 0, zeros = 0, not_zeros = 0;
  for (size_t i = 0; i < exact.size(); ++i) {
    squares += (found[i] - exact[i]) * (found[i] - exact[i]);
    norm += exact[i] * exact[i];
    zeros += exact[i] == 0 ? 1 : 0;
    not_zeros += exact[i] == 0 && found[i] != 0 ? 1 : 0;
  }
  return {norm == 0 ? 0 : std::sqrt(squares / norm), zeros == 0 ? 0 : not_zeros / zeros};
}

}  // namespace

std::vector<CandidateError> candidate_errors(const GraphNode& node, std::span<const Bytes> inputs) {
  const std::vector<Numbers> exact = exact_results(node, inputs);
  const std::vector<Candidate> candidates = all_candidates(node);
  std::vector<std::vector<Difference>> differences;  // [candidate][output]
  for (const Candidate& candidate : candidates) {
    std::vector<Difference>& of = differences.emplace_back();
    const std::vector<Numbers> found = results_of(node, candidate, inputs);
    for (size_t i = 0; i < exact.size(); ++i) of.push_back(difference(found[i], exact[i]));
  }
  auto is_plain = [](const Candidate& candidate) { return candidate.error == 1; };
  const auto plain = std::find_if(candidates.begin(), candidates.end(), is_plain);
  BONFIRE_CHECK(plain != candidates.end(), "no candidate of {} is the plain one", node.name());
  const std::vector<Difference>& least = differences[static_cast<size_t>(plain - candidates.begin())];
  // Results of a single rounding are some 2^-25 off; sums that happen to be exact are no yardstick.
  constexpr double kOneRounding = 0x1p-25;
  std::vector<CandidateError> errors;
  for (size_t c = 0; c < candidates.size(); ++c) {
    CandidateError worst{candidates[c].name, candidates[c].error, candidates[c].keeps_zeros, 0, 0, 0};
    for (size_t i = 0; i < exact.size(); ++i) {
      const double multiple = differences[c][i].error / std::max(least[i].error, kOneRounding);
      worst.not_zeros = std::max(worst.not_zeros, differences[c][i].not_zeros);
      if (multiple < worst.multiple) continue;
      worst.multiple = multiple;
      worst.error = differences[c][i].error;
    }
    errors.push_back(std::move(worst));
  }
  return errors;
}

}  // namespace bonfire::runtime
