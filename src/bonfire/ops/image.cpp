#include "bonfire/ops/image.h"

#include "bonfire/base/error.h"
#include "bonfire/graph/op.h"
#include "bonfire/ops/checks.h"

namespace bonfire {

namespace {

OutputSpecs infer_normalize_image(const InferContext& context) {
  require_one_device(context);
  require_rank(context, 0, "pixels", 4);
  require_dtype(context, 0, "pixels", DType::u8);
  TensorSpec result = context.input(0);
  const Shape& pixels = context.input(0).shape;
  if (context.attributes.flag("channels_last")) result.shape = {pixels[0], pixels[3], pixels[1], pixels[2]};
  for (size_t i : {1, 2}) {
    require_shape(context, i, i == 1 ? "mean" : "deviation", {result.shape[1]});
    require_dtype(context, i, i == 1 ? "mean" : "deviation", DType::f32);
  }
  result.dtype = context.attributes.dtype("dtype");
  if (result.dtype != DType::f32 && result.dtype != DType::bf16)
    throw_error<ShapeError>("[normalize_image] the result cannot be {}, only f32 or bf16", name_of(result.dtype));
  return {result};
}

const Op& normalize_image_op =
    register_op({.name = "normalize_image", .infer = infer_normalize_image, .amp = AmpRule::full});

}  // namespace

Tensor normalize_image(const Tensor& pixels, const Tensor& mean, const Tensor& deviation,
                       const NormalizeImageOptions& options) {
  return trace_op(normalize_image_op, {pixels, mean, deviation},
                  {{"dtype", options.dtype}, {"channels_last", options.channels_last}});
}

}  // namespace bonfire
