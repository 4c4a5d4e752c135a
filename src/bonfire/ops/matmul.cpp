#include "bonfire/ops/matmul.h"

#include "bonfire/base/error.h"
#include "bonfire/graph/op.h"
#include "bonfire/graph/sharding.h"
#include "bonfire/ops/checks.h"
#include "bonfire/ops/elementwise.h"
#include "bonfire/ops/reduce.h"
#include "bonfire/ops/shape_ops.h"

namespace bonfire {

namespace {

Shape leading_axes(const Shape& shape) { return Shape(shape.extents().first(static_cast<size_t>(shape.rank()) - 2)); }

TensorSpec infer_product(const InferContext& context) {
  require_one_device(context);
  require_floating(context, 0, "a");
  const TensorSpec &a = context.input(0), &b = context.input(1);
  require_dtype(context, 1, "b", a.dtype);
  if (a.shape.rank() < 2 || b.shape.rank() < 2)
    throw_error<ShapeError>("[{}] operands must have two axes or more, a is {}, b is {}", context.op.name,
                            to_string(a.shape), to_string(b.shape));
  bool transpose_a = context.attributes.flag("transpose_a"), transpose_b = context.attributes.flag("transpose_b");
  int64_t rows = a.shape[transpose_a ? -1 : -2], depth = a.shape[transpose_a ? -2 : -1];
  int64_t columns = b.shape[transpose_b ? -2 : -1], depth_b = b.shape[transpose_b ? -1 : -2];
  if (depth != depth_b)
    throw_error<ShapeError>("[{}] a has {} columns, b has {} rows (a {}{}, b {}{})", context.op.name, depth, depth_b,
                            to_string(a.shape), transpose_a ? " transposed" : "", to_string(b.shape),
                            transpose_b ? " transposed" : "");
  TensorSpec result = a;
  result.shape = broadcast_shapes(context.op.name, leading_axes(a.shape), leading_axes(b.shape));
  result.shape.push_back(rows);
  result.shape.push_back(columns);
  return result;
}

OutputSpecs infer_matmul(const InferContext& context) { return {infer_product(context)}; }

OutputSpecs infer_matmul_bias_act(const InferContext& context) {
  TensorSpec result = infer_product(context);
  require_activation(context);
  if (context.attributes.flag("has_bias")) {
    const Shape& bias = context.input(2).shape;
    bool row = bias.rank() > 0 && bias[-1] == result.shape[-1] && bias.count() == bias[-1];
    if (!row) require_shape(context, 2, "bias", {result.shape[-1]});
    require_bias_type(context, 2, result.dtype);
  }
  return {result};
}

// C = A B with A, B transposed or not: dA = dC Bᵀ and dB = Aᵀ dC, or the transposes of these.
Tensors matmul_gradient(const GradientContext& c) {
  bool transpose_a = c.attributes().flag("transpose_a"), transpose_b = c.attributes().flag("transpose_b");
  const Tensor& dy = c.gradient();
  Tensor a = c.input(0), b = c.input(1), da, db;
  if (c.needs(0))
    da = transpose_a ? matmul(b, dy, {.transpose_a = transpose_b, .transpose_b = true})
                     : matmul(dy, b, {.transpose_b = !transpose_b});
  if (c.needs(1))
    db = transpose_b ? matmul(dy, a, {.transpose_a = true, .transpose_b = transpose_a})
                     : matmul(a, dy, {.transpose_a = !transpose_a});
  return {c.needs(0) ? sum_to(da, c.input_spec(0)) : Tensor(), c.needs(1) ? sum_to(db, c.input_spec(1)) : Tensor()};
}

// What an axis of an operand is to the product.
enum class Role : uint8_t { whole, batch, outer, depth };

Role role_of(const ShardContext& c, size_t input) {
  const Sharding& sharding = c.shardings[input];
  if (!sharding.is_split()) return Role::whole;
  const int rank = c.inputs[input].shape.rank();
  if (sharding.axis < rank - 2) return Role::batch;
  const bool transposed = c.attributes.flag(input == 0 ? "transpose_a" : "transpose_b");
  const bool is_last = sharding.axis == rank - 1;
  return is_last == ((input == 0) != transposed) ? Role::depth : Role::outer;
}

// Columns of b, or rows of a, are columns and rows of the product; where the terms of its sums are shared out each rank
// has partial sums. Where both operands are split otherwise, the smaller one is gathered.
ShardRuleResult shard_matmul(const ShardContext& c) {
  Role roles[] = {role_of(c, 0), role_of(c, 1)};
  if (roles[0] == Role::whole && roles[1] == Role::whole) return {};
  const bool agree = roles[0] == roles[1] && roles[0] != Role::outer;
  if (!agree && roles[0] != Role::whole && roles[1] != Role::whole)
    roles[c.inputs[0].bytes() < c.inputs[1].bytes() ? 0 : 1] = Role::whole;
  const size_t leader = roles[0] != Role::whole ? 0 : 1, other = 1 - leader;
  const Sharding& split = c.shardings[leader];
  const Shape &shape = c.inputs[leader].shape, &beside = c.inputs[other].shape, &result = c.outputs[0].shape;
  ShardAnswer answer = c.on_whole();
  answer.inputs[leader] = split;
  switch (roles[leader]) {
    case Role::depth: {
      const bool transposed = c.attributes.flag(other == 0 ? "transpose_a" : "transpose_b");
      const bool is_last = (other == 0) != transposed;
      answer.inputs[other] = Sharding::split(beside.rank() - (is_last ? 1 : 2), split.blocks);
      answer.outputs[0] = Sharding::partial();
      break;
    }
    case Role::outer: answer.outputs[0] = Sharding::split(result.rank() - (leader == 0 ? 2 : 1), split.blocks); break;
    default: {
      const int axis = split.axis + result.rank() - shape.rank(), own = axis - (result.rank() - beside.rank());
      if (own >= 0 && beside[own] != 1) answer.inputs[other] = Sharding::split(own, split.blocks);
      answer.outputs[0] = Sharding::split(axis, split.blocks);
    }
  }
  return answer;
}

const Op& matmul_op = register_op(
    {.name = "matmul", .infer = infer_matmul, .gradient = matmul_gradient, .shard = shard_matmul, .amp = AmpRule::low});
const Op& matmul_bias_act_op =
    register_op({.name = "matmul_bias_act", .infer = infer_matmul_bias_act, .amp = AmpRule::low});

Tensor trace_matmul(const Tensor& a, const Tensor& b, MatmulOptions options) {
  return trace_op(matmul_op, {a, b}, {{"transpose_a", options.transpose_a}, {"transpose_b", options.transpose_b}});
}

// All leading axes as rows: one large product, and the other operand's gradient needs no sum over batches.
Tensor fold_rows(const Tensor& x) {
  int64_t rows = 1;
  for (int64_t extent : x.shape().extents().first(static_cast<size_t>(x.rank()) - 1)) rows *= extent;
  return reshape(x, {rows, x.size(-1)});
}

Shape with_last(Shape shape, int64_t extent) {
  shape[-1] = extent;
  return shape;
}

}  // namespace

Tensor matmul(const Tensor& a, const Tensor& b, MatmulOptions options) {
  require_defined("matmul", {{"a", a}, {"b", b}});
  if (a.rank() == 0 || b.rank() == 0 || (a.rank() == 1 && options.transpose_a) ||
      (b.rank() == 1 && options.transpose_b))
    throw_error<ShapeError>("[matmul] operands need an axis, and two to be transposed; a is {}{}, b is {}{}",
                            to_string(a.shape()), options.transpose_a ? " transposed" : "", to_string(b.shape()),
                            options.transpose_b ? " transposed" : "");
  if (b.rank() == 2 && a.rank() > 2 && !options.transpose_a) {
    Tensor y = trace_matmul(fold_rows(a), b, options);
    return reshape(y, with_last(a.shape(), y.size(-1)));
  }
  if (a.rank() > 1 && b.rank() > 1) return trace_matmul(a, b, options);
  Tensor row = a.rank() == 1 ? reshape(a, {1, a.size(0)}) : a;
  Tensor column = b.rank() == 1 ? reshape(b, {b.size(0), 1}) : b;
  Tensor y = matmul(row, column, options);
  Shape result = leading_axes(y.shape());
  if (a.rank() > 1) result.push_back(y.size(-2));
  if (b.rank() > 1) result.push_back(y.size(-1));
  return reshape(y, result);
}

Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  require_defined("linear", {{"x", x}, {"weight", weight}});
  if (weight.rank() != 2 || x.rank() == 0 || x.size(-1) != weight.size(1))
    throw_error<ShapeError>("[linear] input has {} features, weight expects {} (weight {}, input {})",
                            x.rank() == 0 ? 0 : x.size(-1), weight.rank() != 2 ? 0 : weight.size(1),
                            to_string(weight.shape()), to_string(x.shape()));
  if (bias.defined() && !(bias.shape() == Shape{weight.size(0)}))
    throw_error<ShapeError>("[linear] bias is {}, expected [{}] (weight {})", to_string(bias.shape()), weight.size(0),
                            to_string(weight.shape()));
  if (!bias.defined()) return matmul(x, weight, {.transpose_b = true});
  if (x.rank() <= 2) return matmul(x, weight, {.transpose_b = true}) + bias;
  // The bias is added before the rows are unfolded, right after the product, so that they fuse.
  return reshape(trace_matmul(fold_rows(x), weight, {.transpose_b = true}) + bias,
                 with_last(x.shape(), weight.size(0)));
}

}  // namespace bonfire
