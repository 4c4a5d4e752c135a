#pragma once
// Tables of functions over vectors, compiled once per family of instruction sets. Private to backend/cpu.
//
// The header of a table declares how each family makes its own, NAME_avx2.cpp and the like define it:
//
//   template <> DirectKernel make_table<DirectKernel, VectorFamily::avx2>();
//
// and vector_table<DirectKernel>() is that of the processor.

#include <cstdint>

#include "bonfire/backend/cpu/simd/simd.h"

namespace bonfire::cpu {

// Sets that differ only in what they do with bf16 are one family.
enum class VectorFamily : uint8_t { generic, neon, avx2, avx512 };

template <class Table, VectorFamily family>
Table make_table();

template <class Table, VectorFamily family>
const Table& table_of() {
  static const Table table = make_table<Table, family>();
  return table;
}

// That of instruction_set().
template <class Table>
const Table& vector_table() {
  switch (instruction_set()) {
#if defined(BONFIRE_HAVE_NEON)
    case InstructionSet::neon:
    case InstructionSet::neonbf16: return table_of<Table, VectorFamily::neon>();
#endif
#if defined(BONFIRE_HAVE_AVX2)
    case InstructionSet::avx2: return table_of<Table, VectorFamily::avx2>();
#endif
#if defined(BONFIRE_HAVE_AVX512)
    case InstructionSet::avx512:
    case InstructionSet::avx512bf16:
    case InstructionSet::amx: return table_of<Table, VectorFamily::avx512>();
#endif
    default: return table_of<Table, VectorFamily::generic>();
  }
}

}  // namespace bonfire::cpu
