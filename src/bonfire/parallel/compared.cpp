#include "bonfire/parallel/compared.h"

#include <fmt/format.h>

#include <sstream>

namespace bonfire::fleet {

namespace {

std::string print(const std::string& name, const Variable& variable) {
  const Slice slice = variable.slice();
  const std::string shape = slice.is_all() ? to_string(variable.shape()) : to_string(slice);
  return fmt::format("'{}' {} {}", name, name_of(variable.dtype()), shape);
}

}  // namespace

comm::Settings compared_of(const nn::Module& model) {
  comm::Settings settings;
  for (const auto& [name, variable] : model.state_dict())
    settings.emplace_back(fmt::format("parameter {}", settings.size()), print(name, variable));
  std::istringstream lines(nn::to_string(model));
  std::string line;
  for (int number = 1; std::getline(lines, line); ++number)
    settings.emplace_back(fmt::format("line {} of the model", number), line.substr(line.find_first_not_of(' ')));
  return settings;
}

comm::Settings compared_of(const optim::Optimizer& optimizer) {
  comm::Settings settings = optimizer.settings();
  const std::vector<Variable>& parameters = optimizer.parameters();
  for (size_t i = 0; i < parameters.size(); ++i)
    settings.emplace_back(fmt::format("parameter {} of the optimizer", i), print(parameters[i].name(), parameters[i]));
  return settings;
}

}  // namespace bonfire::fleet
