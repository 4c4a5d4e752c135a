#include "bonfire/nn/sequential.h"

namespace bonfire::nn {

Sequential::Sequential(std::initializer_list<AnyModule> modules)
    : Callable("Sequential"), modules_(std::make_shared<std::vector<AnyModule>>()) {
  for (const AnyModule& module : modules) push_back(module);
}

void Sequential::push_back(AnyModule module) {
  modules_->push_back(register_module(std::to_string(modules_->size()), std::move(module)));
}

Tensor Sequential::forward(const Tensor& x) const {
  Tensor y = x;
  for (const AnyModule& module : *modules_) y = module(y);
  return y;
}

}  // namespace bonfire::nn
