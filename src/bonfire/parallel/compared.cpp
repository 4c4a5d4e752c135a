#include "bonfire/parallel/compared.h"

#include <fmt/format.h>

#include <set>
#include <sstream>

namespace bonfire::fleet {

namespace {

std::string print(const std::string& name, const Variable& variable, Slices slices) {
  const Slice slice = variable.slice();
  const bool whole = slice.is_all() || slices == Slices::may_differ;
  return fmt::format("'{}' {} {}", name, name_of(variable.dtype()),
                     whole ? to_string(variable.shape()) : to_string(slice));
}

// Ranks have devices of their own, and these are compared by their order.
std::string print_device(const std::set<Device>& devices, Device device) {
  if (devices.size() == 1) return "";
  return fmt::format(" on device {} of {}", std::distance(devices.begin(), devices.find(device)) + 1, devices.size());
}

}  // namespace

comm::Settings compared_of(const nn::Module& model, Slices slices) {
  comm::Settings settings;
  std::set<Device> devices;
  for (const auto& [name, variable] : model.state_dict()) devices.insert(variable.device());
  for (const auto& [name, variable] : model.state_dict())
    settings.emplace_back(fmt::format("parameter {}", settings.size()),
                          print(name, variable, slices) + print_device(devices, variable.device()));
  std::istringstream lines(nn::to_string(model));
  std::string line;
  for (int number = 1; std::getline(lines, line); ++number)
    settings.emplace_back(fmt::format("line {} of the model", number), line.substr(line.find_first_not_of(' ')));
  return settings;
}

comm::Settings compared_of(const optim::Optimizer& optimizer, Slices slices) {
  comm::Settings settings = optimizer.settings();
  const std::vector<Variable>& parameters = optimizer.parameters();
  for (size_t i = 0; i < parameters.size(); ++i)
    settings.emplace_back(fmt::format("parameter {} of the optimizer", i),
                          print(parameters[i].name(), parameters[i], slices));
  return settings;
}

}  // namespace bonfire::fleet
