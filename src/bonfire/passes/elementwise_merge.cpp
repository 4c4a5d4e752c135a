#include "bonfire/passes/elementwise_merge.h"

#include <algorithm>

#include "bonfire/ops/elementwise_program.h"
#include "bonfire/passes/activation.h"

namespace bonfire::passes {

namespace {

constexpr size_t kMostInputs = 8;
constexpr size_t kMostInstructions = 24;

size_t instruction_count(const GraphNode& node) { return program_of(node).instructions.size(); }

// The inputs of the merged node: consumer's without producer's result, then producer's that are not among them.
std::vector<GraphValue> merged_inputs(const GraphNode& producer, const GraphNode& consumer) {
  std::vector<GraphValue> inputs;
  auto add = [&](const GraphValue& value) {
    if (value.node != &producer && std::find(inputs.begin(), inputs.end(), value) == inputs.end())
      inputs.push_back(value);
  };
  for (const GraphValue& input : consumer.inputs) add(input);
  for (const GraphValue& input : producer.inputs) add(input);
  return inputs;
}

}  // namespace

bool can_merge(const GraphNode& producer, const GraphNode& consumer, const Graph& graph) {
  if (producer.is_input() || !producer.op->has(Trait::elementwise) || !consumer.op->has(Trait::elementwise))
    return false;
  if (producer.outputs.size() != 1 || producer.recomputed != consumer.recomputed) return false;
  const TensorSpec& between = producer.outputs[0];
  if (!graph.only_user({const_cast<GraphNode*>(&producer), 0}, &consumer)) return false;
  if (!(between.shape == consumer.outputs[0].shape) || between.device != consumer.device()) return false;
  if (!is_floating(between.dtype) && between.dtype != DType::boolean) return false;
  if (compute_type(producer) != compute_type(consumer)) return false;
  return merged_inputs(producer, consumer).size() <= kMostInputs &&
         instruction_count(producer) + instruction_count(consumer) <= kMostInstructions;
}

bool joins_add_and_activation(const GraphNode& producer, const GraphNode& consumer) {
  const ElementwiseProgram first = program_of(producer), second = program_of(consumer);
  if (first.instructions[static_cast<size_t>(first.results[0])].function != ElementwiseFunction::add) return false;
  return std::ranges::any_of(second.instructions, [&](const ElementwiseInstruction& one) {
    return is_activation(one.function) && one.operand[0] < second.inputs &&
           consumer.inputs[static_cast<size_t>(one.operand[0])].node == &producer;
  });
}

GraphNode* merge(Graph& graph, GraphNode* producer, GraphNode* consumer) {
  ElementwiseProgram first = program_of(*producer), second = program_of(*consumer), merged;
  std::vector<GraphValue> inputs = merged_inputs(*producer, *consumer);
  merged.inputs = static_cast<int>(inputs.size());
  merged.shape = second.shape;
  merged.types = second.types;
  auto input_number = [&](const GraphValue& value) {
    return static_cast<int>(std::find(inputs.begin(), inputs.end(), value) - inputs.begin());
  };
  auto append = [&](const ElementwiseProgram& program, const GraphNode& node, int base) {
    for (ElementwiseInstruction instruction : program.instructions) {
      for (int& operand : instruction.operand) {
        if (operand < 0) continue;
        if (operand >= program.inputs) {
          operand = merged.inputs + base + (operand - program.inputs);
        } else if (node.inputs[operand].node == producer) {
          operand = merged.inputs + first.results[0];
        } else {
          operand = input_number(node.inputs[operand]);
        }
      }
      merged.instructions.push_back(instruction);
    }
  };
  append(first, *producer, 0);
  int base = static_cast<int>(first.instructions.size());
  append(second, *consumer, base);
  for (int result : second.results) merged.results.push_back(base + result);

  std::vector<int64_t> words = merged.encode();
  GraphNode* node = graph.add_like(*consumer, fused_elementwise_op(), inputs,
                                   {{"program", std::span<const int64_t>(words)}}, consumer);
  for (int i = 0; i < static_cast<int>(consumer->outputs.size()); ++i) graph.replace({consumer, i}, {node, i});
  graph.erase(consumer);
  graph.erase(producer);
  return node;
}

}  // namespace bonfire::passes
