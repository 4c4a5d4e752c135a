#include "bonfire/train/config/config.h"

#include <cstdio>

#include "tools/command.h"

namespace bonfire::tools {

void add_config(Command program) {
  program.add("config", "Prints every setting, its default and what it means").runs([] {
    return std::fputs(train::config_reference().c_str(), stdout) < 0 ? 1 : 0;
  });
}

}  // namespace bonfire::tools
