#pragma once
// What is dear on a device. A pass that trades one kind of work for another asks here, and not which device it is.

#include "bonfire/tensor/device.h"

namespace bonfire {

struct DeviceCosts {
  // Products of rows take longer than looking rows up and adding them up.
  bool products_are_dear;
  // Keeping a large value through a step costs more than going over large values once more to compute it again.
  bool keeping_is_dear;
};

DeviceCosts costs_of(Device device);

}  // namespace bonfire
