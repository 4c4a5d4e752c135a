#pragma once
// What the forward and backward kernels of batch norm share. Private to backend/cpu.

#include <cmath>
#include <vector>

#include "bonfire/backend/cpu/ops/channel_loops.h"
#include "bonfire/backend/cpu/simd/floating.h"
#include "bonfire/kernel/kernel.h"

namespace bonfire::cpu {

// A [channels] operand of f32, f64 or bf16, or none (null).
struct ChannelNumbers {
  const void* data;
  DType dtype;

  double operator[](int64_t channel) const {
    switch (dtype) {
      case DType::f64: return static_cast<const double*>(data)[channel];
      case DType::bf16: return static_cast<double>(static_cast<const bfloat16*>(data)[channel]);
      default: return static_cast<double>(static_cast<const float*>(data)[channel]);
    }
  }
};

// table [3, channels]: mean, weight / √(variance + eps), bias. A missing weight is 1, a missing bias 0.
template <class Acc>
void fill_affine(int64_t channels, double eps, const Acc* mean, const Acc* variance, const ChannelNumbers& weight,
                 const ChannelNumbers& bias, Acc* table) {
  for (int64_t c = 0; c < channels; ++c) {
    double scale = weight.data == nullptr ? 1 : weight[c];
    table[c] = mean[c];
    table[channels + c] = static_cast<Acc>(scale / std::sqrt(static_cast<double>(variance[c]) + eps));
    table[2 * channels + c] = bias.data == nullptr ? Acc(0) : static_cast<Acc>(bias[c]);
  }
}

template <class Body>
void set_body(Candidate& candidate, Body body) {
  candidate.build = [body = std::move(body)] { return std::make_unique<FunctionKernel<Body>>(body); };
}

// A candidate with everything of rank 4 row-major, or channels-last.
inline Candidate image_candidate(const KernelRequest& request, bool last) {
  Candidate candidate = row_major_candidate(request, last ? "nhwc" : "nchw");
  if (!last) return candidate;
  for (size_t i = 0; i < request.node.inputs.size(); ++i)
    if (request.node.inputs[i].spec().shape.rank() == 4) candidate.input_layouts[i] = channels_last();
  for (size_t i = 0; i < request.node.outputs.size(); ++i)
    if (request.node.outputs[i].shape.rank() == 4) candidate.output_layouts[i] = channels_last();
  return candidate;
}

// Candidates "nchw" and, for images, "nhwc". fill(TypeTag, node, extent, candidate) sets what remains: kernel,
// workspace and what may be in place. Input number `input` is x.
template <class Fill>
std::vector<Candidate> batch_norm_candidates(const KernelRequest& request, size_t input, const Fill& fill) {
  const TensorSpec& x = request.node.inputs[input].spec();
  return for_floating(x.dtype, [&](auto tag) {
    std::vector<Candidate> candidates;
    for (bool last : {false, true}) {
      if (last && x.shape.rank() != 4) break;
      Candidate candidate = image_candidate(request, last);
      fill(tag, request.node, channel_extent(x.shape, last), candidate);
      candidates.push_back(std::move(candidate));
    }
    return candidates;
  });
}

}  // namespace bonfire::cpu
