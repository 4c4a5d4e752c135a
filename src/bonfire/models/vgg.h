#pragma once
// VGG-11, 13, 16 and 19, with and without batch norm, with torchvision's parameter names and first values.

#include "bonfire/nn/pooling.h"
#include "bonfire/nn/sequential.h"

namespace bonfire::models {

struct VggOptions {
  int64_t classes = 1000;
  int64_t in_channels = 3;
  double dropout = 0.5;
};

class Vgg : public nn::Callable<Vgg> {
 public:
  Vgg(int depth, bool batch_norm, const VggOptions& options);  // depth 11, 13, 16 or 19, else a ConfigError
  Tensor forward(const Tensor& x) const;                       // [N, C, H, W], H and W from 32 up → [N, classes]

 private:
  nn::Sequential features_;
  nn::AdaptiveAvgPool2d avgpool_;
  nn::Sequential classifier_;
};

inline Vgg vgg11(const VggOptions& options = {}) { return Vgg(11, false, options); }
inline Vgg vgg13(const VggOptions& options = {}) { return Vgg(13, false, options); }
inline Vgg vgg16(const VggOptions& options = {}) { return Vgg(16, false, options); }
inline Vgg vgg19(const VggOptions& options = {}) { return Vgg(19, false, options); }
inline Vgg vgg11_bn(const VggOptions& options = {}) { return Vgg(11, true, options); }
inline Vgg vgg13_bn(const VggOptions& options = {}) { return Vgg(13, true, options); }
inline Vgg vgg16_bn(const VggOptions& options = {}) { return Vgg(16, true, options); }
inline Vgg vgg19_bn(const VggOptions& options = {}) { return Vgg(19, true, options); }

}  // namespace bonfire::models
