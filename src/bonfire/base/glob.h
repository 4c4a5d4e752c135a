#pragma once
// Names with a `*`, by which settings name modules and variables.

#include <string_view>

namespace bonfire::base {

// "*" stands for any text, which may be empty and may have dots.
bool matches(std::string_view pattern, std::string_view path);

}  // namespace bonfire::base
