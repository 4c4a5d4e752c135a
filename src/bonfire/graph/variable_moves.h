#pragma once
// How often a variable was given another place: another device, or another order of its elements. While the number is
// the same, whatever was found out about the places of variables still holds.

#include <cstdint>

namespace bonfire {

uint64_t variable_moves();
void note_variable_move();

}  // namespace bonfire
