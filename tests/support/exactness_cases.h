#pragma once
// Nodes to measure rounding errors on, with numbers like those of training: images as a ReLU leaves them, gradients as
// a ReLU or a max pooling passes them on.
//
//   exactness::NodeOf one(exactness::convolution_cases({"resnet18 64@28", 64, 64, 28, 64, 3, 1}, exactness::kRelu)[0]);
//   runtime::candidate_errors(one.node(), one.inputs());

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "bonfire/base/random.h"
#include "bonfire/graph/graph.h"
#include "bonfire/graph/op.h"
#include "bonfire/ops/loss.h"

namespace bonfire::exactness {

struct Operand {
  Shape shape;
  double scale = 1;       // of normal numbers
  double offset = 0;      // added to them
  double density = 1;     // share of them that is not zero
  bool positive = false;  // their magnitudes
  int64_t below = 0;      // > 0: whole numbers (i64) less than this
};

struct Case {
  std::string name, op;
  Attributes attributes;
  std::vector<Operand> operands;
};

struct Layer {
  std::string name;
  int64_t batch, in, size, out, kernel, padding;

  int64_t out_size() const { return size + 2 * padding - kernel + 1; }
};

// How much of the images and of the gradients is not zero.
struct Density {
  const char* name;
  double x, dy;
};
inline constexpr Density kRelu{"", 0.5, 0.5}, kPooled{", pooled", 0.5, 1.0 / 9}, kThin{", thin", 0.1, 1.0 / 18};

// Forward, the gradient by the input and that by the weight.
inline std::vector<Case> convolution_cases(const Layer& l, const Density& density) {
  const std::string name = l.name + density.name;
  const Attributes plain{
      {"stride", Shape{1, 1}}, {"padding", Shape{l.padding, l.padding}}, {"dilation", Shape{1, 1}}, {"groups", 1}};
  Attributes by_input = plain, by_weight = plain;
  by_input.set({"input_size", Shape{l.size, l.size}});
  by_weight.set({"kernel_size", Shape{l.kernel, l.kernel}});
  const Operand x{.shape = {l.batch, l.in, l.size, l.size}, .density = density.x, .positive = true};
  const Operand weight{.shape = {l.out, l.in, l.kernel, l.kernel}};
  const Operand dy{.shape = {l.batch, l.out, l.out_size(), l.out_size()}, .density = density.dy};
  return {{name, "conv2d", plain, {x, weight}},
          {name, "conv2d_input_gradient", by_input, {dy, weight}},
          {name, "conv2d_weight_gradient", by_weight, {dy, x}}};
}

inline Case matmul_case(const std::string& name, int64_t m, int64_t n, int64_t k, bool transpose_a, bool transpose_b) {
  return {name,
          "matmul",
          {{"transpose_a", transpose_a}, {"transpose_b", transpose_b}},
          {{.shape = transpose_a ? Shape{k, m} : Shape{m, k}}, {.shape = transpose_b ? Shape{n, k} : Shape{k, n}}}};
}

inline Case loss_case(const std::string& name, int64_t rows, int64_t depth, int64_t classes) {
  const double scale = 1 / std::sqrt(static_cast<double>(depth));
  return {name,
          "linear_cross_entropy",
          {{"has_bias", 1},
           {"reduction", static_cast<int>(Reduction::mean)},
           {"ignore_index", -100},
           {"label_smoothing", 0.0}},
          {{.shape = {rows, depth}},
           {.shape = {classes, depth}, .scale = scale},
           {.shape = {classes}, .scale = scale},
           {.shape = {rows}, .below = classes},
           {.shape = {}, .scale = 0, .offset = 1}}};
}

inline std::vector<Case> lstm_cases(const std::string& name, int64_t times, int64_t batch, int64_t hidden) {
  const Operand gates{.shape = {times, batch, 4 * hidden}}, state{.shape = {batch, hidden}, .scale = 0.5};
  const Operand weight{.shape = {4 * hidden, hidden}, .scale = 1 / std::sqrt(static_cast<double>(hidden))};
  const Operand activated{.shape = gates.shape, .scale = 0.1, .offset = 0.5};
  const Operand cells{.shape = {times, batch, hidden}, .scale = 0.5};
  return {{name, "lstm_layer", {}, {gates, state, state, weight}},
          {name,
           "lstm_layer_gradient",
           {{"has_dy", 1}, {"has_dh", 0}, {"has_dc", 0}},
           {weight, state, activated, cells, {.shape = cells.shape}}}};
}

inline std::vector<Case> attention_cases(const std::string& name, int64_t batch, int64_t heads, int64_t times,
                                         int64_t features) {
  const Attributes attributes{{"scale", 1 / std::sqrt(static_cast<double>(features))},
                              {"dropout", 0.0},
                              {"causal", 0},
                              {"has_mask", 0},
                              {"number", 0}};
  const Operand vectors{.shape = {batch, heads, times, features}};
  const Operand log_sum{
      .shape = {batch, heads, times}, .scale = 0.1, .offset = std::log(static_cast<double>(times)) + 0.5};
  return {{name, "attention", attributes, {vectors, vectors, vectors}},
          {name, "attention_gradient", attributes, {vectors, vectors, log_sum, vectors, vectors, vectors}}};
}

// The node of a case in f32 on a device, and its numbers.
class NodeOf {
 public:
  explicit NodeOf(const Case& one, Device device = {}) {
    std::vector<GraphValue> values;
    for (size_t i = 0; i < one.operands.size(); ++i) {
      const Operand& operand = one.operands[i];
      TensorSpec spec{operand.shape, operand.below > 0 ? DType::i64 : DType::f32, device};
      values.push_back({graph_.add_input(LeafKind::feed, spec), 0});
      inputs_.push_back(operand.below > 0 ? bytes<int64_t>(operand, i) : bytes<float>(operand, i));
    }
    node_ = graph_.add(find_op(one.op), std::move(values), one.attributes);
  }

  const GraphNode& node() const { return *node_; }
  const std::vector<std::vector<std::byte>>& inputs() const { return inputs_; }

 private:
  template <class T>
  static std::vector<std::byte> bytes(const Operand& operand, uint64_t stream) {
    std::vector<T> numbers(static_cast<size_t>(operand.shape.count()));
    for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<T>(number(operand, stream, i));
    std::vector<std::byte> bytes(numbers.size() * sizeof(T));
    std::memcpy(bytes.data(), numbers.data(), bytes.size());
    return bytes;
  }

  static double number(const Operand& operand, uint64_t stream, uint64_t i) {
    const double chance = uniform_at(11, stream, i);
    if (operand.below > 0) return std::floor(chance * static_cast<double>(operand.below));
    if (chance >= operand.density) return 0;
    const double normal = normal_at(12, stream, i);
    return operand.offset + operand.scale * (operand.positive ? std::abs(normal) : normal);
  }

  Graph graph_;
  GraphNode* node_;
  std::vector<std::vector<std::byte>> inputs_;
};

}  // namespace bonfire::exactness
