#pragma once
// The instruction sets of this machine, by their names.

#include <algorithm>
#include <string>

#include "bonfire/backend/cpu/simd/simd.h"
#include "bonfire/base/error.h"

namespace bench {

// ConfigError where this machine has none of that name.
inline bonfire::cpu::InstructionSet instruction_set_named(const std::string& name) {
  namespace cpu = bonfire::cpu;
  const auto available = cpu::available_instruction_sets();
  auto found = std::find_if(available.begin(), available.end(), [&](auto set) { return cpu::name_of(set) == name; });
  if (found != available.end()) return *found;
  std::string names;
  for (cpu::InstructionSet set : available) names += (names.empty() ? "" : ", ") + std::string(cpu::name_of(set));
  bonfire::throw_error<bonfire::ConfigError>("there are no instructions '{}' here; expected {}", name, names);
}

}  // namespace bench
