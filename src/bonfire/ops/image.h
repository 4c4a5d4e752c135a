#pragma once
// From stored pictures to what networks read.
//
// Op: normalize_image(pixels u8, mean f32 [C], deviation f32 [C]) → [N, C, H, W], (pixel / 255 − mean) / deviation
//   attributes: dtype (f32 or bf16: the result's), channels_last (1: pixels are [N, H, W, C], 0: [N, C, H, W]).
//   No gradient; AmpRule::full.

#include "bonfire/graph/tensor.h"

namespace bonfire {

struct NormalizeImageOptions {
  bool channels_last = false;  // pixels are [N, H, W, C] instead of [N, C, H, W]
  DType dtype = DType::f32;    // of the result; f32 or bf16
};

// pixels u8, mean and deviation f32 [C] (of pixels scaled to 0 … 1) → [N, C, H, W].
Tensor normalize_image(const Tensor& pixels, const Tensor& mean, const Tensor& deviation,
                       const NormalizeImageOptions& options = {});

}  // namespace bonfire
