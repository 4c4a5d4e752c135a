#pragma once
// Damaged IDX files, CIFAR files and record shards for the fuzz tests and the fuzz programs. Each takes(seed, number)
// says whether the reader takes that file; it must refuse others with a DataError. Anything else leaves as another
// exception or is a sanitizer's finding.

#include <cstdint>

namespace bonfire::data::testing {

bool takes_idx(uint64_t seed, uint64_t number);  // plain and gzipped
bool takes_cifar(uint64_t seed, uint64_t number);
bool takes_records(uint64_t seed, uint64_t number);

}  // namespace bonfire::data::testing
