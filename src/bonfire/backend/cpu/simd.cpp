#include "bonfire/backend/cpu/simd.h"

#include <algorithm>
#include <atomic>
#include <vector>

#include "bonfire/base/error.h"

namespace bonfire::cpu {

namespace {

std::vector<InstructionSet> detect() {
  std::vector<InstructionSet> sets{InstructionSet::generic};
#if defined(BONFIRE_HAVE_NEON)
  sets.push_back(InstructionSet::neon);  // part of the aarch64 baseline
#endif
#if defined(BONFIRE_HAVE_AVX2)
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) sets.push_back(InstructionSet::avx2);
#endif
#if defined(BONFIRE_HAVE_AVX512)
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("fma"))
    sets.push_back(InstructionSet::avx512);
#endif
  return sets;
}

std::atomic<InstructionSet>& chosen() {
  static std::atomic<InstructionSet> set{available_instruction_sets().back()};
  return set;
}

}  // namespace

std::string_view name_of(InstructionSet set) {
  switch (set) {
    case InstructionSet::generic: return "generic";
    case InstructionSet::neon: return "neon";
    case InstructionSet::avx2: return "avx2";
    case InstructionSet::avx512: return "avx512";
  }
  return "unknown";
}

std::span<const InstructionSet> available_instruction_sets() {
  static const std::vector<InstructionSet> sets = detect();
  return sets;
}

InstructionSet instruction_set() { return chosen().load(std::memory_order_relaxed); }

void set_instruction_set_for_test(InstructionSet set) {
  auto sets = available_instruction_sets();
  BONFIRE_CHECK(std::find(sets.begin(), sets.end(), set) != sets.end(), "{} is not available here", name_of(set));
  chosen().store(set);
}

}  // namespace bonfire::cpu
