#include "bonfire/comm/group_backend.h"

#include <fmt/ranges.h>

#include <map>
#include <mutex>

#include "bonfire/base/error.h"

namespace bonfire::comm {

namespace {

struct Backends {
  std::mutex mutex;
  std::map<std::string, MakeGroup> by_name;
};

Backends& backends() {
  static Backends all;
  return all;
}

MakeGroup backend_named(const std::string& name) {
  std::lock_guard lock(backends().mutex);
  const auto found = backends().by_name.find(name);
  return found == backends().by_name.end() ? nullptr : found->second;
}

}  // namespace

bool register_group_backend(std::string name, MakeGroup make) {
  std::lock_guard lock(backends().mutex);
  return backends().by_name.emplace(std::move(name), std::move(make)).second;
}

std::vector<std::string> group_backends() {
  std::lock_guard lock(backends().mutex);
  std::vector<std::string> names;
  for (const auto& [name, make] : backends().by_name) names.push_back(name);
  return names;
}

std::shared_ptr<Group> make_group(const std::string& backend, const GroupRequest& request) {
  const MakeGroup make = backend_named(backend == "auto" ? (request.one_host ? "shm" : "gloo") : backend);
  if (make == nullptr)
    throw_error<ConfigError>("[fleet] there is no backend '{}'; there are auto, {}", backend,
                             fmt::join(group_backends(), ", "));
  return make(request);
}

}  // namespace bonfire::comm
