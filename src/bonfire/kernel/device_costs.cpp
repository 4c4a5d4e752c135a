#include "bonfire/kernel/device_costs.h"

namespace bonfire {

DeviceCosts costs_of(Device device) {
  switch (device.type) {
    case DeviceType::cpu: return {.products_are_dear = true, .keeping_is_dear = true};
    case DeviceType::cuda:  // multiplies fast, is bound by such sweeps, and has the memory
      return {.products_are_dear = false, .keeping_is_dear = false};
  }
  return {};
}

}  // namespace bonfire
