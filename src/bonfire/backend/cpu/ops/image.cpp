// uint8 images → normalised floats: (pixel / 255 − mean) / deviation = pixel · scale + shift.

#include "bonfire/kernel/kernel.h"

namespace bonfire::cpu {

namespace {

// Elements of pixels and of the result, for channels in the middle ([N, C, H, W]) or last ([N, H, W, C]).
struct ImageStrides {
  int64_t image, channel, pixel;
  ImageStrides(int64_t channels, int64_t pixels, bool last)
      : image(channels * pixels), channel(last ? 1 : pixels), pixel(last ? channels : 1) {}
};

template <class T>
void normalize(const Shape& shape, bool from_last, bool to_last, const Run& run) {
  int64_t channels = shape[1], pixels = shape[2] * shape[3];
  ImageStrides from(channels, pixels, from_last), to(channels, pixels, to_last);
  const uint8_t* source = run.input<uint8_t>(0);
  const float *mean = run.input<float>(1), *deviation = run.input<float>(2);
  T* target = run.output<T>();
  float* scale = static_cast<float*>(run.workspace);  // [channels]
  float* shift = scale + channels;                    // [channels]
  for (int64_t c = 0; c < channels; ++c) {
    scale[c] = 1.0F / (255.0F * deviation[c]);
    shift[c] = -mean[c] / deviation[c];
  }
  run.threads->parallel_for(shape[0] * channels, 1 + 16384 / (pixels + 1), [&](int64_t plane, int64_t end) {
    for (; plane < end; ++plane) {
      int64_t image = plane / channels, c = plane % channels;
      const uint8_t* in = source + image * from.image + c * from.channel;
      T* out = target + image * to.image + c * to.channel;
      float a = scale[c], b = shift[c];
      if (from.pixel == 1 && to.pixel == 1) {
        for (int64_t i = 0; i < pixels; ++i) out[i] = static_cast<T>(static_cast<float>(in[i]) * a + b);
      } else {
        for (int64_t i = 0; i < pixels; ++i)
          out[i * to.pixel] = static_cast<T>(static_cast<float>(in[i * from.pixel]) * a + b);
      }
    }
  });
}

std::vector<Candidate> image_candidates(const KernelRequest& request) {
  std::vector<Candidate> candidates;
  for (bool last : {false, true}) {
    auto body = [last, shape = request.node.outputs[0].shape, dtype = request.node.outputs[0].dtype,
                 from_last = request.node.attributes.flag("channels_last")](const Run& run) {
      if (dtype == DType::bf16) {
        normalize<bfloat16>(shape, from_last, last, run);
      } else {
        normalize<float>(shape, from_last, last, run);
      }
    };
    Candidate candidate = make_candidate(request, last ? "to_nhwc" : "to_nchw", body);
    if (last) candidate.output_layouts[0] = channels_last();
    candidate.workspace_bytes = static_cast<size_t>(request.node.outputs[0].shape[1]) * 2 * sizeof(float);
    candidates.push_back(std::move(candidate));
  }
  return candidates;
}

const bool registered = register_kernel("normalize_image", DeviceType::cpu, image_candidates);

}  // namespace

}  // namespace bonfire::cpu
