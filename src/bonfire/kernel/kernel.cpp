#include "bonfire/kernel/kernel.h"

#include <map>
#include <mutex>

#include "bonfire/base/error.h"
#include "bonfire/kernel/forced_kernel.h"

namespace bonfire {

namespace {

struct KernelRegistry {
  std::mutex mutex;
  std::map<std::string, std::vector<CandidateList>, std::less<>> lists[kDeviceTypes];
};

KernelRegistry& kernel_registry() {
  static KernelRegistry registry;
  return registry;
}

void drop_inexact(const GraphNode& node, std::vector<Candidate>& candidates) {
  const std::string first = candidates[0].name;
  std::erase_if(candidates,
                [](const Candidate& candidate) { return candidate.error > kMostError || !candidate.keeps_zeros; });
  if (candidates.empty())
    throw_error<DeviceError>(
        "[{}] every kernel on {} ({}, ...) has more than {} times a plain kernel's rounding error; strategy.fast_math: "
        "true (passes::Options::fast_math) lets them be used{}{}",
        node.name(), to_string(node.device()), first, kMostError, node.path.empty() ? "" : ", in module ", node.path);
}

}  // namespace

bool register_kernel(std::string op, DeviceType type, CandidateList list) {
  KernelRegistry& registry = kernel_registry();
  std::lock_guard lock(registry.mutex);
  registry.lists[static_cast<int>(type)][std::move(op)].push_back(std::move(list));
  return true;
}

std::vector<Candidate> candidates_for(const KernelRequest& request) {
  Device device = request.node.device();
  std::vector<CandidateList> lists;
  {
    KernelRegistry& registry = kernel_registry();
    std::lock_guard lock(registry.mutex);
    const auto& by_op = registry.lists[static_cast<int>(device.type)];
    if (auto found = by_op.find(request.node.name()); found != by_op.end()) lists = found->second;
    if (lists.empty() && request.node.op->has(Trait::elementwise))
      if (auto found = by_op.find(kAnyElementwise); found != by_op.end()) lists = found->second;
  }
  std::vector<Candidate> all;
  for (const CandidateList& list : lists)
    for (Candidate& candidate : list(request)) all.push_back(std::move(candidate));
  if (all.empty()) {
    std::string inputs;
    for (const GraphValue& input : request.node.inputs)
      inputs += (inputs.empty() ? "" : ", ") + to_string(input.spec());
    throw_error<DeviceError>("[{}] there is no kernel on {} for inputs ({}){}{}", request.node.name(),
                             to_string(device), inputs, request.node.path.empty() ? "" : " in module ",
                             request.node.path);
  }
  if (!request.fast_math) drop_inexact(request.node, all);
  return forced_among(request.node.name(), std::move(all));
}

Candidate row_major_candidate(const KernelRequest& request, std::string name) {
  Candidate candidate;
  candidate.name = std::move(name);
  candidate.input_layouts.resize(request.node.inputs.size());
  candidate.output_layouts.resize(request.node.outputs.size());
  return candidate;
}

}  // namespace bonfire
