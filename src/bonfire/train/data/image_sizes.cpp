#include "bonfire/train/data/image_sizes.h"

#include <fmt/format.h>

#include "bonfire/base/error.h"
#include "bonfire/graph/trace.h"

namespace bonfire::train {

namespace {

// Why the model cannot take them; empty when it can.
std::string refusal(const models::Model& model, const Shape& image) {  // [H, W, C]
  Trace trace;
  TraceScope scope(trace);
  std::vector<float> pixels(static_cast<size_t>(image.count()));
  try {
    model.outputs(Tensor::from<float>(pixels, {1, image[2], image[0], image[1]}));
  } catch (const ShapeError& error) {
    return error.what();
  }
  return {};
}

// "28 x 28 only", "63 x 63 and larger"; tried up to 256.
std::string sizes_taken(const models::Model& model, int64_t channels, int64_t& smallest) {
  constexpr int64_t kLargest = 256;
  int64_t largest = 0;
  for (int64_t size = 1; size <= kLargest; ++size) {
    if (!refusal(model, {size, size, channels}).empty()) continue;
    if (largest == 0) smallest = size;
    largest = size;
  }
  if (largest == 0) return fmt::format("none up to {0} x {0}", kLargest);
  if (largest == smallest) return fmt::format("{0} x {0} only", smallest);
  if (largest == kLargest) return fmt::format("{0} x {0} and larger", smallest);
  return fmt::format("{0} x {0} to {1} x {1}", smallest, largest);
}

}  // namespace

void require_size(const models::Model& model, const std::string& name, const Shape& image) {
  NoGrad no_grad;
  const bool training = model.training();
  model.eval();
  if (std::string why = refusal(model, image); !why.empty()) {
    int64_t smallest = 0;
    std::string sizes = sizes_taken(model, image[2], smallest);
    throw_error<ConfigError>(
        "[train] {} cannot take images of {} x {}; it takes {}: add image_size={}, or choose another model ({})", name,
        image[0], image[1], sizes, smallest, why);
  }
  model.train(training);
}

}  // namespace bonfire::train
