#include "bonfire/backend/cpu/simd/every_instruction_set.h"

#include "bonfire/backend/cpu/simd/simd.h"

namespace bonfire::cpu {

bool register_for_every_set(KernelTable generic, KernelTable avx2, KernelTable avx512) {
  const size_t ops = generic().size();
  for (size_t i = 0; i < ops; ++i)
    register_kernel(generic()[i].op, DeviceType::cpu, [=](const KernelRequest& request) {
      const InstructionSet set = instruction_set();
      KernelTable table = generic;
      if (set >= InstructionSet::avx2 && avx2 != nullptr) table = avx2;
      if (set >= InstructionSet::avx512 && avx512 != nullptr) table = avx512;
      std::vector<Candidate> list = table()[i].candidates(request);
      return list.empty() && table != generic ? generic()[i].candidates(request) : list;
    });
  return true;
}

}  // namespace bonfire::cpu
