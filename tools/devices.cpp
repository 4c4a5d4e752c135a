#include <cstdio>

#include "bonfire/tensor/device.h"
#include "tools/command.h"

namespace bonfire::tools {

void add_devices(Command program) {
  program.add("devices", "Lists the devices of this machine").runs([] {
    for (Device device : devices()) std::printf("%s\n", to_string(device).c_str());
    return 0;
  });
}

}  // namespace bonfire::tools
