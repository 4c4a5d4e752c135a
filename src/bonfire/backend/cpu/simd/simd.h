#pragma once
// Which vector instructions this processor has, and which of them the CPU kernels use.

#include <span>
#include <string_view>

namespace bonfire::cpu {

// Those with bf16 in their name, and amx, multiply bf16 without widening it; the rest is as in their family.
enum class InstructionSet { generic, neon, neonbf16, avx2, avx512, avx512bf16, amx };

std::string_view name_of(InstructionSet set);

// Sets that are compiled in and that this processor can run; never empty, the best is last.
std::span<const InstructionSet> available_instruction_sets();

// The set that kernels use now: the best one, unless a test has forced another.
InstructionSet instruction_set();

// Makes kernels use `set`, which must be available. Not while kernels run.
void set_instruction_set_for_test(InstructionSet set);

}  // namespace bonfire::cpu
