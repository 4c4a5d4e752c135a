#pragma once
// What a layer cannot be made without: options whose default, 0, means that they were left out.

#include <cstdint>
#include <initializer_list>

namespace bonfire::nn {

struct SizeOption {
  const char* name;
  int64_t value;
};

// ConfigError naming the layer and the option, when one is below 1.
//   require_sizes("Linear", {{"in", options.in}, {"out", options.out}});
void require_sizes(const char* layer, std::initializer_list<SizeOption> options);

}  // namespace bonfire::nn
