#include "bonfire/ops/random.h"

#include "bonfire/base/error.h"
#include "bonfire/graph/op.h"
#include "bonfire/graph/trace.h"

namespace bonfire {

namespace {

OutputSpecs infer_random(const InferContext& context) {  // key
  DType dtype = context.attributes.dtype("dtype");
  if (!is_floating(dtype))
    throw_error<ShapeError>("[{}] the type is {}, expected a floating one", context.op.name, name_of(dtype));
  return {{context.attributes.ints("shape"), dtype, context.input(0).device}};
}

const Op& uniform_random_op = register_op({.name = "uniform_random", .infer = infer_random, .traits = Trait::random});
const Op& normal_random_op = register_op({.name = "normal_random", .infer = infer_random, .traits = Trait::random});

Tensor random_tensor(const Op& op, const Shape& shape, DType dtype, Device device) {
  Trace& trace = Trace::current();
  return trace_op(op, {Tensor(trace.random_key(device))},
                  {{"shape", shape}, {"dtype", dtype}, {"number", trace.next_random_number()}});
}

}  // namespace

Tensor uniform_random(const Shape& shape, DType dtype, Device device) {
  return random_tensor(uniform_random_op, shape, dtype, device);
}
Tensor normal_random(const Shape& shape, DType dtype, Device device) {
  return random_tensor(normal_random_op, shape, dtype, device);
}

}  // namespace bonfire
