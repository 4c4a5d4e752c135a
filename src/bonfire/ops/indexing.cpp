#include "bonfire/ops/indexing.h"

#include "bonfire/base/error.h"
#include "bonfire/graph/node.h"
#include "bonfire/graph/op.h"
#include "bonfire/graph/sharding.h"
#include "bonfire/ops/checks.h"

namespace bonfire {

namespace {

using Context = const GradientContext&;

void require_index(const InferContext& context, size_t input) {
  DType dtype = context.input(input).dtype;
  if (dtype != DType::i32 && dtype != DType::i64)
    throw_error<ShapeError>("[{}] the index must be i32 or i64, inputs are ({})", context.op.name,
                            describe_inputs(context));
  if (context.input(input).device != context.input(0).device)
    throw_error<ShapeError>("[{}] inputs live on different devices ({}); move one with to(device)", context.op.name,
                            describe_inputs(context));
}

// gather and scatter_add: an index has the rank of the data and reaches no further on the other axes.
void require_index_within(const InferContext& context, const Shape& index, const Shape& data) {
  int axis = static_cast<int>(context.attributes.integer("axis"));
  bool fits = index.rank() == data.rank();
  for (int i = 0; fits && i < data.rank(); ++i) fits = i == axis || index[i] <= data[i];
  if (!fits)
    throw_error<ShapeError>("[{}] index {} must have as many axes as {} and be no larger but for axis {}",
                            context.op.name, to_string(index), to_string(data), axis);
}

OutputSpecs infer_gather(const InferContext& context) {
  require_index(context, 1);
  require_index_within(context, context.input(1).shape, context.input(0).shape);
  TensorSpec spec = context.input(0);
  spec.shape = context.input(1).shape;
  return {spec};
}

OutputSpecs infer_scatter_add(const InferContext& context) {
  require_index(context, 1);
  TensorSpec spec = context.input(0);
  if (context.input(1).shape != spec.shape)
    throw_error<ShapeError>("[scatter_add] values {} and index {} must have the same shape", to_string(spec.shape),
                            to_string(context.input(1).shape));
  spec.shape = context.attributes.ints("shape");
  require_index_within(context, context.input(1).shape, spec.shape);
  return {spec};
}

OutputSpecs infer_index_select(const InferContext& context) {
  require_index(context, 1);
  if (context.input(1).shape.rank() != 1)
    throw_error<ShapeError>("[index_select] the index must have one axis, inputs are ({})", describe_inputs(context));
  TensorSpec spec = context.input(0);
  spec.shape[static_cast<int>(context.attributes.integer("axis"))] = context.input(1).shape[0];
  return {spec};
}

OutputSpecs infer_index_add(const InferContext& context) {
  require_index(context, 1);
  TensorSpec spec = context.input(0);
  spec.shape[static_cast<int>(context.attributes.integer("axis"))] = context.attributes.integer("extent");
  return {spec};
}

OutputSpecs infer_embedding(const InferContext& context) {
  require_index(context, 1);
  TensorSpec spec = context.input(0);
  if (spec.shape.rank() != 2)
    throw_error<ShapeError>("[embedding] the weight must be [rows, columns], inputs are ({})",
                            describe_inputs(context));
  int64_t columns = spec.shape[1];
  spec.shape = context.input(1).shape;
  spec.shape.push_back(columns);
  return {spec};
}

OutputSpecs infer_embedding_gradient(const InferContext& context) {
  require_index(context, 1);
  TensorSpec spec = context.input(0);
  spec.shape = {context.attributes.integer("rows"), spec.shape[-1]};
  return {spec};
}

// dy, ids, start → start with the rows of dy added to those that ids name.
OutputSpecs infer_embedding_gradient_add(const InferContext& context) {
  OutputSpecs rows = infer_embedding_gradient(context);
  if (!(context.input(2) == rows[0]))
    throw_error<ShapeError>("[embedding_gradient_add] expected {} to add to, inputs are ({})", to_string(rows[0].shape),
                            describe_inputs(context));
  return rows;
}

OutputSpecs infer_one_hot(const InferContext& context) {
  require_index(context, 0);
  TensorSpec spec = context.input(0);
  spec.shape.push_back(context.attributes.integer("classes"));
  spec.dtype = context.attributes.dtype("dtype");
  return {spec};
}

// --- tables of which each rank has some rows, or some columns ---

// Which of the ids name rows of this rank's, and these rows' places here; 0 for the others.
struct OwnRows {
  GraphValue are, places;
};

OwnRows own_rows(ShardBuilder& b, GraphValue ids, int64_t rows, int64_t padding_index) {
  const DType dtype = ids.spec().dtype;
  const TensorSpec number{{}, dtype, ids.spec().device}, flags{ids.spec().shape, DType::boolean, ids.spec().device};
  const int64_t first = b.context().place * rows;
  const GraphValue here = b.add("sub", {ids, b.constant(first, number)}), none = b.constant(0, flags);
  GraphValue are = b.add(
      "where", {b.add("less", {here, b.constant(0, number)}), none, b.add("less", {here, b.constant(rows, number)})});
  if (padding_index >= 0) are = b.add("where", {b.add("equal", {ids, b.constant(padding_index, number)}), none, are});
  return {are, b.add("where", {are, here, b.constant(0, {ids.spec().shape, dtype, ids.spec().device})})};
}

// The rows where ids name one of this rank's; elsewhere 0.
GraphValue rows_where(ShardBuilder& b, GraphValue are, GraphValue rows) {
  Shape shape = are.spec().shape;
  shape.push_back(1);
  TensorSpec zero = rows.spec();
  zero.shape = {};
  return b.add("where", {b.reshape(are, shape), rows, b.constant(0, zero)});
}

ShardRuleResult shard_embedding(const ShardContext& c) {
  const Sharding& table = c.shardings[0];
  ShardAnswer answer = c.on_whole();
  answer.inputs[0] = table;
  if (table.is_split(1)) {
    answer.outputs[0] = Sharding::split(c.outputs[0].shape.rank() - 1, table.blocks);
    return answer;
  }
  if (!table.is_split(0) || table.blocks != 1) return {};
  answer.outputs[0] = Sharding::partial();
  answer.build = [](ShardBuilder& b) -> std::vector<GraphValue> {
    const OwnRows rows = own_rows(b, b.input(1), b.input(0).spec().shape[0], -1);
    return {rows_where(b, rows.are, b.add("embedding", {b.input(0), rows.places}, b.context().attributes))};
  };
  return answer;
}

ShardRuleResult shard_embedding_gradient(const ShardContext& c) {
  ShardAnswer answer = c.on_whole();
  if (const Sharding& dy = c.shardings[0]; dy.is_split(c.inputs[0].shape.rank() - 1)) {
    answer.inputs[0] = dy;
    answer.outputs[0] = Sharding::split(1, dy.blocks);
    return answer;
  }
  if (c.wanted != Sharding::split(0) || !c.can_split(c.outputs[0].shape, *c.wanted)) return {};
  answer.outputs[0] = *c.wanted;
  answer.build = [](ShardBuilder& b) -> std::vector<GraphValue> {
    const Attributes& whole = b.context().attributes;
    const int64_t count = whole.integer("rows") / b.context().parts;
    const OwnRows rows = own_rows(b, b.input(1), count, whole.integer("padding_index"));
    return {b.add("embedding_gradient", {rows_where(b, rows.are, b.input(0)), rows.places},
                  {{"rows", count}, {"padding_index", -1}})};
  };
  return answer;
}

extern const Op& index_add_op;
extern const Op& embedding_gradient_op;

Tensors gather_gradient(Context c) {
  return {scatter_add(c.gradient(), c.attributes().integer("axis"), c.input(1), c.input_spec(0).shape), Tensor()};
}
Tensors scatter_add_gradient(Context c) {
  return {gather(c.gradient(), c.attributes().integer("axis"), c.input(1)), Tensor()};
}
Tensors index_select_gradient(Context c) {
  int64_t axis = c.attributes().integer("axis");
  int64_t extent = c.input_spec(0).shape[static_cast<int>(axis)];
  return {trace_op(index_add_op, {c.gradient(), c.input(1)}, {{"axis", axis}, {"extent", extent}}), Tensor()};
}
Tensors index_add_gradient(Context c) {
  return {index_select(c.gradient(), c.attributes().integer("axis"), c.input(1)), Tensor()};
}
Tensors embedding_rule(Context c) {
  return {trace_op(embedding_gradient_op, {c.gradient(), c.input(1)},
                   {{"rows", c.input_spec(0).shape[0]}, {"padding_index", c.attributes().integer("padding_index")}}),
          Tensor()};
}

// Gradients add up many small terms, so mixed precision keeps them in f32.
const Op& make_op(const char* name, InferRule infer, GradientRule gradient, AmpRule amp = AmpRule::follow,
                  ShardRule shard = nullptr) {
  return register_op({.name = name, .infer = infer, .gradient = gradient, .shard = shard, .amp = amp});
}

const Op& gather_op = make_op("gather", infer_gather, gather_gradient);
const Op& scatter_add_op = make_op("scatter_add", infer_scatter_add, scatter_add_gradient, AmpRule::full);
const Op& index_select_op = make_op("index_select", infer_index_select, index_select_gradient);
const Op& index_add_op = make_op("index_add", infer_index_add, index_add_gradient, AmpRule::full);
const Op& embedding_op = make_op("embedding", infer_embedding, embedding_rule, AmpRule::follow, shard_embedding);
const Op& embedding_gradient_op =
    make_op("embedding_gradient", infer_embedding_gradient, nullptr, AmpRule::full, shard_embedding_gradient);
const Op& embedding_gradient_add_op =
    make_op("embedding_gradient_add", infer_embedding_gradient_add, nullptr, AmpRule::full);
const Op& one_hot_op = make_op("one_hot", infer_one_hot, nullptr);

}  // namespace

Tensor gather(const Tensor& x, int64_t axis, const Tensor& index) {
  require_defined("gather", {{"x", x}});
  return trace_op(gather_op, {x, index}, {{"axis", normalize_axis("gather", axis, x.rank())}});
}

Tensor scatter_add(const Tensor& x, int64_t axis, const Tensor& index, const Shape& shape) {
  require_defined("scatter_add", {{"x", x}});
  return trace_op(scatter_add_op, {x, index},
                  {{"axis", normalize_axis("scatter_add", axis, x.rank())}, {"shape", shape}});
}

Tensor index_select(const Tensor& x, int64_t axis, const Tensor& index) {
  require_defined("index_select", {{"x", x}});
  return trace_op(index_select_op, {x, index}, {{"axis", normalize_axis("index_select", axis, x.rank())}});
}

Tensor embedding(const Tensor& weight, const Tensor& ids, EmbeddingOptions options) {
  return trace_op(embedding_op, {weight, ids}, {{"padding_index", options.padding_index}});
}

Tensor one_hot(const Tensor& ids, int64_t classes, DType dtype) {
  if (classes < 1) throw_error<ShapeError>("[one_hot] the number of classes is {}, expected at least 1", classes);
  return trace_op(one_hot_op, {ids}, {{"classes", classes}, {"dtype", dtype}});
}

}  // namespace bonfire
