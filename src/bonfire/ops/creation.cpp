#include "bonfire/ops/creation.h"

#include "bonfire/base/error.h"
#include "bonfire/graph/node.h"
#include "bonfire/graph/op.h"
#include "bonfire/ops/checks.h"
#include "bonfire/ops/shape_ops.h"

namespace bonfire {

namespace {

Device device_attribute(const Attributes& attributes) {
  return {static_cast<DeviceType>(attributes.integer("device_type")),
          static_cast<int16_t>(attributes.integer("device_index"))};
}

OutputSpecs infer_constant(const InferContext& context) {
  Shape shape = context.attributes.ints("shape");
  for (int64_t extent : shape)
    if (extent < 0) throw_error<ShapeError>("[{}] shape {} has a negative extent", context.op.name, to_string(shape));
  return {{shape, context.attributes.dtype("dtype"), device_attribute(context.attributes)}};
}

OutputSpecs infer_arange(const InferContext& context) {
  return {
      {{context.attributes.integer("count")}, context.attributes.dtype("dtype"), device_attribute(context.attributes)}};
}

const Op& constant_op =
    register_op({.name = "constant", .infer = infer_constant, .traits = Trait::constant | Trait::cheap});
const Op& arange_op = register_op({.name = "arange", .infer = infer_arange, .traits = Trait::constant | Trait::cheap});

}  // namespace

Tensor constant(int64_t value, const TensorSpec& spec) {
  return trace_op(constant_op, {},
                  {{"shape", spec.shape},
                   {"value", value},
                   {"dtype", spec.dtype},
                   {"device_type", static_cast<int>(spec.device.type)},
                   {"device_index", spec.device.index}});
}
Tensor zeros(const Shape& shape, DType dtype, Device device) { return constant(0, {shape, dtype, device}); }
Tensor ones(const Shape& shape, DType dtype, Device device) { return constant(1, {shape, dtype, device}); }
Tensor zeros_like(const Tensor& x) {
  require_defined("zeros_like", {{"x", x}});
  return constant(0, x.spec());
}
Tensor ones_like(const Tensor& x) {
  require_defined("ones_like", {{"x", x}});
  return constant(1, x.spec());
}

Tensor full(const Shape& shape, const Scalar& value, DType dtype, Device device) {
  return broadcast_to(value.tensor(dtype, device), shape);
}

Tensor arange(int64_t begin, int64_t end, ArangeOptions options) {
  if (options.step == 0) throw_error<ShapeError>("[arange] the step is 0; expected a step towards the end");
  int64_t step = options.step, away = step > 0 ? 1 : -1;
  int64_t count = (end - begin) * away > 0 ? (end - begin + step - away) / step : 0;
  return trace_op(arange_op, {},
                  {{"begin", begin},
                   {"step", step},
                   {"count", count},
                   {"dtype", options.dtype},
                   {"device_type", static_cast<int>(options.device.type)},
                   {"device_index", options.device.index}});
}

}  // namespace bonfire
