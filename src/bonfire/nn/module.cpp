#include "bonfire/nn/module.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <ostream>
#include <sstream>
#include <unordered_set>
#include <utility>

#include "bonfire/base/error.h"
#include "bonfire/graph/step_state.h"
#include "bonfire/graph/variable_copies.h"

namespace bonfire::nn {

namespace {

// As a number, which a compiled step can compare; 0: none.
int32_t number_of(Device device) { return (static_cast<int32_t>(device.type) + 1) << 16 | device.index; }
Device device_of(int32_t number) {
  return {static_cast<DeviceType>((number >> 16) - 1), static_cast<int16_t>(number & 0xFFFF)};
}

}  // namespace

struct Module::State {
  std::string kind;
  std::string details;
  StepState<bool> training{true};
  StepState<int32_t> device{0};
  bool shows_equal_children_once = false;
  std::vector<std::pair<std::string, Parameter>> parameters;
  StateDict buffers;
  std::vector<Split> splits;
  std::vector<std::pair<std::string, Module>> children;
};

namespace {

// Calls visit(path with a dot after it, module) for a module and all inside it, in the order of names.
template <class Visit>
void walk(const Module& module, const std::string& prefix, const Visit& visit) {
  visit(prefix, module);
  for (const auto& [name, child] : module.named_children()) walk(child, prefix + name + ".", visit);
}

std::string indented(const std::string& text) {
  std::string result;
  for (char c : text) {
    result += c;
    if (c == '\n') result += "  ";
  }
  return result;
}

// Equal neighbours become one: "0-3", "4 x Linear(…)".
TreeChildren folded(const TreeChildren& children) {
  TreeChildren result;
  for (size_t begin = 0, end = 0; begin < children.size(); begin = end) {
    while (end < children.size() && children[end].second == children[begin].second) ++end;
    const auto& [name, tree] = children[begin];
    if (end - begin == 1)
      result.emplace_back(name, tree);
    else
      result.emplace_back(name + "-" + children[end - 1].first, std::to_string(end - begin) + " x " + tree);
  }
  return result;
}

}  // namespace

Module::Module(std::string kind) : state_(std::make_shared<State>()) { state_->kind = std::move(kind); }

std::vector<std::pair<std::string, Module>> Module::named_children() const { return state_->children; }

std::vector<std::pair<std::string, Parameter>> Module::named_parameters() const {
  std::vector<std::pair<std::string, Parameter>> result;
  std::unordered_set<const VariableState*> seen;
  walk(*this, "", [&](const std::string& prefix, const Module& module) {
    for (const auto& [name, parameter] : module.state_->parameters)
      if (seen.insert(&parameter.state()).second) {
        static_cast<Variable&>(result.emplace_back(prefix + name, parameter).second) = here(parameter);
      }
  });
  return result;
}

std::vector<Parameter> Module::parameters() const {
  std::vector<Parameter> result;
  for (auto& [name, parameter] : named_parameters()) result.push_back(parameter);
  return result;
}

StateDict Module::named_buffers() const {
  StateDict result;
  walk(*this, "", [&](const std::string& prefix, const Module& module) {
    for (const auto& [name, buffer] : module.state_->buffers) result.push_back({prefix + name, here(buffer)});
  });
  return result;
}

StateDict Module::state_dict() const {
  StateDict result;
  walk(*this, "", [&](const std::string& prefix, const Module& module) {
    for (const auto& [name, parameter] : module.state_->parameters) result.push_back({prefix + name, here(parameter)});
    for (const auto& [name, buffer] : module.state_->buffers) result.push_back({prefix + name, here(buffer)});
  });
  return result;
}

void Module::train(bool training) const {
  walk(*this, "", [&](const std::string&, const Module& module) { module.state_->training = training; });
}

bool Module::training() const { return state_->training; }

void Module::set_requires_grad(bool required) const {
  for (const Parameter& parameter : parameters()) parameter.set_requires_grad(required);
}

void Module::to(Device device) const {
  require_device(device);
  for (const auto& [name, variable] : state_dict()) variable.move_to(device);
  walk(*this, "", [&](const std::string&, const Module& module) {
    module.state_->device = module.state_dict().empty() ? 0 : number_of(device);
  });
  state_->device = number_of(device);
}

std::optional<Device> Module::device() const {
  if (copies_are_elsewhere()) return {};  // this thread computes with them, on its own device
  const int32_t number = state_->device;
  return number == 0 ? std::optional<Device>() : device_of(number);
}

Module Module::submodule(const std::string& path) const {
  Module found = *this;
  for (size_t begin = 0; begin <= path.size() && !path.empty();) {
    const size_t end = std::min(path.find('.', begin), path.size());
    const auto& children = found.state_->children;
    auto child = std::find_if(children.begin(), children.end(), [&](const auto& one) {
      return std::string_view(one.first) == std::string_view(path).substr(begin, end - begin);
    });
    if (child == children.end()) {
      std::vector<std::string> names;
      for (const auto& [name, module] : children) names.push_back(name);
      throw_error<ConfigError>("[module] there is no module {} in {}: {} holds {}", path, state_->kind,
                               begin == 0 ? "it" : path.substr(0, begin - 1),
                               names.empty() ? "no modules" : fmt::format("{}", fmt::join(names, ", ")));
    }
    const Module next = child->second;
    found = next;
    begin = end + 1;
  }
  return found;
}

LoadReport Module::load_state_dict(const StateDict& values, LoadOptions options) const {
  return nn::load_state_dict(state_dict(), values, std::move(options));
}

void Module::save(const std::filesystem::path& file) const { save_state_dict(state_dict(), file, {{"format", "pt"}}); }

LoadReport Module::load(const std::filesystem::path& file, LoadOptions options) const {
  return nn::load_state_dict(state_dict(), file, std::move(options));
}

void Module::require_index(size_t index, size_t size) const {
  if (index >= size)
    throw_error<ShapeError>("[module] index {} is out of range for {}, which holds {} module{}",
                            static_cast<int64_t>(index), state_->kind, size, size == 1 ? "" : "s");
}

void Module::check_name(const std::string& name) const {
  auto is_taken = [&] {
    for (const auto& [other, parameter] : state_->parameters)
      if (other == name) return true;
    for (const auto& [other, buffer] : state_->buffers)
      if (other == name) return true;
    for (const auto& [other, child] : state_->children)
      if (other == name) return true;
    return false;
  };
  if (name.empty() || name.find('.') != std::string::npos)
    throw_error<ConfigError>("[module] '{}' cannot be a name inside {}: it must not be empty and have no dot", name,
                             state_->kind);
  if (is_taken()) throw_error<ConfigError>("[module] {} already has something called '{}'", state_->kind, name);
}

Parameter Module::register_parameter(const std::string& name, Parameter parameter) {
  check_name(name);
  if (!parameter.defined())
    throw_error<ConfigError>("[module] parameter '{}' of {} is undefined; make it before it is registered", name,
                             state_->kind);
  if (parameter.name().empty()) parameter.state().name = name;
  state_->parameters.emplace_back(name, parameter);
  return parameter;
}

Variable Module::register_buffer(const std::string& name, Variable buffer) {
  check_name(name);
  if (!buffer.defined())
    throw_error<ConfigError>("[module] buffer '{}' of {} is undefined; make it before it is registered", name,
                             state_->kind);
  if (buffer.name().empty()) buffer.state().name = name;
  state_->buffers.push_back({name, buffer});
  return buffer;
}

void Module::add_child(const std::string& name, const Module& module) {
  check_name(name);
  // Variables are called by their path, for messages. One that is tied keeps the path of its first place.
  for (const auto& [path, variable] : module.state_dict())
    if (variable.name() == path) variable.state().name.insert(0, name + ".");
  state_->children.emplace_back(name, module).second.name_ = name;
}

const std::vector<Split>& Module::splits() const { return state_->splits; }
void Module::set_splits(std::vector<Split> splits) { state_->splits = std::move(splits); }
void Module::set_details(std::string details) { state_->details = std::move(details); }

void Module::show_equal_children_once() { state_->shows_equal_children_once = true; }

std::string tree_text(const std::string& kind, const std::string& details, const TreeChildren& children) {
  if (children.empty()) return kind + "(" + details + ")";
  std::string text = kind + "(";
  if (!details.empty()) text += "\n  " + details;
  for (const auto& [name, tree] : children) text += "\n  (" + name + "): " + indented(tree);
  return text + "\n)";
}

std::ostream& operator<<(std::ostream& out, const Module& module) {
  const Module::State& state = *module.state_;
  TreeChildren children;
  for (const auto& [name, child] : state.children) children.emplace_back(name, to_string(child));
  return out << tree_text(state.kind, state.details, state.shows_equal_children_once ? folded(children) : children);
}

std::string to_string(const Module& module) {
  std::ostringstream out;
  out << module;
  return out.str();
}

}  // namespace bonfire::nn
