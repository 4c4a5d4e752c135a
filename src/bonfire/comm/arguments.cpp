#include "bonfire/comm/arguments.h"

#include "bonfire/base/error.h"

namespace bonfire::comm {

void check_root(std::string_view where, int root, int size) {
  if (root < 0 || root >= size)
    throw_error<ConfigError>("[{}] the root is rank {}, but the ranks are 0 to {}", where, root, size - 1);
}

void check_peer(std::string_view where, int peer, int rank, int size) {
  if (peer < 0 || peer >= size)
    throw_error<ConfigError>("[{}] there is no rank {}: the ranks are 0 to {}", where, peer, size - 1);
  if (peer == rank) throw_error<ConfigError>("[{}] rank {} cannot write to itself; copy the values", where, rank);
}

void check_parts(std::string_view where, ConstValues mine, ConstValues all, int size) {
  if (mine.dtype != all.dtype)
    throw_error<ShapeError>("[{}] one rank's part is {}, all of them are {}; give both one dtype", where,
                            name_of(mine.dtype), name_of(all.dtype));
  if (all.count != mine.count * static_cast<size_t>(size))
    throw_error<ShapeError>("[{}] one rank's part has {} elements and all {} ranks' {}, expected {}", where, mine.count,
                            size, all.count, mine.count * static_cast<size_t>(size));
}

void check_exchange(std::string_view where, ConstValues to, ConstValues from, int size) {
  if (to.dtype != from.dtype || to.count != from.count)
    throw_error<ShapeError>("[{}] gives {} {} and takes {} {}; both must be the same", where, to.count,
                            name_of(to.dtype), from.count, name_of(from.dtype));
  if (to.count % static_cast<size_t>(size) != 0)
    throw_error<ShapeError>("[{}] {} elements cannot be shared equally among {} ranks", where, to.count, size);
}

void check_membership(std::string_view where, int rank, int size) {
  if (size < 1 || rank < 0 || rank >= size)
    throw_error<ConfigError>("[{}] rank {} of a group of {}: ranks are 0 to size - 1", where, rank, size);
}

}  // namespace bonfire::comm
