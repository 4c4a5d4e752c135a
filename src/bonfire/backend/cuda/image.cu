// Stored pictures to what networks read: (pixel / 255 − mean) / deviation, channels last where that is how they lie.
#include "bonfire/backend/cuda/candidate.h"
#include "bonfire/backend/cuda/numbers.cuh"

namespace bonfire::cuda {

namespace {

constexpr int kThreads = 256;

template <class T>
__global__ void __launch_bounds__(kThreads) normalize(const uint8_t* pixels, const float* mean, const float* deviation,
                                                      uint32_t count, uint32_t channels, uint32_t inner, T* y) {
  uint32_t i = blockIdx.x * kThreads + threadIdx.x;
  if (i >= count) return;
  uint32_t c = i / inner % channels;
  y[i] = store<T>((static_cast<float>(pixels[i]) / 255.0F - mean[c]) / deviation[c]);
}

// The result lies as the pixels do, so nothing moves.
std::vector<Candidate> candidates(const KernelRequest& request) {
  const TensorSpec& y = request.node.outputs[0];
  bool last = request.node.attributes.flag("channels_last");
  auto count = static_cast<uint32_t>(y.shape.count()), channels = static_cast<uint32_t>(y.shape[1]);
  uint32_t inner = last ? 1 : static_cast<uint32_t>(y.shape[2] * y.shape[3]);
  std::vector<Candidate> list = one_candidate(request, [=, dtype = y.dtype](const Run& run) {
    if (count == 0) return;
    dispatch_floating(dtype, [&](auto tag) {
      using T = typename decltype(tag)::type;
      normalize<T><<<blocks_for(count, kThreads), kThreads, 0, stream_of(run)>>>(
          run.input<uint8_t>(0), run.input<float>(1), run.input<float>(2), count, channels, inner, run.output<T>(0));
    });
    check(cudaGetLastError(), "normalize_image");
  });
  if (last) list[0].output_layouts[0] = channels_last();
  return list;
}

const bool registered = register_kernel("normalize_image", DeviceType::cuda, candidates);

}  // namespace

}  // namespace bonfire::cuda
