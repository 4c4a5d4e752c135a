// Small images and few samples leave AlexNet's last convolutions with 3 x 3 pixels, of which a max pooling passes a
// gradient to one: half of their weights have a gradient that is exactly zero. AdamW divides what else comes out by its
// own size, so that noise in their place throws a run off (the third loss by 4e-3, relatively).

#include "bonfire/models/alexnet.h"

#include <gtest/gtest.h>

#include "bonfire/base/random.h"
#include "bonfire/kernel/forced_kernel.h"
#include "bonfire/ops/loss.h"
#include "bonfire/ops/random.h"

namespace bonfire::models::alexnet_test {
namespace {

using Gradients = std::vector<std::vector<float>>;  // of the weights of convolutions

Gradients gradients(const std::string& kernel) {
  ForcedKernel forced(kernel);
  manual_seed(1);
  AlexNet model({.classes = 10, .dropout = 0});
  constexpr int64_t kBatch = 17, kSize = 71;
  std::vector<float> pixels(kBatch * 3 * kSize * kSize);
  for (size_t i = 0; i < pixels.size(); ++i) pixels[i] = normal_at(1, 100, i);
  std::vector<int64_t> labels(kBatch);
  for (size_t i = 0; i < labels.size(); ++i) labels[i] = static_cast<int64_t>(i % 10);
  Tensor images = Tensor::from<float>(pixels, {kBatch, 3, kSize, kSize});
  cross_entropy(model(images), Tensor::from<int64_t>(labels, {kBatch})).backward();
  Gradients found;
  for (const auto& [name, parameter] : model.named_parameters())
    if (parameter.shape().rank() == 4) found.push_back(parameter.grad().to_vector<float>());
  return found;
}

TEST(AlexNet, GradientsThatAreZeroStayZeroWithEveryKernel) {
  const Gradients plain = gradients("implicit_gemm");
  for (const char* kernel : {"winograd2", "winograd4"}) {
    const Gradients found = gradients(kernel);
    for (size_t i = 0; i < plain.size(); ++i) {
      double zeros = 0, noise = 0;
      for (size_t j = 0; j < plain[i].size(); ++j) {
        zeros += plain[i][j] == 0 ? 1 : 0;
        noise += plain[i][j] == 0 && found[i][j] != 0 ? 1 : 0;
      }
      // A ReLU's input may be as near zero as rounding.
      EXPECT_LE(noise, 1e-3 * zeros) << kernel << ", convolution " << i;
      if (i == 4) {
        EXPECT_GT(zeros, 0.3 * static_cast<double>(plain[i].size()));
      }
    }
  }
}

}  // namespace
}  // namespace bonfire::models::alexnet_test
