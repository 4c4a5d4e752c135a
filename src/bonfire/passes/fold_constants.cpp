#include "bonfire/passes/fold_constants.h"

#include <cmath>
#include <optional>

#include "bonfire/ops/elementwise_program.h"

namespace bonfire::passes {

namespace {

// The number that every element of the value is, when that is known.
std::optional<int64_t> uniform(const GraphValue& value) {
  const GraphNode& node = *value.node;
  if (node.is_input() || !node.op->has(Trait::constant) || !node.attributes.has("value")) return std::nullopt;
  return node.attributes.integer("value");
}

template <template <class> class F, int Arity>
double call(const double* x) {
  if constexpr (Arity == 1) return F<double>::call(x[0]);
  if constexpr (Arity == 2) return F<double>::call(x[0], x[1]);
  if constexpr (Arity == 3) return F<double>::call(x[0], x[1], x[2]);
}

double evaluate(int function, const double* operands) {
  using Function = double (*)(const double*);
  static constexpr Function kTable[] = {
#define BONFIRE_CALL(name, arity) &call<elementwise::name, arity>,
      BONFIRE_ELEMENTWISE_FUNCTIONS(BONFIRE_CALL)
#undef BONFIRE_CALL
  };
  return kTable[function](operands);
}

// The result of an elementwise op on whole numbers, if it is a whole number again.
std::optional<int64_t> folded(const GraphNode& node) {
  if (node.outputs.size() != 1 || node.inputs.empty()) return std::nullopt;
  if (node.op->has(Trait::view)) return uniform(node.inputs[0]);
  if (node.op->elementwise_function < 0) return std::nullopt;
  double operands[3] = {};
  for (size_t i = 0; i < node.inputs.size(); ++i) {
    std::optional<int64_t> number = uniform(node.inputs[i]);
    if (!number) return std::nullopt;
    operands[i] = static_cast<double>(*number);
  }
  double result = evaluate(node.op->elementwise_function, operands);
  constexpr double kExact = 16777216;  // whole numbers up to here are exact in f32
  if (!(std::abs(result) <= kExact) || result != std::floor(result)) return std::nullopt;
  return static_cast<int64_t>(result);
}

// x + 0, x − 0, x · 1, x / 1: the operand that the result equals.
std::optional<GraphValue> identity(const GraphNode& node) {
  if (node.op->elementwise_function < 0 || node.inputs.size() != 2) return std::nullopt;
  auto function = static_cast<ElementwiseFunction>(node.op->elementwise_function);
  auto neutral = [&](size_t neutral_side, int64_t number) -> std::optional<GraphValue> {
    const GraphValue& kept = node.inputs[1 - neutral_side];
    if (uniform(node.inputs[neutral_side]) == number && kept.spec() == node.outputs[0]) return kept;
    return std::nullopt;
  };
  std::optional<GraphValue> kept;
  switch (function) {
    case ElementwiseFunction::add: kept = neutral(0, 0); return kept ? kept : neutral(1, 0);
    case ElementwiseFunction::mul: kept = neutral(0, 1); return kept ? kept : neutral(1, 1);
    case ElementwiseFunction::sub: return neutral(1, 0);
    case ElementwiseFunction::div: return neutral(1, 1);
    default: return std::nullopt;
  }
}

class FoldConstants final : public Pass {
 public:
  std::string_view name() const override { return "fold_constants"; }

  void run(Graph& graph, const Options&) const override {
    const Op& constant = find_op("constant");
    for (auto position = graph.nodes().begin(); position != graph.nodes().end(); ++position) {
      GraphNode& node = *position;
      if (node.is_input()) continue;
      if (std::optional<int64_t> number = folded(node)) {
        const TensorSpec spec = node.outputs[0];
        GraphNode* made = graph.add_like(node, constant, {},
                                         {{"shape", spec.shape},
                                          {"value", *number},
                                          {"dtype", spec.dtype},
                                          {"device_type", static_cast<int>(spec.device.type)},
                                          {"device_index", spec.device.index}},
                                         &node);
        graph.replace({&node, 0}, {made, 0});
      } else if (std::optional<GraphValue> kept = identity(node)) {
        graph.replace({&node, 0}, *kept);
      }
    }
  }
};

}  // namespace

std::unique_ptr<Pass> fold_constants() { return std::make_unique<FoldConstants>(); }

}  // namespace bonfire::passes
