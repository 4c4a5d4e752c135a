#pragma once
// Optimizer: what all optimizers have in common. The kinds are in optimizers.h.
//
//   optim::Momentum optimizer(model.parameters(), {.lr = 0.05, .momentum = 0.9, .weight_decay = 1e-4});
//   loss.backward();
//   optimizer.step();
//   optimizer.clear_grad();
//
// Making an optimizer lays the parameters one after the other in memory, in reverse order (that in which gradients
// appear), and likewise their gradients and the optimizer's state: an update is one sweep. So the model must be on its
// device already. Parameters that require no gradient then are left out for good; tied ones count once. Copies of an
// optimizer share everything.

#include <concepts>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bonfire/graph/variable.h"
#include "bonfire/ops/optimizer_functions.h"

namespace bonfire::optim {

// Parameters with settings of their own.
struct ParameterGroup {
  std::vector<Variable> parameters;
  std::optional<double> lr = {};  // keeps its proportion to the optimizer's rate when that is set
  std::optional<double> weight_decay = {};
};

// What an optimizer updates: a list of parameters, or groups of them.
class ParameterGroups {
 public:
  template <std::derived_from<Variable> V>
  ParameterGroups(const std::vector<V>& parameters) : groups_{{{parameters.begin(), parameters.end()}}} {}
  ParameterGroups(std::initializer_list<ParameterGroup> groups) : groups_(groups) {}
  ParameterGroups(std::vector<ParameterGroup> groups) : groups_(std::move(groups)) {}

  const std::vector<ParameterGroup>& groups() const { return groups_; }

 private:
  std::vector<ParameterGroup> groups_;
};

class Optimizer {
 public:
  // Appends the update of every parameter that has a gradient, as far as the step context's conditions allow it, and
  // what its hooks add (graph/step_context.h), and commits the step.
  void step();
  void clear_grad() const;

  double lr() const;
  double lr(size_t group) const;
  void set_lr(double lr);  // groups with a rate of their own keep their proportion to it

  // How it updates, to be compared and shown: {"optimizer", "adam"}, {"lr", "0.001"}, {"betas", "0.9 and 0.999"} …
  std::vector<std::pair<std::string, std::string>> settings() const;

  // The parameter and what is remembered of it hold that slice from now on (Variable::keep_slice), or only the latter
  // and the gradient do, and the parameter stays whole: whoever asks for that shares it out (graph/variable_shares.h).
  // An optimizer that is made of parameters with slices has such states from the start.
  enum class Keeps : uint8_t { all, states };
  void keep_slice(const Variable& parameter, const Slice& slice, Keeps what = Keeps::all) const;

  // Gives these parameters, with their gradients and what is remembered of them, memory of their own, beside that of
  // the others: which then takes none, where nothing uses them.
  void lay_out_apart(const std::vector<Variable>& some) const;

  const std::vector<Variable>& parameters() const;  // those that are updated, in the order given
  // State tensors and counts of updates, for checkpoints: "fc.weight.momentum_buffer"; "step", i64 [parameter]: one
  // that has no gradient in a step is not updated, and its count stays. Parameters without a name are called by their
  // number. load_optimizer_state() in optim/optimizer_state.h reads them back.
  std::vector<std::pair<std::string, Variable>> state() const;
  std::vector<std::pair<std::string, Variable>> state_of(const Variable& parameter) const;  // but for its count
  std::vector<Variable> counts() const;  // of updates; those of a parameter that is not here are not counted here

 protected:
  // What tells the kinds apart. first and second: see OptimizerNumbers.
  struct Settings {
    const char* name;
    OptimizerRule rule;
    double lr, weight_decay;
    double first = 0, second = 0, eps = 0;
    bool nesterov = false;
    double initial_state = 0;
    std::vector<std::string> state_names = {};
  };
  Optimizer(const ParameterGroups& parameters, const Settings& settings);

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace bonfire::optim
