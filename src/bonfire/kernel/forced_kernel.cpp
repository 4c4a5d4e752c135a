#include "bonfire/kernel/forced_kernel.h"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <mutex>
#include <set>

namespace bonfire {

namespace {

struct Forcing {
  std::mutex mutex;
  std::string part = [] {
    const char* text = std::getenv("BONFIRE_KERNEL");
    return std::string(text == nullptr ? "" : text);
  }();
  std::map<std::string, std::set<std::string>, std::less<>> offered;  // by op
};

Forcing& forcing() {
  static Forcing instance;
  return instance;
}

}  // namespace

ForcedKernel::ForcedKernel(std::string part) {
  std::lock_guard lock(forcing().mutex);
  before_ = std::exchange(forcing().part, std::move(part));
}

ForcedKernel::~ForcedKernel() {
  std::lock_guard lock(forcing().mutex);
  forcing().part = std::move(before_);
}

std::string forced_kernel() {
  std::lock_guard lock(forcing().mutex);
  return forcing().part;
}

std::vector<Candidate> forced_among(std::string_view op, std::vector<Candidate> candidates) {
  std::lock_guard lock(forcing().mutex);
  std::set<std::string>& names = forcing().offered[std::string(op)];
  for (const Candidate& candidate : candidates) names.insert(candidate.name);
  const std::string& part = forcing().part;
  auto meant = [&](const Candidate& candidate) { return candidate.name.find(part) != std::string::npos; };
  if (!part.empty() && std::any_of(candidates.begin(), candidates.end(), meant))
    std::erase_if(candidates, [&](const Candidate& candidate) { return !meant(candidate); });
  return candidates;
}

std::vector<std::string> offered_kernels(std::string_view op) {
  std::lock_guard lock(forcing().mutex);
  auto found = forcing().offered.find(op);
  if (found == forcing().offered.end()) return {};
  return {found->second.begin(), found->second.end()};
}

void forget_offered_kernels() {
  std::lock_guard lock(forcing().mutex);
  forcing().offered.clear();
}

}  // namespace bonfire
