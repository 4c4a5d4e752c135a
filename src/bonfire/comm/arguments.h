#pragma once
// What every backend checks before it moves a byte. Errors name the collective and both sides.

#include <string_view>

#include "bonfire/comm/group.h"

namespace bonfire::comm {

void check_root(std::string_view where, int root, int size);  // ConfigError
void check_peer(std::string_view where, int peer, int rank, int size);
// `all` holds one part of mine.count for each rank, of the same dtype. ShapeError.
void check_parts(std::string_view where, ConstValues mine, ConstValues all, int size);
// Both have the same dtype and count, and the count is a multiple of size. ShapeError.
void check_exchange(std::string_view where, ConstValues to, ConstValues from, int size);
void check_membership(std::string_view where, int rank, int size);

}  // namespace bonfire::comm
