#include "bonfire/kernel/kernel.h"

#include <map>
#include <mutex>

#include "bonfire/base/error.h"
#include "bonfire/kernel/forced_kernel.h"
#include "bonfire/kernel/without_cuda.h"

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

// Those of a node of the op on such a device.
std::vector<CandidateList> lists_for(const Op& op, DeviceType type) {
  KernelRegistry& registry = kernel_registry();
  std::lock_guard lock(registry.mutex);
  const auto& by_op = registry.lists[static_cast<int>(type)];
  if (auto found = by_op.find(op.name); found != by_op.end()) return found->second;
  if (op.has(Trait::elementwise))
    if (auto found = by_op.find(kAnyElementwise); found != by_op.end()) return found->second;
  return {};
}

[[noreturn]] void fail_without_candidates(const GraphNode& node) {
  std::string inputs;
  for (const GraphValue& input : node.inputs) inputs += (inputs.empty() ? "" : ", ") + to_string(input.spec());
  const bool never = node.device().type == DeviceType::cuda && is_without_cuda_kernel(node.name());
  throw_error<DeviceError>("[{}] there is no kernel on {} for inputs ({}){}{}{}", node.name(), to_string(node.device()),
                           inputs, node.path.empty() ? "" : " in module ", node.path,
                           never ? "; GPUs do not have this op yet: run it with place=cpu" : "");
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

std::string to_string(const Line& line) {
  switch (line.kind) {
    case Line::Kind::collective: break;
    case Line::Kind::pack: return fmt::format("packing for rank {} along {}", line.number, name_of(line.axis));
    case Line::Kind::send: return fmt::format("to rank {} along {}", line.number, name_of(line.axis));
    case Line::Kind::receive: return fmt::format("from rank {} along {}", line.number, name_of(line.axis));
  }
  return fmt::format("{}, communicator {}", name_of(line.axis), line.number);
}

bool register_kernel(std::string op, DeviceType type, CandidateList list) {
  KernelRegistry& registry = kernel_registry();
  std::lock_guard lock(registry.mutex);
  registry.lists[static_cast<int>(type)][std::move(op)].push_back(std::move(list));
  return true;
}

bool has_kernel(const Op& op, Device device) { return !lists_for(op, device.type).empty(); }

std::vector<Candidate> candidates_for(const KernelRequest& request) {
  std::vector<Candidate> all;
  for (const CandidateList& list : lists_for(*request.node.op, request.node.device().type))
    for (Candidate& candidate : list(request)) all.push_back(std::move(candidate));
  if (all.empty()) fail_without_candidates(request.node);
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
