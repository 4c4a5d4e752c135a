#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "bonfire/graph/engine.h"
#include "bonfire/parallel/fleet.h"
#include "bonfire/parallel/job.h"

namespace bonfire::fleet {

namespace {

// As AxisGroups has it.
std::optional<Device> named(const Job& self, Device device) {
  if (self.devices.empty() || device == self.devices.front()) return {};
  return device;
}

void lay_out_on(const Job& self, Device device, const std::vector<Variable>& gradients) {
  const size_t bytes = contiguous_bytes(gradients);
  comm::GroupBuffer memory = self.reducing->buffer(bytes);
  make_contiguous(gradients, std::make_shared<Storage>(device, bytes, memory));
  comm::AxisGroups::Along data = *self.steps->along(Axis::data, named(self, device));
  self.steps->change(Axis::data, {}, named(self, device));  // so that what nobody needs has one owner
  std::erase_if(data.memories, [](const comm::AxisGroups::Memory& old) { return old.buffer.use_count() == 1; });
  data.memories.push_back({std::move(memory), bytes});
  self.steps->change(Axis::data, std::move(data), named(self, device));
}

}  // namespace

// Puts the gradients of an optimizer into memory where they are reduced without being copied, in the order in which
// they are. A collective call.
void lay_out_gradients(const Job& self, const std::vector<Variable>& parameters) {
  std::set<const VariableState*> left;
  for (const Variable& parameter : parameters)
    if (!parameter.grad_variable().slice().is_range()) left.insert(&parameter.state());  // parts are never whole
  std::vector<Variable> gradients;
  for (const ModelGradients& model : self.models) {
    const std::vector<Variable> in_order = model.in_order();
    for (size_t i = 0; i < in_order.size(); ++i) {
      if (left.erase(&in_order[i].state()) == 0) continue;
      if (i == 0) gradients.push_back(model.uses());  // reduced with the first of them
      gradients.push_back(in_order[i].grad_variable());
    }
  }
  const bool in_stages = mesh().size(Axis::pipeline) > 1;     // which lay out what they hold themselves
  for (size_t i = parameters.size(); i-- > 0 && !in_stages;)  // of no model yet
    if (left.contains(&parameters[i].state())) gradients.push_back(parameters[i].grad_variable());
  std::map<Device, std::vector<Variable>> by_device;
  for (const Variable& gradient : gradients) by_device[gradient.device()].push_back(gradient);
  for (const auto& [device, own] : by_device) lay_out_on(self, device, own);
}

// Those of all optimizers that have one of these parameters.
void lay_out_gradients_of(const Job& self, const std::vector<Variable>& some) {
  for (const std::vector<Variable>& parameters : self.optimizers)
    if (std::find_first_of(parameters.begin(), parameters.end(), some.begin(), some.end()) != parameters.end())
      lay_out_gradients(self, parameters);
}

namespace {

void widen_on(Job& self, std::optional<Device> device, bool anew, size_t communicators) {
  comm::AxisGroups::Along data = *self.steps->along(Axis::data, device);
  if (anew) data.communicators.clear();
  while (data.communicators.size() < communicators) data.communicators.push_back(self.reducing->split(0));
  self.steps->change(Axis::data, std::move(data), device);
}

}  // namespace

void add_device(Job& self, Device device) {
  if (std::find(self.devices.begin(), self.devices.end(), device) != self.devices.end()) return;
  self.devices.push_back(device);
  if (self.devices.size() == 1) return;  // it has what the job began with
  engine().synchronize();
  const size_t communicators = self.steps->along(Axis::data)->communicators.size();
  self.steps->change(Axis::data, {}, device);
  widen_on(self, device, true, communicators);
}

// Communicators are only added, unless ranks are now reduced by hosts: the nodes and plans of earlier optimizers stay
// good.
void widen_data_axis(Job& self, const std::shared_ptr<comm::Group>& reducing, int64_t communicators) {
  engine().synchronize();
  const bool anew = reducing != self.reducing;
  self.reducing = reducing;
  widen_on(self, {}, anew, static_cast<size_t>(communicators));
  for (size_t i = 1; i < self.devices.size(); ++i)
    widen_on(self, self.devices[i], anew, static_cast<size_t>(communicators));
}

}  // namespace bonfire::fleet
