#include "bonfire/ops/lstm.h"

#include <vector>

#include "bonfire/base/error.h"
#include "bonfire/graph/op.h"
#include "bonfire/graph/trace.h"
#include "bonfire/ops/checks.h"
#include "bonfire/ops/creation.h"
#include "bonfire/ops/dropout.h"
#include "bonfire/ops/elementwise.h"
#include "bonfire/ops/matmul.h"
#include "bonfire/ops/shape_ops.h"

namespace bonfire {

namespace {

struct Sizes {
  int64_t times, batch, hidden;
};

Sizes sizes_of(const InferContext& context, size_t gates) {
  const Shape& shape = context.input(gates).shape;
  if (shape.rank() != 3 || shape[0] < 1 || shape[2] % 4 != 0)
    throw_error<ShapeError>("[{}] gates must be [T, N, 4H] with T at least 1 (inputs: {})", context.op.name,
                            describe_inputs(context));
  return {shape[0], shape[1], shape[2] / 4};
}

// A state may be f32 beside a narrower type.
void require_dtype_or_wide(const InferContext& context, size_t input, const char* role, DType dtype, bool may_be_wide) {
  const bool is_wide = context.input(input).dtype == DType::f32 && dtype != DType::f64;
  if (!may_be_wide || !is_wide) require_dtype(context, input, role, dtype);
}

// The recurrence of one layer. projected [T, N, 4H] (the input's part of the gates, biases included), h0 [N, H],
// c0 [N, H], w_hh [4H, H] → y [T, N, H], h and c at the end [N, H], and what the gradient needs: the gates after their
// activation [T, N, 4H] and the cells [T, N, H].
OutputSpecs infer_lstm_layer(const InferContext& context) {
  require_one_device(context);
  require_floating(context, 0, "gates");
  auto [times, batch, hidden] = sizes_of(context, 0);
  const char* roles[] = {"gates", "h0", "c0", "w_hh"};
  for (size_t i = 1; i < 4; ++i) {
    require_dtype_or_wide(context, i, roles[i], context.input(0).dtype, i == 2);
    require_shape(context, i, roles[i], i == 3 ? Shape{4 * hidden, hidden} : Shape{batch, hidden});
  }
  TensorSpec y = context.input(0);
  y.shape = {times, batch, hidden};
  return {y, context.input(1), context.input(2), context.input(0), y};
}

// w_hh, c0, gates, cells, then those of dy, dh, dc (at the end) that exist → dprojected, dh0, dc0.
OutputSpecs infer_lstm_layer_gradient(const InferContext& context) {
  require_one_device(context);
  auto [times, batch, hidden] = sizes_of(context, 2);
  size_t next = 4;
  const size_t first_state = next + (context.attributes.flag("has_dy") ? 1 : 0);
  for (size_t i = 0; i < context.inputs.size(); ++i)
    require_dtype_or_wide(context, i, "an input", context.input(2).dtype, i == 1 || i >= first_state);
  require_shape(context, 1, "c0", {batch, hidden});
  require_shape(context, 3, "cells", {times, batch, hidden});
  if (context.attributes.flag("has_dy")) require_shape(context, next++, "dy", {times, batch, hidden});
  if (context.attributes.flag("has_dh")) require_shape(context, next++, "dh", {batch, hidden});
  if (context.attributes.flag("has_dc")) require_shape(context, next++, "dc", {batch, hidden});
  return {context.input(2), context.input(1), context.input(1)};
}

const Op& lstm_layer_gradient_op =
    register_op({.name = "lstm_layer_gradient", .infer = infer_lstm_layer_gradient, .amp = AmpRule::low});

Tensors lstm_layer_rule(const GradientContext& c) {
  Tensor h0 = c.input(1), w_hh = c.input(3), y = c.output(0);
  std::vector<Tensor> inputs = {w_hh, c.input(2), c.output(3), c.output(4)};
  for (size_t i = 0; i < 3; ++i)
    if (c.gradient(i).defined()) inputs.push_back(c.gradient(i));
  Tensors gradients = trace_op_all(
      lstm_layer_gradient_op, inputs,
      {{"has_dy", c.gradient(0).defined()}, {"has_dh", c.gradient(1).defined()}, {"has_dc", c.gradient(2).defined()}});
  const Tensor dh0 = gradients[1].to(h0.dtype());
  if (!c.needs(3)) return {gradients[0], dh0, gradients[2], Tensor()};
  // dw_hh = Σ over time and batch of dgates ⊗ the h that went in: one product over the whole sequence.
  Shape shape = y.shape();
  Tensor before = unsqueeze(h0, 0);  // [T, N, H]
  if (shape[0] > 1) before = concat({before, slice(y, 0, 0, -1)}, 0);
  Tensor flat_gates = reshape(gradients[0], {shape[0] * shape[1], 4 * shape[2]});
  Tensor flat_before = reshape(before, {shape[0] * shape[1], shape[2]});
  return {gradients[0], dh0, gradients[2], matmul(flat_gates, flat_before, {.transpose_a = true})};
}

const Op& lstm_layer_op =
    register_op({.name = "lstm_layer", .infer = infer_lstm_layer, .gradient = lstm_layer_rule, .amp = AmpRule::low});

void check_layer(const Tensor& x, const LstmWeights& weights, size_t layer) {
  require_defined("lstm", {{"w_ih", weights.w_ih}, {"w_hh", weights.w_hh}});
  if (weights.b_ih.defined() != weights.b_hh.defined())
    throw_error<GraphError>("[lstm] layer {} has {} but not {}{}; give both biases or neither", layer,
                            weights.b_ih.defined() ? "b_ih" : "b_hh", weights.b_ih.defined() ? "b_hh" : "b_ih",
                            in_current_module());
  const Shape &ih = weights.w_ih.shape(), &hh = weights.w_hh.shape();
  bool fits = x.rank() == 3 && ih.rank() == 2 && hh.rank() == 2 && ih[0] == 4 * hh[1] && hh[0] == 4 * hh[1] &&
              ih[1] == x.size(2);
  if (!fits)
    throw_error<ShapeError>("[lstm] layer {}: x {}, w_ih {}, w_hh {} do not fit; expected [T, N, I], [4H, I], [4H, H]",
                            layer, to_string(x.shape()), to_string(ih), to_string(hh));
}

Tensor initial_state(const Tensor& given, size_t layers, const TensorSpec& one_layer, const char* name) {
  Shape shape{static_cast<int64_t>(layers), one_layer.shape[0], one_layer.shape[1]};
  if (!given.defined()) return zeros(shape, one_layer.dtype, one_layer.device);
  if (!(given.shape() == shape))
    throw_error<ShapeError>("[lstm] {} has shape {}, expected {} (layers, batch, hidden)", name,
                            to_string(given.shape()), to_string(shape));
  return given;
}

}  // namespace

LstmResult lstm(const Tensor& x, std::span<const LstmWeights> layers, const Tensor& h0, const Tensor& c0,
                LstmOptions options) {
  if (layers.empty()) throw_error<ShapeError>("[lstm] there are no layers");
  require_defined("lstm", {{"x", x}});
  Tensor y = options.batch_first ? transpose(x, 0, 1) : x;  // [T, N, I]
  Tensor h_start, c_start;                                  // [layers, N, H]
  std::vector<Tensor> h_end, c_end;
  for (size_t i = 0; i < layers.size(); ++i) {
    const LstmWeights& weights = layers[i];
    check_layer(y, weights, i);
    if (i == 0) {
      TensorSpec state{{y.size(1), weights.w_hh.size(1)}, y.dtype(), y.device()};
      h_start = initial_state(h0, layers.size(), state, "h0");
      c_start = initial_state(c0, layers.size(), state, "c0");
    } else {
      y = dropout(y, options.dropout, options.training);
    }
    const Tensor bias = weights.b_ih.defined() ? weights.b_ih + weights.b_hh : Tensor();
    Tensor projected = linear(y, weights.w_ih, bias);  // [T, N, 4H]
    int64_t layer = static_cast<int64_t>(i);
    Tensor h = squeeze(slice(h_start, 0, layer, layer + 1), 0), c = squeeze(slice(c_start, 0, layer, layer + 1), 0);
    Tensors outputs = trace_op_all(lstm_layer_op, {projected, h, c, weights.w_hh});
    y = outputs[0];
    h_end.push_back(outputs[1]);
    c_end.push_back(outputs[2]);
  }
  return {options.batch_first ? transpose(y, 0, 1) : y, stack(h_end, 0), stack(c_end, 0)};
}

}  // namespace bonfire
