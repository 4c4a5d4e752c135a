// Makes CUDA devices known when this library is loaded.
#include "bonfire/backend/cuda/memory.h"
#include "bonfire/backend/cuda/queue.h"

namespace bonfire::cuda {

namespace {

const bool registered = [] {
  register_device_backend(DeviceType::cuda, {.count = device_count, .memory = [](int index) -> DeviceMemory& {
                                               return memory_of_cuda(index);
                                             }});
  register_queues(DeviceType::cuda, [](int index) -> Queue& { return queue_of_cuda(index); });
  return true;
}();

}  // namespace

}  // namespace bonfire::cuda
