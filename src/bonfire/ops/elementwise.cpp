#include "bonfire/ops/elementwise.h"

#include "bonfire/base/error.h"
#include "bonfire/graph/op.h"
#include "bonfire/graph/sharding.h"
#include "bonfire/graph/trace.h"
#include "bonfire/ops/checks.h"
#include "bonfire/ops/creation.h"
#include "bonfire/ops/elementwise_functions.h"
#include "bonfire/ops/reduce.h"

namespace bonfire {

namespace {

// PyTorch's rule: a tensor of rank 0 changes the type only when its category (bool < integer < float) is higher.
DType result_type(std::span<const TensorSpec* const> inputs) {
  auto category = [](DType dtype) { return is_floating(dtype) ? 2 : dtype == DType::boolean ? 0 : 1; };
  bool any[2] = {};
  DType found[2] = {DType::boolean, DType::boolean};  // of tensors with extents, of scalars
  for (const TensorSpec* input : inputs) {
    int scalar = input->shape.rank() == 0 ? 1 : 0;
    found[scalar] = any[scalar] ? promote(found[scalar], input->dtype) : input->dtype;
    any[scalar] = true;
  }
  if (!any[0]) return found[1];
  if (!any[1] || category(found[1]) <= category(found[0])) return found[0];
  return promote(found[0], found[1]);
}

TensorSpec infer_broadcast(const InferContext& context, std::span<const TensorSpec* const> typed) {
  TensorSpec result = context.input(0);
  for (size_t i = 1; i < context.inputs.size(); ++i) {
    if (context.input(i).device != result.device)
      throw_error<ShapeError>("[{}] inputs live on different devices ({}); move one with to(device)", context.op.name,
                              describe_inputs(context));
    result.shape = broadcast_shapes(context.op.name, result.shape, context.input(i).shape);
  }
  result.dtype = result_type(typed);
  return result;
}

OutputSpecs infer_arithmetic(const InferContext& context) { return {infer_broadcast(context, context.inputs)}; }

OutputSpecs infer_float(const InferContext& context) {  // exp, div, …: integers become f32
  TensorSpec result = infer_broadcast(context, context.inputs);
  if (!is_floating(result.dtype)) result.dtype = DType::f32;
  return {result};
}

OutputSpecs infer_comparison(const InferContext& context) {
  TensorSpec result = infer_broadcast(context, context.inputs);
  result.dtype = DType::boolean;
  return {result};
}

OutputSpecs infer_where(const InferContext& context) {
  if (context.input(0).dtype != DType::boolean)
    throw_error<ShapeError>("[where] the condition must be bool, inputs are ({})", describe_inputs(context));
  return {infer_broadcast(context, context.inputs.subspan(1))};
}

OutputSpecs infer_cast(const InferContext& context) {
  TensorSpec result = context.input(0);
  result.dtype = context.attributes.dtype("dtype");
  return {result};
}

// The gradient `dx`, as large as the broadcast result, brought back to input i.
Tensor to_input(const GradientContext& context, size_t i, const Tensor& dx) {
  return sum_to(dx, context.input_spec(i));
}

// Of partial sums: a sum of them is one, and what is whole waits until they are complete.
ShardRuleResult shard_add(const ShardContext& c) {
  if (c.first_split()) return shard_elementwise(c);
  ShardAnswer answer = c.on_whole();
  for (size_t i : {0, 1}) {
    if (!c.shardings[i].is_partial()) continue;
    if (!(c.inputs[i] == c.outputs[0])) return {};  // of another shape or type: completed first
    answer.inputs[i] = answer.outputs[0] = Sharding::partial();
  }
  answer.adds_later = true;
  return answer;
}

// Linear in the first input where the second is whole.
ShardRuleResult shard_scaled(const ShardContext& c) {
  return !c.first_split() && c.shardings[1].is_partial() ? std::nullopt : shard_linear(c);
}

const Op& make_op(const char* name, ElementwiseFunction function, InferRule infer, GradientRule gradient,
                  ShardRule shard = shard_elementwise) {
  return register_op({.name = name,
                      .infer = infer,
                      .gradient = gradient,
                      .shard = shard,
                      .traits = Trait::elementwise | Trait::cheap,
                      .elementwise_function = static_cast<int>(function)});
}

using F = ElementwiseFunction;
using Context = const GradientContext&;

Tensors cast_gradient(Context c) { return {cast(c.gradient(), c.input_spec(0).dtype)}; }
const Op& cast_op = make_op("cast", F::identity, infer_cast, cast_gradient);

// Gradient functions as ops of their own: one node instead of several. They are not differentiated themselves: where
// that is wanted (grad_enabled during a backward pass) the rules below spell the formula out.
const Op& tanh_gradient_op = make_op("tanh_gradient", F::tanh_gradient, infer_arithmetic, nullptr);
const Op& sigmoid_gradient_op = make_op("sigmoid_gradient", F::sigmoid_gradient, infer_arithmetic, nullptr);
const Op& relu_gradient_op = make_op("relu_gradient", F::relu_gradient, infer_arithmetic, nullptr);
const Op& gelu_gradient_op = make_op("gelu_gradient", F::gelu_gradient, infer_arithmetic, nullptr);
const Op& gelu_tanh_gradient_op = make_op("gelu_tanh_gradient", F::gelu_tanh_gradient, infer_arithmetic, nullptr);
const Op& silu_gradient_op = make_op("silu_gradient", F::silu_gradient, infer_arithmetic, nullptr);

Tensors add_gradient(Context c) {
  const Tensor& dy = c.gradient();
  return {c.needs(0) ? to_input(c, 0, dy) : Tensor(), c.needs(1) ? to_input(c, 1, dy) : Tensor()};
}
Tensors sub_gradient(Context c) {
  const Tensor& dy = c.gradient();
  return {c.needs(0) ? to_input(c, 0, dy) : Tensor(), c.needs(1) ? to_input(c, 1, -dy) : Tensor()};
}
Tensors mul_gradient(Context c) {  // d(xy) = y dx + x dy
  const Tensor& dy = c.gradient();
  return {c.needs(0) ? to_input(c, 0, dy * c.input(1)) : Tensor(),
          c.needs(1) ? to_input(c, 1, dy * c.input(0)) : Tensor()};
}
Tensors div_gradient(Context c) {  // d(x/y) = dx / y − (x/y) dy / y
  const Tensor& dy = c.gradient();
  return {c.needs(0) ? to_input(c, 0, dy / c.input(1)) : Tensor(),
          c.needs(1) ? to_input(c, 1, -(dy * c.output() / c.input(1))) : Tensor()};
}
Tensors pow_gradient(Context c) {  // d(x^y) = y x^(y−1) dx + x^y log x dy, with 0 where a factor of 0 meets infinity
  const Tensor& dy = c.gradient();
  Tensor x = c.input(0), y = c.input(1);
  return {c.needs(0) ? to_input(c, 0, where(equal(y, 0), 0.0, dy * y * pow(x, y - 1.0))) : Tensor(),
          c.needs(1) ? to_input(c, 1, where(equal(c.output(), 0), 0.0, dy * c.output() * log(x))) : Tensor()};
}
// Ties share the gradient, as in PyTorch.
Tensors extremum_gradient(Context c) {
  const Tensor& dy = c.gradient();
  Tensor y = c.output();
  Tensor first = cast(equal(c.input(0), y), dy.dtype()), second = cast(equal(c.input(1), y), dy.dtype());
  Tensor share = dy / (first + second);
  return {c.needs(0) ? to_input(c, 0, share * first) : Tensor(),
          c.needs(1) ? to_input(c, 1, share * second) : Tensor()};
}

const Op& add_op = make_op("add", F::add, infer_arithmetic, add_gradient, shard_add);
const Op& sub_op = make_op("sub", F::sub, infer_arithmetic, sub_gradient);
const Op& mul_op = make_op("mul", F::mul, infer_arithmetic, mul_gradient, shard_scaled);
const Op& div_op = make_op("div", F::div, infer_float, div_gradient, shard_scaled);
const Op& pow_op = make_op("pow", F::pow, infer_arithmetic, pow_gradient);
const Op& maximum_op = make_op("maximum", F::maximum, infer_arithmetic, extremum_gradient);
const Op& minimum_op = make_op("minimum", F::minimum, infer_arithmetic, extremum_gradient);

const Op& equal_op = make_op("equal", F::equal, infer_comparison, nullptr);
const Op& not_equal_op = make_op("not_equal", F::not_equal, infer_comparison, nullptr);
const Op& less_op = make_op("less", F::less, infer_comparison, nullptr);
const Op& less_equal_op = make_op("less_equal", F::less_equal, infer_comparison, nullptr);
const Op& greater_op = make_op("greater", F::greater, infer_comparison, nullptr);
const Op& greater_equal_op = make_op("greater_equal", F::greater_equal, infer_comparison, nullptr);
const Op& logical_not_op = make_op("logical_not", F::logical_not, infer_comparison, nullptr);

Tensors negative_gradient(Context c) { return {-c.gradient()}; }
Tensors absolute_gradient(Context c) { return {c.gradient() * sign(c.input(0))}; }
Tensors exp_gradient(Context c) { return {c.gradient() * c.output()}; }
Tensors log_gradient(Context c) { return {c.gradient() / c.input(0)}; }
Tensors sqrt_gradient(Context c) { return {c.gradient() / (c.output() * 2.0)}; }               // dy / 2√x
Tensors rsqrt_gradient(Context c) { return {c.gradient() * c.output() / c.input(0) * -0.5}; }  // −dy / 2x√x
Tensors reciprocal_gradient(Context c) { return {-(c.gradient() * square(c.output()))}; }      // −dy / x²
Tensors square_gradient(Context c) { return {c.gradient() * c.input(0) * 2.0}; }
Tensors sin_gradient(Context c) { return {c.gradient() * cos(c.input(0))}; }
Tensors cos_gradient(Context c) { return {-(c.gradient() * sin(c.input(0)))}; }
Tensors erf_gradient(Context c) {  // 2/√π e^(−x²)
  return {c.gradient() * exp(-square(c.input(0))) * 1.1283791670955126};
}
Tensors flat_gradient(Context c) { return {zeros_like(c.gradient())}; }  // sign, floor

Tensors tanh_rule(Context c) {
  const Tensor& dy = c.gradient();
  Tensor y = c.output();
  return {grad_enabled() ? dy * (1.0 - square(y)) : trace_op(tanh_gradient_op, {dy, y})};
}
Tensors sigmoid_rule(Context c) {
  const Tensor& dy = c.gradient();
  Tensor y = c.output();
  return {grad_enabled() ? dy * y * (1.0 - y) : trace_op(sigmoid_gradient_op, {dy, y})};
}
Tensors relu_rule(Context c) {
  const Tensor& dy = c.gradient();
  Tensor y = c.output();
  return {grad_enabled() ? where(greater(y, 0), dy, 0.0) : trace_op(relu_gradient_op, {dy, y})};
}
Tensors gelu_rule(Context c) {
  const Tensor& dy = c.gradient();
  Tensor x = c.input(0);
  if (!grad_enabled()) return {trace_op(gelu_gradient_op, {dy, x})};
  Tensor cdf = (erf(x * 0.7071067811865476) + 1.0) * 0.5;
  Tensor pdf = exp(square(x) * -0.5) * 0.3989422804014327;
  return {dy * (cdf + x * pdf)};
}
Tensors gelu_tanh_rule(Context c) {
  const Tensor& dy = c.gradient();
  Tensor x = c.input(0);
  if (!grad_enabled()) return {trace_op(gelu_tanh_gradient_op, {dy, x})};
  Tensor t = tanh((x + x * square(x) * 0.044715) * 0.7978845608028654);
  Tensor slope = (square(x) * 0.134145 + 1.0) * 0.7978845608028654;
  return {dy * ((t + 1.0) * 0.5 + x * (1.0 - square(t)) * slope * 0.5)};
}
Tensors silu_rule(Context c) {
  const Tensor& dy = c.gradient();
  Tensor x = c.input(0);
  if (!grad_enabled()) return {trace_op(silu_gradient_op, {dy, x})};
  Tensor s = sigmoid(x);
  return {dy * (s + x * s * (1.0 - s))};
}

const Op& negative_op = make_op("negative", F::negative, infer_arithmetic, negative_gradient, shard_linear);
const Op& absolute_op = make_op("absolute", F::absolute, infer_arithmetic, absolute_gradient);
const Op& exp_op = make_op("exp", F::exp, infer_float, exp_gradient);
const Op& log_op = make_op("log", F::log, infer_float, log_gradient);
const Op& sqrt_op = make_op("sqrt", F::sqrt, infer_float, sqrt_gradient);
const Op& rsqrt_op = make_op("rsqrt", F::rsqrt, infer_float, rsqrt_gradient);
const Op& reciprocal_op = make_op("reciprocal", F::reciprocal, infer_float, reciprocal_gradient);
const Op& square_op = make_op("square", F::square, infer_arithmetic, square_gradient);
const Op& sin_op = make_op("sin", F::sin, infer_float, sin_gradient);
const Op& cos_op = make_op("cos", F::cos, infer_float, cos_gradient);
const Op& tanh_op = make_op("tanh", F::tanh, infer_float, tanh_rule);
const Op& sigmoid_op = make_op("sigmoid", F::sigmoid, infer_float, sigmoid_rule);
const Op& relu_op = make_op("relu", F::relu, infer_arithmetic, relu_rule);
const Op& gelu_op = make_op("gelu", F::gelu, infer_float, gelu_rule);
const Op& gelu_tanh_op = make_op("gelu_tanh", F::gelu_tanh, infer_float, gelu_tanh_rule);
const Op& silu_op = make_op("silu", F::silu, infer_float, silu_rule);
const Op& sign_op = make_op("sign", F::sign, infer_arithmetic, flat_gradient);
const Op& erf_op = make_op("erf", F::erf, infer_float, erf_gradient);
const Op& floor_op = make_op("floor", F::floor, infer_float, flat_gradient);

Tensors where_gradient(Context c) {
  const Tensor& dy = c.gradient();
  Tensor condition = c.input(0);
  return {Tensor(), c.needs(1) ? to_input(c, 1, where(condition, dy, 0.0)) : Tensor(),
          c.needs(2) ? to_input(c, 2, where(condition, 0.0, dy)) : Tensor()};
}
Tensors clamp_gradient(Context c) {
  const Tensor& dy = c.gradient();
  Tensor x = c.input(0), low = c.input(1), high = c.input(2);
  Tensor below = less(x, low), above = greater(x, high);
  return {c.needs(0) ? to_input(c, 0, where(below, 0.0, where(above, 0.0, dy))) : Tensor(),
          c.needs(1) ? to_input(c, 1, where(below, dy, 0.0)) : Tensor(),
          c.needs(2) ? to_input(c, 2, where(above, dy, 0.0)) : Tensor()};
}
const Op& where_op = make_op("where", F::where, infer_where, where_gradient);
const Op& clamp_op = make_op("clamp", F::clamp, infer_arithmetic, clamp_gradient);

Tensor binary(const Op& op, const Operand& a, const Operand& b) { return trace_op(op, {a.beside(b), b.beside(a)}); }

}  // namespace

Tensor Operand::beside(const Operand& other) const {
  if (!is_number()) return tensor_;
  if (other.is_number()) throw_error<GraphError>("[elementwise] both operands are plain numbers; one must be a tensor");
  if (!other.tensor_.defined()) return scalar_->tensor(DType::f32, {});  // the op says what is wrong with the other
  DType dtype = other.tensor_.dtype();
  if (!is_floating(dtype)) {
    dtype = kind_ == Kind::integral ? DType::i64 : DType::f32;
  } else if (other.tensor_.rank() > 0 && dtype != DType::f64) {
    dtype = DType::f32;  // beside bf16 and f16 too: the number is not rounded, and rank 0 does not widen the tensor
  }
  return scalar_->tensor(dtype, other.tensor_.device());
}

Tensor add(const Operand& a, const Operand& b) { return binary(add_op, a, b); }
Tensor sub(const Operand& a, const Operand& b) { return binary(sub_op, a, b); }
Tensor mul(const Operand& a, const Operand& b) { return binary(mul_op, a, b); }
Tensor div(const Operand& a, const Operand& b) { return binary(div_op, a, b); }
Tensor pow(const Operand& a, const Operand& b) { return binary(pow_op, a, b); }
Tensor maximum(const Operand& a, const Operand& b) { return binary(maximum_op, a, b); }
Tensor minimum(const Operand& a, const Operand& b) { return binary(minimum_op, a, b); }
Tensor equal(const Operand& a, const Operand& b) { return binary(equal_op, a, b); }
Tensor not_equal(const Operand& a, const Operand& b) { return binary(not_equal_op, a, b); }
Tensor less(const Operand& a, const Operand& b) { return binary(less_op, a, b); }
Tensor less_equal(const Operand& a, const Operand& b) { return binary(less_equal_op, a, b); }
Tensor greater(const Operand& a, const Operand& b) { return binary(greater_op, a, b); }
Tensor greater_equal(const Operand& a, const Operand& b) { return binary(greater_equal_op, a, b); }

Tensor operator-(const Tensor& x) { return negative(x); }
Tensor negative(const Tensor& x) { return trace_op(negative_op, {x}); }
Tensor absolute(const Tensor& x) { return trace_op(absolute_op, {x}); }
Tensor exp(const Tensor& x) { return trace_op(exp_op, {x}); }
Tensor log(const Tensor& x) { return trace_op(log_op, {x}); }
Tensor sqrt(const Tensor& x) { return trace_op(sqrt_op, {x}); }
Tensor rsqrt(const Tensor& x) { return trace_op(rsqrt_op, {x}); }
Tensor reciprocal(const Tensor& x) { return trace_op(reciprocal_op, {x}); }
Tensor square(const Tensor& x) { return trace_op(square_op, {x}); }
Tensor sin(const Tensor& x) { return trace_op(sin_op, {x}); }
Tensor cos(const Tensor& x) { return trace_op(cos_op, {x}); }
Tensor tanh(const Tensor& x) { return trace_op(tanh_op, {x}); }
Tensor sigmoid(const Tensor& x) { return trace_op(sigmoid_op, {x}); }
Tensor relu(const Tensor& x) { return trace_op(relu_op, {x}); }
Tensor gelu(const Tensor& x) { return trace_op(gelu_op, {x}); }
Tensor gelu_tanh(const Tensor& x) { return trace_op(gelu_tanh_op, {x}); }
Tensor silu(const Tensor& x) { return trace_op(silu_op, {x}); }
Tensor sign(const Tensor& x) { return trace_op(sign_op, {x}); }
Tensor erf(const Tensor& x) { return trace_op(erf_op, {x}); }
Tensor floor(const Tensor& x) { return trace_op(floor_op, {x}); }
Tensor logical_not(const Tensor& x) { return trace_op(logical_not_op, {x}); }

Tensor where(const Tensor& condition, const Operand& a, const Operand& b) {
  if (a.is_number() && b.is_number())
    throw_error<GraphError>("[where] both values are plain numbers; make one a tensor with full()");
  return trace_op(where_op, {condition, a.beside(b), b.beside(a)});
}
Tensor clamp(const Tensor& x, const Operand& low, const Operand& high) {
  return trace_op(clamp_op, {x, low.beside(x), high.beside(x)});
}
Tensor cast(const Tensor& x, DType dtype) {
  require_defined("cast", {{"x", x}});
  return x.dtype() == dtype ? x : trace_op(cast_op, {x}, {{"dtype", dtype}});
}
Tensor Tensor::to(DType dtype) const { return cast(*this, dtype); }

}  // namespace bonfire
