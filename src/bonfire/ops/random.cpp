#include "bonfire/ops/random.h"

#include "bonfire/base/error.h"
#include "bonfire/graph/op.h"
#include "bonfire/graph/trace.h"
#include "bonfire/ops/random_places.h"

namespace bonfire {

namespace {

OutputSpecs infer_random(const InferContext& context) {  // key
  DType dtype = context.attributes.dtype("dtype");
  if (!is_floating(dtype))
    throw_error<ShapeError>("[{}] the type is {}, expected a floating one", context.op.name, name_of(dtype));
  const Shape shape = context.attributes.ints("shape");
  require_slice(context, shape);
  return {{shape, dtype, context.input(0).device}};
}

const Op& uniform_random_op = register_op({.name = "uniform_random", .infer = infer_random, .traits = Trait::random});
const Op& normal_random_op = register_op({.name = "normal_random", .infer = infer_random, .traits = Trait::random});

Tensor random_tensor(const Op& op, const Shape& shape, DType dtype, Device device, const RandomSlice& slice) {
  Trace& trace = Trace::current();
  Attributes attributes{{"shape", shape}, {"dtype", dtype}, {"number", trace.next_random_number()}};
  set_slice(attributes, slice);
  return trace_op(op, {Tensor(trace.random_key(device))}, std::move(attributes));
}

}  // namespace

Tensor uniform_random(const Shape& shape, DType dtype, Device device, const RandomSlice& slice) {
  return random_tensor(uniform_random_op, shape, dtype, device, slice);
}
Tensor normal_random(const Shape& shape, DType dtype, Device device, const RandomSlice& slice) {
  return random_tensor(normal_random_op, shape, dtype, device, slice);
}

}  // namespace bonfire
