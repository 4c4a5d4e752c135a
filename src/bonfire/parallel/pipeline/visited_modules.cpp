#include "bonfire/parallel/pipeline/visited_modules.h"

#include <fmt/ranges.h>

#include <algorithm>

namespace bonfire::pipeline {

VisitedModules::VisitedModules(const Graph& traced) {
  std::unordered_map<const GraphNode*, int> module_of;
  size_t position = 0;
  for (const GraphNode& node : traced.nodes()) {
    if (node.is_input() || node.phase != Phase::forward) continue;
    int module = -1;
    if (node.path.empty()) {
      for (const GraphValue& input : node.inputs)
        if (auto found = module_of.find(input.node); found != module_of.end()) module = std::max(module, found->second);
    } else {
      auto [place, fresh] = of_path_.emplace(node.path, static_cast<int>(list_.size()));
      if (fresh) list_.push_back({.path = node.path, .first = position, .last = position});
      module = place->second;
      list_[static_cast<size_t>(module)].last = position++;
    }
    module_of[&node] = module;
    of_number_.resize(std::max(of_number_.size(), static_cast<size_t>(node.number) + 1), -1);
    of_number_[static_cast<size_t>(node.number)] = module;
  }
}

int VisitedModules::of_number(int number) const {
  return number < 0 || static_cast<size_t>(number) >= of_number_.size() ? -1 : of_number_[static_cast<size_t>(number)];
}

int VisitedModules::of_path(const std::string& path) const {
  auto found = of_path_.find(path);
  return found == of_path_.end() ? -1 : found->second;
}

int VisitedModules::of_node(const GraphNode& node) const {
  const int module = of_number(node.phase == Phase::forward ? node.number : node.origin);
  return module >= 0 ? module : of_path(node.path);
}

std::optional<size_t> VisitedModules::first_in(const std::string& name) const {
  for (size_t i = 0; i < list_.size(); ++i) {
    const std::string& path = list_[i].path;
    if (path == name || (path.starts_with(name) && path[name.size()] == '.')) return i;
  }
  return {};
}

bool VisitedModules::may_begin_stage(size_t module) const {
  return first_in(list_[module].path) == module &&
         std::all_of(list_.begin(), list_.begin() + static_cast<std::ptrdiff_t>(module),
                     [&](const VisitedModule& one) { return one.last < list_[module].first; });
}

std::string VisitedModules::names() const {
  constexpr size_t kMost = 40;
  std::vector<std::string> names;
  for (const VisitedModule& one : list_)
    if (names.size() < kMost) names.push_back(one.path);
  return fmt::format("{}{}", fmt::join(names, ", "),
                     list_.size() > kMost ? fmt::format(" and {} more", list_.size() - kMost) : "");
}

}  // namespace bonfire::pipeline
