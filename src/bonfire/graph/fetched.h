#pragma once
// How many values this thread has brought back to the host so far (item, to_vector, printing).

#include <cstdint>

namespace bonfire {

uint64_t values_fetched();

}  // namespace bonfire
