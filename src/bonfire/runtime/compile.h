#pragma once
// compile(step): traces a step function once for each key and afterwards only submits it. The key is everything that
// shapes the trace: the specs of the inputs, gradient flags, train/eval and no_grad modes, whether gradients are
// reduced, the options of passes (mixed precision, say).
//
//   auto step = compile([&](const Tensor& image, const Tensor& label) {
//     Tensor loss = cross_entropy(model(image), label);
//     loss.backward();
//     optimizer.step();
//     optimizer.clear_grad();
//     return loss;
//   });
//   for (auto& [image, label] : batches) step(image, label);
//
// Inside, reading a value is an error; numbers that vary from call to call are passed as Scalar. What else the function
// does on the host (printing, counting) it does only when it is traced, and conditions on host values of its own are
// looked at only then.

#include <functional>
#include <memory>
#include <span>
#include <type_traits>
#include <vector>

#include "bonfire/graph/tensor.h"

namespace bonfire {

class CompiledStep {
 public:
  using Function = std::function<std::vector<Tensor>(std::span<const Tensor>)>;
  explicit CompiledStep(Function function);
  ~CompiledStep();
  CompiledStep(CompiledStep&&) noexcept;
  CompiledStep& operator=(CompiledStep&&) noexcept;

  std::vector<Tensor> run(std::span<const Tensor> inputs);
  int traced() const;  // how often the function has been traced so far
  int kept() const;    // traces that are kept: those of keys that have not come for long are dropped

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// What compile() returns for a function of Tensors that returns a Tensor, a vector of them, or nothing.
template <class Result>
class Compiled {
 public:
  explicit Compiled(CompiledStep step) : step_(std::move(step)) {}
  template <class... Inputs>
  Result operator()(const Inputs&... inputs) {
    const Tensor list[] = {Tensor(inputs)...};
    std::vector<Tensor> outputs = step_.run(list);
    if constexpr (std::is_same_v<Result, Tensor>) return std::move(outputs[0]);
    if constexpr (std::is_same_v<Result, std::vector<Tensor>>) return outputs;
  }
  int traced() const { return step_.traced(); }
  int kept() const { return step_.kept(); }

 private:
  CompiledStep step_;
};

namespace detail {

template <class Result, class... Inputs, class Function, size_t... I>
Compiled<Result> compile_with(Function function, std::index_sequence<I...>) {
  return Compiled<Result>(CompiledStep([function = std::move(function)](std::span<const Tensor> inputs) mutable {
    if constexpr (std::is_void_v<Result>) {
      function(inputs[I]...);
      return std::vector<Tensor>{};
    } else if constexpr (std::is_same_v<Result, Tensor>) {
      return std::vector<Tensor>{function(inputs[I]...)};
    } else {
      return function(inputs[I]...);
    }
  }));
}

// Lambdas, but not those with `auto` parameters: what they take could not be told.
template <class Function>
concept HasSignature = requires {
  &Function::operator();
};

template <class Result>
inline constexpr bool kReturnsTensors =
    std::is_void_v<Result> || std::is_same_v<Result, Tensor> || std::is_same_v<Result, std::vector<Tensor>>;

template <class Function>
struct Signature : Signature<decltype(&Function::operator())> {};
template <class Class, class Result, class... Inputs>
struct Signature<Result (Class::*)(Inputs...) const> {
  template <class Function>
  static auto compile(Function function) {
    static_assert(
        kReturnsTensors<Result>,
        "compile(): the function must return a Tensor, a std::vector<Tensor> or nothing; a number is read from "
        "a returned Tensor with item(), outside of the step");
    static_assert((std::is_convertible_v<const Tensor&, Inputs> && ...),
                  "compile(): the function must take Tensors; numbers that vary are captured as Scalar");
    if constexpr (kReturnsTensors<Result> && (std::is_convertible_v<const Tensor&, Inputs> && ...))
      return compile_with<Result, Inputs...>(std::move(function), std::index_sequence_for<Inputs...>());
  }
};
template <class Class, class Result, class... Inputs>
struct Signature<Result (Class::*)(Inputs...)> : Signature<Result (Class::*)(Inputs...) const> {};

}  // namespace detail

template <class Function>
auto compile(Function function) {
  static_assert(detail::HasSignature<Function>,
                "compile(): the step must be a lambda (or an object with one operator()) whose parameters are Tensors, "
                "not auto");
  if constexpr (detail::HasSignature<Function>) return detail::Signature<Function>::compile(std::move(function));
}

}  // namespace bonfire
