#include "bonfire/kernel/queue.h"

#include "bonfire/base/error.h"

namespace bonfire {

namespace {
Queue& (*queue_functions[kDeviceTypes])(int) = {};
}

Queue& queue_of(Device device) {
  require_device(device);
  auto* function = queue_functions[static_cast<int>(device.type)];
  BONFIRE_CHECK(function != nullptr, "no queue for {}", to_string(device));
  return function(device.index);
}

void register_queues(DeviceType type, Queue& (*queue)(int index)) { queue_functions[static_cast<int>(type)] = queue; }

}  // namespace bonfire
