#include "bonfire/base/program_name.h"

#include <cstdlib>

namespace bonfire::base {

std::string program_name() {
  const char* typed = std::getenv("BONFIRE_CALLED_AS");
  return typed == nullptr || *typed == '\0' ? "bonfire" : typed;
}

}  // namespace bonfire::base
