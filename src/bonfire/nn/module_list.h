#pragma once
// Modules of one type, called "0", "1", …, for a forward that calls them itself:
//
//   PathScope scope(layers.name());
//   for (const Block& block : layers) x = block(x, mask);

#include "bonfire/nn/module.h"

namespace bonfire::nn {

template <class M>
class ModuleList : public Module {
 public:
  ModuleList() : Module("ModuleList"), modules_(std::make_shared<std::vector<M>>()) { show_equal_children_once(); }

  void push_back(M module) {  // all copies of this handle see it
    modules_->push_back(register_module(std::to_string(modules_->size()), std::move(module)));
  }
  size_t size() const { return modules_->size(); }
  const M& operator[](size_t i) const {  // ShapeError when there is no such module
    require_index(i, size());
    return (*modules_)[i];
  }
  auto begin() const { return modules_->cbegin(); }
  auto end() const { return modules_->cend(); }

 private:
  std::shared_ptr<std::vector<M>> modules_;
};

}  // namespace bonfire::nn
