#pragma once
// The nearest right name to a misspelt one, for error messages.

#include <span>
#include <string>
#include <string_view>

namespace bonfire::base {

// The candidate with the smallest edit distance; empty when there are none.
std::string nearest(std::string_view name, std::span<const std::string> candidates);

}  // namespace bonfire::base
