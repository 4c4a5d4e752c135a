#include "bonfire/parallel/placement.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <vector>

#include "bonfire/base/error.h"
#include "bonfire/base/glob.h"
#include "bonfire/base/nearest.h"

namespace bonfire {

namespace {

using Modules = std::vector<std::pair<std::string, nn::Module>>;  // by path, each before those inside it

void add_modules(const nn::Module& module, const std::string& path, Modules& all) {
  all.emplace_back(path, module);
  const std::string inside = path.empty() ? "" : path + ".";
  for (const auto& [name, child] : module.named_children()) add_modules(child, inside + name, all);
}

// The module itself, or one that it is inside of.
bool covers(std::string_view pattern, std::string_view path) {
  for (size_t end = path.size();; end = path.rfind('.', end - 1)) {
    if (end == std::string_view::npos) return false;
    if (base::matches(pattern, path.substr(0, end))) return true;
    if (end == 0) return false;
  }
}

[[noreturn]] void fail_no_module(const std::string& name, const Modules& modules) {
  constexpr size_t kNamed = 40;
  std::vector<std::string> paths;
  for (const auto& [path, module] : modules)
    if (!path.empty()) paths.push_back(path);
  const std::string nearest = paths.empty() ? "" : fmt::format("; the nearest is '{}'", base::nearest(name, paths));
  const size_t more = paths.size() > kNamed ? paths.size() - kNamed : 0;
  paths.resize(paths.size() - more);
  throw_error<ConfigError>("[placement] '{}' matches no module of the model{}; there are: {}{}", name, nearest,
                           fmt::join(paths, ", "), more > 0 ? fmt::format(" and {} more", more) : "");
}

}  // namespace

void place(const nn::Module& model, const Placement& placement) {
  Modules modules;
  add_modules(model, "", modules);
  std::map<std::string, Device> devices;  // by the name in the placement
  for (const auto& [name, device] : placement) {
    devices[name] = parse_device(device);
    auto is_meant = [&pattern = name](const auto& module) { return base::matches(pattern, module.first); };
    if (std::none_of(modules.begin(), modules.end(), is_meant)) fail_no_module(name, modules);
  }
  std::vector<std::pair<nn::Module, Device>> moves;
  for (const auto& [path, module] : modules) {
    const std::pair<const std::string, Device>* longest = nullptr;
    for (const auto& entry : devices) {
      if (!covers(entry.first, path)) continue;
      if (longest != nullptr && longest->first.size() == entry.first.size() && longest->second != entry.second)
        throw_error<ConfigError>(
            "[placement] module '{}' is on {} by '{}' and on {} by '{}', which is as long; name it", path,
            to_string(longest->second), longest->first, to_string(entry.second), entry.first);
      if (longest == nullptr || longest->first.size() < entry.first.size()) longest = &entry;
    }
    if (longest != nullptr) moves.emplace_back(module, longest->second);
  }
  for (const auto& [module, device] : moves) module.to(device);
}

std::set<Device> devices_of(const nn::Module& model) {
  std::set<Device> all;
  for (const auto& [name, variable] : model.state_dict()) all.insert(variable.device());
  return all;
}

std::string to_string(const Placement& placement) {
  std::vector<std::string> parts;
  for (const auto& [name, device] : placement) parts.push_back(fmt::format("{} on {}", name, device));
  return fmt::format("{}", fmt::join(parts, ", "));
}

}  // namespace bonfire
