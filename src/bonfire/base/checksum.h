#pragma once
// CRC-32C (Castagnoli): what our record shards and TensorBoard's event files are checked with.

#include <cstddef>
#include <cstdint>
#include <span>

namespace bonfire::base {

// Of the bytes; of several pieces in turn when the checksum of those before is given.
uint32_t crc32c(std::span<const std::byte> bytes, uint32_t before = 0);

// The same by tables alone, for processors without an instruction for it.
uint32_t crc32c_by_tables(std::span<const std::byte> bytes, uint32_t before = 0);

}  // namespace bonfire::base
