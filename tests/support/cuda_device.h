#pragma once

#include <optional>

#include "bonfire/tensor/device.h"

namespace bonfire {

// The first GPU; nothing where there is none.
inline std::optional<Device> cuda_device() {
  for (Device device : devices())
    if (device.type == DeviceType::cuda) return device;
  return {};
}

}  // namespace bonfire
