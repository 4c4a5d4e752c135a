#include "bonfire/nn/sizes.h"

#include "bonfire/base/error.h"

namespace bonfire::nn {

void require_sizes(const char* layer, std::initializer_list<SizeOption> options) {
  for (const auto& [name, value] : options)
    if (value < 1)
      throw_error<ConfigError>("[{0}] {1} is {2}{3}, expected at least 1: nn::{0}({{.{1} = ...}})", layer, name, value,
                               value == 0 ? " (was it left out?)" : "");
}

}  // namespace bonfire::nn
