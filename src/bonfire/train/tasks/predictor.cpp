#include "bonfire/train/tasks/predictor.h"

#include "bonfire/ops/softmax.h"

namespace bonfire::train {

std::vector<std::vector<Guess>> Predictor::guesses(std::span<const data::Array> images, size_t most) const {
  std::vector<std::vector<Guess>> all;
  auto compute = [&](const models::Model& model, const Tensor& pixels) -> std::vector<Tensor> {
    return {model(run_.input().normalized(pixels))};
  };
  const size_t classes = class_names().size();
  run_.for_each_batch(images, compute, [&](std::span<const Tensor> results, size_t count) {
    const std::vector<float> values = results[0].to_vector<float>();
    const std::vector<float> shares = softmax(results[0].to(DType::f32), -1).to_vector<float>();
    for (size_t i = 0; i < count; ++i)
      all.push_back(likeliest(std::span(values).subspan(i * classes, classes),
                              std::span(shares).subspan(i * classes, classes), most));
  });
  return all;
}

}  // namespace bonfire::train
