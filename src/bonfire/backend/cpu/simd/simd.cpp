#include "bonfire/backend/cpu/simd/simd.h"

#include <algorithm>
#include <atomic>
#include <vector>

#if defined(BONFIRE_HAVE_AMX)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif
#if defined(BONFIRE_HAVE_NEONBF16)
#include <sys/auxv.h>
#endif

#include "bonfire/base/error.h"

namespace bonfire::cpu {

namespace {

#if defined(BONFIRE_HAVE_AMX)
// The kernel gives a process the memory for tile registers only when it asks, once for all its threads.
bool may_use_tiles() {
  constexpr long kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  unsigned a = 0, b = 0, c = 0, d = 0;
  constexpr unsigned kTiles = 1U << 24, kBf16 = 1U << 22;  // amx-tile and amx-bf16, in leaf 7
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (d & kTiles) != 0 && (d & kBf16) != 0 &&
         syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}
#endif

#if defined(BONFIRE_HAVE_AVX512)
void add_avx512(std::vector<InstructionSet>& sets) {
  sets.push_back(InstructionSet::avx512);
#if defined(BONFIRE_HAVE_AVX512BF16)
  if (!__builtin_cpu_supports("avx512bf16")) return;
  // Intel's cores multiply pairs of bf16 at half the rate of f32, AMD's at twice.
  sets.insert(__builtin_cpu_is("intel") ? sets.end() - 1 : sets.end(), InstructionSet::avx512bf16);
#if defined(BONFIRE_HAVE_AMX)
  if (may_use_tiles()) sets.push_back(InstructionSet::amx);
#endif
#endif
}
#endif

std::vector<InstructionSet> detect() {
  std::vector<InstructionSet> sets{InstructionSet::generic};
#if defined(BONFIRE_HAVE_NEON)
  sets.push_back(InstructionSet::neon);  // part of the aarch64 baseline
#endif
#if defined(BONFIRE_HAVE_NEONBF16)
  constexpr unsigned long kBf16 = 1UL << 14;  // HWCAP2_BF16
  if (getauxval(AT_HWCAP2) & kBf16) sets.push_back(InstructionSet::neonbf16);
#endif
#if defined(BONFIRE_HAVE_AVX2)
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) sets.push_back(InstructionSet::avx2);
#endif
#if defined(BONFIRE_HAVE_AVX512)
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("fma"))
    add_avx512(sets);
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
    case InstructionSet::neonbf16: return "neonbf16";
    case InstructionSet::avx2: return "avx2";
    case InstructionSet::avx512: return "avx512";
    case InstructionSet::avx512bf16: return "avx512bf16";
    case InstructionSet::amx: return "amx";
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
