#pragma once
// A detector-style net: one body, and two heads that say what is in the picture and where.

#include "bonfire/nn/convolution.h"
#include "bonfire/nn/linear.h"
#include "bonfire/nn/norm.h"

namespace bonfire::models {

struct TwoHeadedOptions {
  int64_t classes = 10;
  int64_t in_channels = 3;
};

struct TwoHeadedResult {
  Tensor cls;  // [N, classes]: logits
  Tensor box;  // [N, 4]
};

class TwoHeaded : public nn::Callable<TwoHeaded> {
 public:
  explicit TwoHeaded(const TwoHeadedOptions& options);
  TwoHeadedResult forward(const Tensor& x) const;  // [N, C, H, W]

 private:
  nn::Conv2d conv1_;
  nn::BatchNorm2d bn1_;
  nn::Conv2d conv2_;
  nn::BatchNorm2d bn2_;
  nn::Conv2d conv3_;
  nn::BatchNorm2d bn3_;
  nn::Linear box_, cls_;
};

inline TwoHeaded two_headed(const TwoHeadedOptions& options = {}) { return TwoHeaded(options); }

}  // namespace bonfire::models
