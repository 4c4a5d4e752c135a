#include <cstdio>

#include "tools/command.h"

namespace bonfire::tools {

void add_version(Command program) {
  program.add("version", "Prints the version").runs([] {
    std::printf("bonfire %s\n", BONFIRE_VERSION);
    return 0;
  });
}

}  // namespace bonfire::tools
