#pragma once
// The innermost loops of winograd_kernel.h, written once over a vector type and compiled once per instruction set. As
// in gemm_kernel_template.h, `Isa` is a type of an unnamed namespace, and nothing here calls an inline function that
// ordinary files share.
//
// Isa names: Scalar (float), bytes (of a vector), mr (rows of a product whose sum runs over channels), channel_rows
// (rows, when it runs over tiles; divides the lanes), vectors (of a panel), a_by_lane (as in gemm_kernel_template.h).

#include "bonfire/backend/cpu/convolution/winograd_kernel.h"
#include "bonfire/backend/cpu/convolution/winograd_products_template.h"
#include "bonfire/backend/cpu/convolution/winograd_transforms_template.h"

namespace bonfire::cpu {

template <class Transforms, class Element>
WinogradMemory<Element> winograd_memory() {
  using Lines = typename Transforms::Lines;
  return {.transform_patch = &Transforms::template spread<typename Lines::Patch, Element>,
          .transform_gradient = &Transforms::template spread<typename Lines::ResultGradient, Element>,
          .copy = &Transforms::template copy<Element>,
          .transpose = &Transforms::template transpose<Element>,
          .finish = &Transforms::template finish<Element>,
          .finish_weights = &Transforms::template finish_weights<Element>};
}

template <class Isa, int Tile, int Kernel>
WinogradKernel winograd_table() {
  using Products = WinogradProducts<Isa>;
  using Transforms = WinogradTransforms<Isa, Tile, Kernel>;
  static_assert(Products::kLanes <= kMaxWinogradLanes && Kernel <= kMaxWinogradKernel);
  return {.tile = Tile,
          .kernel = Kernel,
          .lanes = Products::kLanes,
          .panel = Products::kPanel,
          .rows = Isa::mr,
          .transform_weights = &Transforms::transform_weights,
          .multiply = &Products::multiply,
          .multiply_over_tiles = &Products::multiply_over_tiles,
          .f32 = winograd_memory<Transforms, float>(),
          .bf16 = winograd_memory<Transforms, uint16_t>()};
}

template <class Isa>
WinogradKernels winograd_kernels() {
  return {winograd_table<Isa, 2, 3>(), winograd_table<Isa, 4, 3>(), winograd_table<Isa, 2, 5>()};
}

}  // namespace bonfire::cpu
