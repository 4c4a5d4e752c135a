#pragma once
// Modules one after the other, called "0", "1", …
//
//   nn::Sequential net({nn::Linear({.in = 784, .out = 128}), nn::ReLU(), nn::Linear({.in = 128, .out = 10})});

#include <initializer_list>

#include "bonfire/nn/module.h"

namespace bonfire::nn {

class Sequential : public Callable<Sequential> {
 public:
  Sequential() : Sequential(std::initializer_list<AnyModule>{}) {}
  explicit Sequential(std::initializer_list<AnyModule> modules);

  void push_back(AnyModule module);  // all copies of this handle see it
  size_t size() const { return modules_->size(); }
  const AnyModule& operator[](size_t i) const {  // ShapeError when there is no such module
    require_index(i, size());
    return (*modules_)[i];
  }

  Tensor forward(const Tensor& x) const;

 private:
  std::shared_ptr<std::vector<AnyModule>> modules_;
};

}  // namespace bonfire::nn
