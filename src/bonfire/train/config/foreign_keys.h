#pragma once
// Keys as other programs call them, for error messages.

#include <span>
#include <string>
#include <string_view>

namespace bonfire::train {

// What a key that does not exist is called here ("device": "place"), else the empty string.
std::string our_key_for(std::string_view name);

// Both sides of that list: pairs of another program's word and ours.
std::span<const std::pair<std::string_view, std::string_view>> foreign_keys();

}  // namespace bonfire::train
