#pragma once
// The innermost loops of winograd_kernel.h, written once over a vector type and compiled once per instruction set. As
// in gemm_kernel_template.h, `Isa` is a type of an unnamed namespace, and nothing here calls an inline function that
// ordinary files share.
//
// Isa names: Scalar (float), bytes (of a vector), mr (rows of a product whose sum runs over channels), channel_rows
// (rows, when it runs over tiles; divides the lanes), vectors (of a panel), a_by_lane (as in gemm_kernel_template.h).

#include "bonfire/backend/cpu/winograd_kernel.h"
#include "bonfire/backend/cpu/winograd_products_template.h"
#include "bonfire/backend/cpu/winograd_transforms_template.h"

namespace bonfire::cpu {

template <class Isa, int Tile, int Kernel>
WinogradKernel winograd_table() {
  using Products = WinogradProducts<Isa>;
  using Transforms = WinogradTransforms<Isa, Tile, Kernel>;
  using Lines = typename Transforms::Lines;
  static_assert(Products::kLanes <= kMaxWinogradLanes && Kernel <= kMaxWinogradKernel);
  return {.tile = Tile,
          .kernel = Kernel,
          .lanes = Products::kLanes,
          .panel = Products::kPanel,
          .rows = Isa::mr,
          .transform_patch = &Transforms::template spread<typename Lines::Patch>,
          .transform_gradient = &Transforms::template spread<typename Lines::ResultGradient>,
          .transform_weights = &Transforms::transform_weights,
          .transpose = &Transforms::transpose,
          .multiply = &Products::multiply,
          .multiply_over_tiles = &Products::multiply_over_tiles,
          .finish = &Transforms::finish,
          .finish_weights = &Transforms::finish_weights};
}

template <class Isa>
WinogradKernels winograd_kernels() {
  return {winograd_table<Isa, 2, 3>(), winograd_table<Isa, 4, 3>(), winograd_table<Isa, 2, 5>()};
}

}  // namespace bonfire::cpu
