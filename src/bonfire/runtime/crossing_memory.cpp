#include "bonfire/runtime/crossing_memory.h"

#include <algorithm>
#include <mutex>

namespace bonfire::runtime {

struct CrossingMemory::Free {
  std::mutex mutex;
  std::vector<std::unique_ptr<Set>> sets;
};

CrossingMemory::CrossingMemory(std::vector<TensorSpec> specs)
    : specs_(std::move(specs)), free_(std::make_shared<Free>()) {}

std::shared_ptr<CrossingMemory::Set> CrossingMemory::take() {
  std::unique_ptr<Set> set;
  {
    std::lock_guard lock(free_->mutex);
    if (!free_->sets.empty()) {
      set = std::move(free_->sets.back());
      free_->sets.pop_back();
    }
  }
  if (!set) {
    set = std::make_unique<Set>();
    for (const TensorSpec& spec : specs_)
      set->push_back({std::make_shared<Storage>(spec.device, std::max<size_t>(1, spec.bytes()))});
  }
  return {set.release(), [free = free_](Set* given_back) {
            std::unique_ptr<Set> owned(given_back);
            std::lock_guard lock(free->mutex);
            free->sets.push_back(std::move(owned));
          }};
}

}  // namespace bonfire::runtime
