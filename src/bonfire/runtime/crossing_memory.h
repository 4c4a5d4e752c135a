#pragma once
// Memory for values that cross from one device to another: of each submission its own, since its neighbours may still
// be reading theirs, but used again when a submission is done. Private to runtime.

#include <memory>
#include <vector>

#include "bonfire/tensor/storage.h"

namespace bonfire::runtime {

class CrossingMemory {
 public:
  // One buffer for each of these.
  explicit CrossingMemory(std::vector<TensorSpec> specs);
  using Set = std::vector<Buffer>;
  std::shared_ptr<Set> take();  // whoever holds it last gives it back. From any thread

 private:
  struct Free;
  std::vector<TensorSpec> specs_;
  std::shared_ptr<Free> free_;
};

}  // namespace bonfire::runtime
