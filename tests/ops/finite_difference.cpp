#include "tests/ops/finite_difference.h"

#include <algorithm>
#include <cmath>

#include "bonfire/autodiff/backward.h"
#include "bonfire/base/random.h"
#include "bonfire/ops/creation.h"
#include "bonfire/ops/elementwise.h"
#include "bonfire/ops/reduce.h"

namespace bonfire::op_test {

namespace {

constexpr uint64_t kSeed = 7;
constexpr int kDirections = 8;

double random_number(uint64_t stream, uint64_t index) { return 2.0 * uniform_at(kSeed, stream, index) - 1.0; }

Tensor random_like(const Tensor& x, uint64_t stream) {
  std::vector<double> numbers(static_cast<size_t>(x.shape().count()));
  for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = random_number(stream, i);
  return Tensor::from<double>(numbers, x.shape(), x.device()).to(x.dtype());
}

// The number whose gradient is checked; undefined when nothing floats.
Tensor weighted_sum(const std::vector<Tensor>& outputs) {
  Tensor total;
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (!outputs[i].defined() || !is_floating(outputs[i].dtype())) continue;
    Tensor part = sum(outputs[i] * random_like(outputs[i], 100 + i));
    total = total.defined() ? total + part : part;
  }
  return total;
}

std::vector<bool> chosen_inputs(const std::vector<Tensor>& inputs, const DifferenceOptions& options) {
  if (!options.differentiable.empty()) return options.differentiable;
  std::vector<bool> chosen;
  chosen.reserve(inputs.size());
  for (const Tensor& input : inputs) chosen.push_back(is_floating(input.dtype()));
  return chosen;
}

// Fresh leaves with the same elements: what a test did with its own tensors plays no part.
std::vector<Tensor> fresh(const std::vector<Tensor>& inputs, const std::vector<bool>& chosen) {
  std::vector<Tensor> leaves;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!chosen[i]) {
      leaves.push_back(inputs[i]);
      continue;
    }
    leaves.push_back(Tensor::from<double>(inputs[i].to_vector<double>(), inputs[i].shape(), inputs[i].device()));
    leaves.back().set_requires_grad(true);
  }
  return leaves;
}

class Comparison {
 public:
  Comparison(const TensorFunction& function, const std::vector<Tensor>& inputs, const DifferenceOptions& options)
      : function_(function), inputs_(inputs), options_(options) {}

  // Compares <gradient, direction> with the difference of the function along it.
  ::testing::AssertionResult along(size_t input, const std::vector<double>& gradient,
                                   const std::vector<double>& direction, const std::string& what) const {
    double expected = 0;
    for (size_t i = 0; i < gradient.size(); ++i) expected += gradient[i] * direction[i];
    double found =
        (moved(input, direction, options_.step) - moved(input, direction, -options_.step)) / (2 * options_.step);
    double allowed = options_.tolerance * std::max({1.0, std::abs(expected), std::abs(found)});
    if (std::abs(expected - found) <= allowed) return ::testing::AssertionSuccess();
    return ::testing::AssertionFailure() << "input " << input << " " << to_string(inputs_[input].shape()) << " " << what
                                         << ": the gradient is " << expected << ", the difference is " << found;
  }

  ::testing::AssertionResult all(size_t input, const std::vector<double>& gradient) const {
    auto count = gradient.size();
    std::vector<double> direction(count, 0.0);
    bool few = count <= static_cast<size_t>(options_.most_elements);
    size_t singles = few ? count : static_cast<size_t>(options_.most_elements) / 2;
    for (size_t k = 0; k < singles; ++k) {
      size_t i = few ? k : philox(kSeed, input, k).word[0] % count;
      direction[i] = 1;
      if (auto result = along(input, gradient, direction, "element " + std::to_string(i)); !result) return result;
      direction[i] = 0;
    }
    for (int k = 0; !few && k < kDirections; ++k) {
      for (size_t i = 0; i < count; ++i) direction[i] = random_number(1000 + static_cast<uint64_t>(k), i);
      if (auto result = along(input, gradient, direction, "direction " + std::to_string(k)); !result) return result;
    }
    return ::testing::AssertionSuccess();
  }

 private:
  double moved(size_t input, const std::vector<double>& direction, double distance) const {
    std::vector<double> numbers = inputs_[input].to_vector<double>();
    for (size_t i = 0; i < numbers.size(); ++i) numbers[i] += distance * direction[i];
    std::vector<Tensor> changed = inputs_;
    changed[input] = Tensor::from<double>(numbers, inputs_[input].shape(), inputs_[input].device());
    manual_seed(kSeed);
    return weighted_sum(function_(changed)).item<double>();
  }

  const TensorFunction& function_;
  const std::vector<Tensor>& inputs_;
  const DifferenceOptions& options_;
};

}  // namespace

::testing::AssertionResult gradients_are_differences(const TensorFunction& function, const std::vector<Tensor>& inputs,
                                                     const DifferenceOptions& options) {
  std::vector<bool> chosen = chosen_inputs(inputs, options);
  std::vector<Tensor> leaves = fresh(inputs, chosen);
  manual_seed(kSeed);
  Tensor total = weighted_sum(function(leaves));
  if (!total.defined() || !total.requires_grad())
    return ::testing::AssertionFailure() << "no output depends on an input that requires a gradient";
  std::vector<Tensor> gradients = grad(total, leaves);
  std::vector<std::vector<double>> numbers;
  for (size_t i = 0; i < leaves.size(); ++i) {
    if (chosen[i] && gradients[i].defined() && !(gradients[i].spec() == leaves[i].spec()))
      return ::testing::AssertionFailure() << "the gradient of input " << i << " is " << to_string(gradients[i].spec())
                                           << ", the input " << to_string(leaves[i].spec());
    bool some = chosen[i] && gradients[i].defined();
    numbers.push_back(some ? gradients[i].to_vector<double>()
                           : std::vector<double>(static_cast<size_t>(leaves[i].shape().count()), 0.0));
  }
  Comparison comparison(function, inputs, options);
  for (size_t i = 0; i < leaves.size(); ++i) {
    if (!chosen[i]) continue;
    if (auto result = comparison.all(i, numbers[i]); !result) return result;
  }
  return ::testing::AssertionSuccess();
}

::testing::AssertionResult second_gradients_are_differences(const TensorFunction& function,
                                                            const std::vector<Tensor>& inputs,
                                                            const DifferenceOptions& options) {
  std::vector<bool> chosen = chosen_inputs(inputs, options);
  TensorFunction gradients = [&](const std::vector<Tensor>& given) {
    std::vector<Tensor> leaves = given, wanted;
    for (size_t i = 0; i < leaves.size(); ++i) {
      if (!chosen[i]) continue;
      leaves[i].set_requires_grad(true);
      wanted.push_back(leaves[i]);
    }
    return grad(weighted_sum(function(leaves)), wanted, {.cotangent = {}, .retain_graph = true, .create_graph = true});
  };
  return gradients_are_differences(gradients, inputs, options);
}

}  // namespace bonfire::op_test
