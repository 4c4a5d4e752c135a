#include <cstdio>
#include <memory>

#include "bonfire/train/describe.h"
#include "tools/command.h"

namespace bonfire::tools {

void add_inspect(Command program) {
  Command command = program.add("inspect", "Says what is in a checkpoint or a safetensors file",
                                "bonfire inspect runs/1                      its newest whole checkpoint\n"
                                "bonfire inspect runs/1/best.safetensors     names, types and shapes of the weights");
  auto path = std::make_shared<std::string>();
  command.argument("path", *path, "a checkpoint's folder, a run's, or a safetensors file");
  command.runs([path] { return std::fputs(train::describe(*path).c_str(), stdout) < 0 ? 1 : 0; });
}

}  // namespace bonfire::tools
