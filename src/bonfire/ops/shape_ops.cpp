#include "bonfire/ops/shape_ops.h"

#include <algorithm>

#include "bonfire/base/error.h"
#include "bonfire/graph/op.h"
#include "bonfire/graph/sharding.h"
#include "bonfire/ops/checks.h"
#include "bonfire/ops/creation.h"
#include "bonfire/ops/elementwise.h"
#include "bonfire/ops/reduce.h"

namespace bonfire {

namespace {

using Context = const GradientContext&;

OutputSpecs infer_reshape(const InferContext& context) {
  TensorSpec spec = context.input(0);
  Shape shape = context.attributes.ints("shape");
  if (shape.count() != spec.shape.count())
    throw_error<ShapeError>("[reshape] shape {} has {} elements, {} has {}", to_string(spec.shape), spec.shape.count(),
                            to_string(shape), shape.count());
  spec.shape = shape;
  return {spec};
}

OutputSpecs infer_permute(const InferContext& context) {
  TensorSpec spec = context.input(0);
  Shape axes = context.attributes.ints("axes");
  for (int i = 0; i < axes.rank(); ++i) spec.shape[i] = context.input(0).shape[static_cast<int>(axes[i])];
  return {spec};
}

OutputSpecs infer_broadcast_to(const InferContext& context) {
  TensorSpec spec = context.input(0);
  Shape shape = context.attributes.ints("shape");
  int added = shape.rank() - spec.shape.rank();
  bool fits = added >= 0;
  for (int i = 0; fits && i < spec.shape.rank(); ++i)
    fits = spec.shape[i] == shape[i + added] || (spec.shape[i] == 1 && shape[i + added] >= 0);
  for (int i = 0; i < added; ++i) fits = fits && shape[i] >= 0;
  if (!fits)
    throw_error<ShapeError>("[broadcast_to] shape {} does not broadcast to {}", to_string(spec.shape),
                            to_string(shape));
  spec.shape = shape;
  return {spec};
}

OutputSpecs infer_concat(const InferContext& context) {
  int axis = static_cast<int>(context.attributes.integer("axis"));
  TensorSpec spec = context.input(0);
  for (const TensorSpec* part : context.inputs.subspan(1)) {
    bool fits = part->shape.rank() == spec.shape.rank() && part->device == spec.device && part->dtype == spec.dtype;
    for (int i = 0; fits && i < spec.shape.rank(); ++i) fits = i == axis || part->shape[i] == spec.shape[i];
    if (!fits)
      throw_error<ShapeError>(
          "[concat] parts must live on one device and agree in all extents but axis {}; they are {}", axis,
          describe_inputs(context));
    spec.shape[axis] += part->shape[axis];
  }
  return {spec};
}

OutputSpecs infer_split(const InferContext& context) {
  int axis = static_cast<int>(context.attributes.integer("axis"));
  OutputSpecs parts;
  for (int64_t size : context.attributes.list("sizes")) parts.emplace_back(context.input(0)).shape[axis] = size;
  return parts;
}

OutputSpecs infer_slice(const InferContext& context) {
  TensorSpec spec = context.input(0);
  spec.shape = context.attributes.ints("extents");
  return {spec};
}

OutputSpecs infer_pad(const InferContext& context) {
  TensorSpec spec = context.input(0);
  std::span<const int64_t> before = context.attributes.list("before"), after = context.attributes.list("after"),
                           steps = context.attributes.list("steps");
  for (int i = 0; i < spec.shape.rank(); ++i) {
    auto axis = static_cast<size_t>(i);
    int64_t spread = spec.shape[i] == 0 ? 0 : (spec.shape[i] - 1) * steps[axis] + 1;
    spec.shape[i] = before[axis] + spread + after[axis];
  }
  return {spec};
}

// whole, part → whole with the part in place of what lies along `axis` from `begin` on; made by passes, which put
// together what is computed part by part.
OutputSpecs infer_put_slice(const InferContext& context) {
  require_one_device(context);
  const Shape& whole = context.input(0).shape;
  const int axis = static_cast<int>(context.attributes.integer("axis"));
  const int64_t begin = context.attributes.integer("begin");
  Shape expected = whole;
  expected[axis] = context.input(1).shape.rank() == whole.rank() ? context.input(1).shape[axis] : 0;
  require_shape(context, 1, "part", expected);
  require_dtype(context, 1, "part", context.input(0).dtype);
  if (begin < 0 || begin + expected[axis] > whole[axis])
    throw_error<ShapeError>("[put_slice] {} from {} on along axis {} does not lie in {}", to_string(expected), begin,
                            axis, to_string(whole));
  return {context.input(0)};
}

// Row-major, a split is `repeats` runs of elements, each cut into equal parts. Where the new shape has an axis whose
// parts are these, it is split there; "heads" out of features is such an axis, and rows and columns in one are not.
std::optional<Sharding> split_of_reshaped(const ShardContext& c) {
  const Shape &from = c.inputs[0].shape, &to = c.outputs[0].shape;
  int64_t repeats = c.shardings[0].blocks, before = 1;
  for (int i = 0; i < c.shardings[0].axis; ++i) repeats *= from[i];
  for (int i = 0; i < to.rank(); before *= to[i++]) {
    if (repeats % before != 0) return {};
    const Sharding split = Sharding::split(i, repeats / before);
    if (to[i] > 1 && to[i] % split.blocks == 0 && c.can_split(to, split)) return split;
  }
  return {};
}

ShardRuleResult shard_reshape(const ShardContext& c) {
  if (!c.shardings[0].is_split()) return shard_linear(c);
  const std::optional<Sharding> split = split_of_reshaped(c);
  if (!split) return {};
  ShardAnswer answer = c.on_whole();
  answer.inputs[0] = c.shardings[0];
  answer.outputs[0] = *split;
  answer.attributes.set({"shape", c.local(c.outputs[0].shape, *split)});
  return answer;
}

ShardRuleResult shard_permute(const ShardContext& c) {
  if (!c.shardings[0].is_split()) return shard_linear(c);
  ShardAnswer answer = c.on_whole();
  answer.inputs[0] = c.shardings[0];
  const Shape axes = c.attributes.ints("axes");
  for (int i = 0; i < axes.rank(); ++i)
    if (axes[i] == c.shardings[0].axis) answer.outputs[0] = Sharding::split(i, c.shardings[0].blocks);
  return answer;
}

ShardRuleResult shard_broadcast_to(const ShardContext& c) {
  if (!c.shardings[0].is_split()) return shard_linear(c);
  ShardRuleResult answer = shard_elementwise(c);
  answer->attributes.set({"shape", c.local(c.outputs[0].shape, answer->outputs[0])});
  return answer;
}

// Along another axis; or, of parts of one size, each of them: then the whole is in as many blocks.
ShardRuleResult shard_concat(const ShardContext& c) {
  const auto axis = static_cast<int>(c.attributes.integer("axis"));
  const std::optional<size_t> leader = c.first_split();
  if (!leader) return {};
  if (c.shardings[*leader].axis != axis) return shard_alike(c, c.shardings[*leader]);
  const bool alike = std::ranges::all_of(
      c.inputs, [&](const TensorSpec& part) { return part.shape[axis] == c.inputs[0].shape[axis]; });
  if (!alike || c.shardings[*leader].blocks != 1) return {};
  ShardAnswer answer = c.on_whole();
  std::ranges::fill(answer.inputs, Sharding::split(axis));
  answer.outputs[0] = Sharding::split(axis, static_cast<int64_t>(c.inputs.size()));
  return answer;
}

ShardRuleResult shard_split(const ShardContext& c) {
  const auto axis = static_cast<int>(c.attributes.integer("axis"));
  const Sharding& split = c.shardings[0];
  if (!split.is_split()) return {};
  if (split.axis != axis) return shard_alike(c, split);
  const std::span<const int64_t> sizes = c.attributes.list("sizes");
  const bool alike = std::ranges::all_of(sizes, [&](int64_t size) { return size == sizes[0]; });
  if (!alike || split.blocks != static_cast<int64_t>(sizes.size())) return {};
  ShardAnswer answer = c.on_whole();
  answer.inputs[0] = split;
  std::ranges::fill(answer.outputs, Sharding::split(axis));
  std::vector<int64_t> local(sizes.begin(), sizes.end());
  for (int64_t& size : local) size /= c.parts;
  answer.attributes.set({"sizes", std::span<const int64_t>(local)});
  return answer;
}

ShardRuleResult shard_slice(const ShardContext& c) {
  const Sharding& split = c.shardings[0];
  if (!split.is_split()) return {};
  const Shape& extents = c.outputs[0].shape;
  if (extents[split.axis] != c.inputs[0].shape[split.axis]) return {};  // all of the axis
  ShardRuleResult answer = shard_alike(c, split);
  if (answer) answer->attributes.set({"extents", c.local(extents, split)});
  return answer;
}

ShardRuleResult shard_pad(const ShardContext& c) {
  const Sharding& split = c.shardings[0];
  if (!split.is_split() || c.outputs[0].shape[split.axis] != c.inputs[0].shape[split.axis]) return {};
  return shard_alike(c, split);
}

Tensors reshape_gradient(Context c) { return {reshape(c.gradient(), c.input_spec(0).shape)}; }

Tensors permute_gradient(Context c) {
  Shape axes = c.attributes().ints("axes"), inverse = axes;
  for (int i = 0; i < axes.rank(); ++i) inverse[static_cast<int>(axes[i])] = i;
  return {permute(c.gradient(), inverse)};
}

Tensors broadcast_to_gradient(Context c) { return {sum_to(c.gradient(), c.input_spec(0))}; }

Tensors concat_gradient(Context c) {
  int axis = static_cast<int>(c.attributes().integer("axis"));
  std::vector<int64_t> sizes;
  for (size_t i = 0; i < c.input_count(); ++i) sizes.push_back(c.input_spec(i).shape[axis]);
  std::vector<Tensor> parts = split(c.gradient(), sizes, axis);
  return Tensors(std::span<const Tensor>(parts));
}

Tensors split_gradient(Context c) {
  std::span<const int64_t> sizes = c.attributes().list("sizes");
  int axis = static_cast<int>(c.attributes().integer("axis"));
  std::vector<Tensor> parts;
  for (size_t i = 0; i < sizes.size(); ++i) {
    TensorSpec spec = c.input_spec(0);
    spec.shape[axis] = sizes[i];
    parts.push_back(c.gradient(i).defined() ? c.gradient(i) : constant(0, spec));
  }
  return {concat(parts, axis)};
}

// slice and pad are each other's gradients. Both speak of all axes: slice takes `extents` elements from `begin` on,
// `steps` apart; pad puts its input `before` elements in, `steps` apart, and ends with `after` more.
Tensor slice_axes(const Tensor& x, const Shape& begin, const Shape& extents, const Shape& steps);
Tensor pad_axes(const Tensor& x, const Shape& before, const Shape& after, const Shape& steps, int64_t value);

Tensors slice_gradient(Context c) {
  Shape begin = c.attributes().ints("begin"), extents = c.attributes().ints("extents"),
        steps = c.attributes().ints("steps");
  Shape after = c.input_spec(0).shape;
  for (int i = 0; i < after.rank(); ++i) after[i] -= begin[i] + (extents[i] == 0 ? 0 : (extents[i] - 1) * steps[i] + 1);
  return {pad_axes(c.gradient(), begin, after, steps, 0)};
}

Tensors pad_gradient(Context c) {
  return {slice_axes(c.gradient(), c.attributes().ints("before"), c.input_spec(0).shape, c.attributes().ints("steps"))};
}

const Op& make_op(const char* name, InferRule infer, GradientRule gradient, ShardRule shard, uint32_t traits = 0) {
  return register_op({.name = name, .infer = infer, .gradient = gradient, .shard = shard, .traits = traits});
}

const Op& reshape_op = make_op("reshape", infer_reshape, reshape_gradient, shard_reshape, Trait::view | Trait::cheap);
const Op& permute_op = make_op("permute", infer_permute, permute_gradient, shard_permute, Trait::cheap);
const Op& broadcast_to_op =
    make_op("broadcast_to", infer_broadcast_to, broadcast_to_gradient, shard_broadcast_to, Trait::cheap);
const Op& concat_op = make_op("concat", infer_concat, concat_gradient, shard_concat);
const Op& split_op = make_op("split", infer_split, split_gradient, shard_split);
const Op& slice_op = make_op("slice", infer_slice, slice_gradient, shard_slice, Trait::cheap);
const Op& pad_op = make_op("pad", infer_pad, pad_gradient, shard_pad, Trait::cheap);
const Op& put_slice_op = make_op("put_slice", infer_put_slice, nullptr, nullptr);

Tensor slice_axes(const Tensor& x, const Shape& begin, const Shape& extents, const Shape& steps) {
  return trace_op(slice_op, {x}, {{"begin", begin}, {"extents", extents}, {"steps", steps}});
}

Tensor pad_axes(const Tensor& x, const Shape& before, const Shape& after, const Shape& steps, int64_t value) {
  return trace_op(pad_op, {x}, {{"before", before}, {"after", after}, {"steps", steps}, {"value", value}});
}

// [start, end) of an axis in Python's manner: counted from the end when negative, clamped to the axis.
int64_t clamp_bound(int64_t bound, int64_t extent) {
  return std::clamp(bound < 0 ? bound + extent : bound, int64_t{0}, extent);
}

}  // namespace

Tensor reshape(const Tensor& x, const Shape& shape) {
  require_defined("reshape", {{"x", x}});
  Shape resolved = shape;
  int unknown = -1;
  int64_t known = 1;
  for (int i = 0; i < shape.rank(); ++i) {
    if (shape[i] < -1 || (shape[i] == -1 && unknown >= 0))
      throw_error<ShapeError>("[reshape] shape {} to {}: at most one extent may be -1, the others count elements",
                              to_string(x.shape()), to_string(shape));
    if (shape[i] == -1) {
      unknown = i;
    } else {
      known *= shape[i];
    }
  }
  if (unknown >= 0) {
    if (known == 0 || x.shape().count() % known != 0)
      throw_error<ShapeError>("[reshape] shape {} has {} elements: no extent in place of -1 makes {} fit",
                              to_string(x.shape()), x.shape().count(), to_string(shape));
    resolved[unknown] = x.shape().count() / known;
  }
  return resolved == x.shape() ? x : trace_op(reshape_op, {x}, {{"shape", resolved}});
}

Tensor flatten(const Tensor& x, int64_t first, int64_t last) {
  require_defined("flatten", {{"x", x}});
  if (x.rank() == 0) return reshape(x, {1});
  int begin = normalize_axis("flatten", first, x.rank()), end = normalize_axis("flatten", last, x.rank());
  if (begin > end)
    throw_error<ShapeError>("[flatten] first axis {} comes after last axis {} (input {})", begin, end,
                            to_string(x.shape()));
  Shape shape;
  for (int i = 0; i < x.rank(); ++i) {
    if (i > begin && i <= end) {
      shape[begin] *= x.size(i);
    } else {
      shape.push_back(x.size(i));
    }
  }
  return reshape(x, shape);
}

Tensor squeeze(const Tensor& x, int64_t axis) {
  require_defined("squeeze", {{"x", x}});
  int dropped = normalize_axis("squeeze", axis, x.rank());
  if (x.size(dropped) != 1)
    throw_error<ShapeError>("[squeeze] axis {} of {} has extent {}, only an extent of 1 can be dropped", dropped,
                            to_string(x.shape()), x.size(dropped));
  Shape shape;
  for (int i = 0; i < x.rank(); ++i)
    if (i != dropped) shape.push_back(x.size(i));
  return reshape(x, shape);
}

Tensor unsqueeze(const Tensor& x, int64_t axis) {
  require_defined("unsqueeze", {{"x", x}});
  int added = normalize_axis("unsqueeze", axis, x.rank() + 1);
  Shape shape;
  for (int i = 0; i <= x.rank(); ++i) shape.push_back(i == added ? 1 : x.size(i < added ? i : i - 1));
  return reshape(x, shape);
}

Tensor permute(const Tensor& x, const Shape& axes) {
  require_defined("permute", {{"x", x}});
  Shape normal = axes, shape = x.shape();
  bool seen[Shape::kMaxRank] = {};
  bool fits = axes.rank() == x.rank();
  for (int i = 0; fits && i < axes.rank(); ++i) {
    int axis = normalize_axis("permute", axes[i], x.rank());
    fits = !seen[axis];
    seen[axis] = true;
    normal[i] = axis;
    shape[i] = x.size(axis);
  }
  if (!fits)
    throw_error<ShapeError>("[permute] {} does not name each axis of {} once", to_string(axes), to_string(x.shape()));
  int64_t last = -1;
  bool in_order = true;  // when only axes of extent 1 move, no element does
  for (int64_t axis : normal) {
    if (x.size(static_cast<int>(axis)) == 1) continue;
    in_order = in_order && axis > last;
    last = axis;
  }
  return in_order ? reshape(x, shape) : trace_op(permute_op, {x}, {{"axes", normal}});
}

Tensor transpose(const Tensor& x, int64_t a, int64_t b) {
  require_defined("transpose", {{"x", x}});
  Shape axes;
  for (int i = 0; i < x.rank(); ++i) axes.push_back(i);
  std::swap(axes[normalize_axis("transpose", a, x.rank())], axes[normalize_axis("transpose", b, x.rank())]);
  return permute(x, axes);
}

Tensor broadcast_to(const Tensor& x, const Shape& shape) {
  require_defined("broadcast_to", {{"x", x}});
  return x.shape() == shape ? x : trace_op(broadcast_to_op, {x}, {{"shape", shape}});
}

Tensor concat(std::span<const Tensor> parts, int64_t axis) {
  if (parts.empty()) throw_error<ShapeError>("[concat] there are no parts; expected at least one tensor");
  require_defined("concat", "part", parts);
  DType dtype = parts[0].dtype();
  for (const Tensor& part : parts) dtype = promote(dtype, part.dtype());
  std::vector<Tensor> promoted;
  promoted.reserve(parts.size());
  for (const Tensor& part : parts) promoted.push_back(cast(part, dtype));
  int normal = normalize_axis("concat", axis, parts[0].rank());
  return promoted.size() == 1 ? promoted[0] : trace_op(concat_op, promoted, {{"axis", normal}});
}
Tensor concat(std::initializer_list<Tensor> parts, int64_t axis) {
  return concat(std::span<const Tensor>(parts.begin(), parts.size()), axis);
}

Tensor stack(std::span<const Tensor> parts, int64_t axis) {
  require_defined("stack", "part", parts);
  std::vector<Tensor> raised;
  raised.reserve(parts.size());
  for (const Tensor& part : parts) raised.push_back(unsqueeze(part, axis));
  return concat(raised, axis);
}
Tensor stack(std::initializer_list<Tensor> parts, int64_t axis) {
  return stack(std::span<const Tensor>(parts.begin(), parts.size()), axis);
}

std::vector<Tensor> split(const Tensor& x, std::span<const int64_t> sizes, int64_t axis) {
  require_defined("split", {{"x", x}});
  int normal = normalize_axis("split", axis, x.rank());
  int64_t total = 0;
  bool fits = true;
  for (int64_t size : sizes) {
    fits = fits && size >= 0;
    total += size;
  }
  if (!fits || total != x.size(normal) || sizes.empty())
    throw_error<ShapeError>("[split] {} parts of {} elements in all do not make up axis {} of {}", sizes.size(), total,
                            normal, to_string(x.shape()));
  if (sizes.size() == 1) return {x};
  Tensors parts = trace_op_all(split_op, {x}, {{"sizes", sizes}, {"axis", normal}});
  return {parts.begin(), parts.end()};
}
std::vector<Tensor> split(const Tensor& x, std::initializer_list<int64_t> sizes, int64_t axis) {
  return split(x, std::span<const int64_t>(sizes.begin(), sizes.size()), axis);
}
std::vector<Tensor> split(const Tensor& x, int64_t chunk, int64_t axis) {
  require_defined("split", {{"x", x}});
  int normal = normalize_axis("split", axis, x.rank());
  if (chunk < 1) throw_error<ShapeError>("[split] the chunk size is {}, expected at least 1", chunk);
  std::vector<int64_t> sizes;
  for (int64_t left = x.size(normal); left > 0; left -= chunk) sizes.push_back(std::min(left, chunk));
  if (sizes.empty()) return {x};
  return split(x, sizes, axis);
}

Tensor slice(const Tensor& x, int64_t axis, int64_t begin, int64_t end, int64_t step) {
  require_defined("slice", {{"x", x}});
  int normal = normalize_axis("slice", axis, x.rank());
  if (step < 1)
    throw_error<ShapeError>("[slice] the step is {}, expected at least 1 (axis {} of {})", step, normal,
                            to_string(x.shape()));
  int64_t extent = x.size(normal);
  int64_t first = clamp_bound(begin, extent), past = std::max(first, clamp_bound(end, extent));
  if (first == 0 && past == extent && step == 1) return x;
  Shape begins, extents = x.shape(), steps;
  for (int i = 0; i < x.rank(); ++i) {
    begins.push_back(i == normal ? first : 0);
    steps.push_back(i == normal ? step : 1);
  }
  extents[normal] = past == first ? 0 : (past - first - 1) / step + 1;
  return slice_axes(x, begins, extents, steps);
}

Tensor pad(const Tensor& x, std::span<const Padding> paddings, int64_t value) {
  require_defined("pad", {{"x", x}});
  Shape before, after, steps;
  bool fits = paddings.size() == static_cast<size_t>(x.rank()), any = false;
  for (const Padding& padding : paddings) {
    before.push_back(padding.before);
    after.push_back(padding.after);
    steps.push_back(1);
    fits = fits && padding.before >= 0 && padding.after >= 0;
    any = any || padding.before > 0 || padding.after > 0;
  }
  if (!fits)
    throw_error<ShapeError>("[pad] {} before and {} after do not fit {}: each axis needs two counts of at least 0",
                            to_string(before), to_string(after), to_string(x.shape()));
  return any ? pad_axes(x, before, after, steps, value) : x;
}
Tensor pad(const Tensor& x, std::initializer_list<Padding> paddings, int64_t value) {
  return pad(x, std::span<const Padding>(paddings.begin(), paddings.size()), value);
}

Tensor copy_to(const Tensor& x, Device device) {
  require_defined("copy_to", {{"x", x}});
  return x.to(device);
}

}  // namespace bonfire
