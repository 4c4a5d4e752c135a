#pragma once
// Models that are trained twice: whole, and with their modules on several devices.

#include <functional>
#include <string>
#include <vector>

#include "bonfire/bonfire.h"
#include "bonfire/runtime/plan.h"
#include "bonfire/runtime/plan_cache.h"

namespace bonfire::testing {

struct PlacedCase {
  using Loss = std::function<Tensor(const Tensor& input, const Tensor& target)>;
  std::string name;
  std::function<std::pair<nn::Module, Loss>()> make;
  std::function<std::pair<Tensor, Tensor>(int step)> batch;
  std::vector<Placement> placements;
};

struct TrainingOptions {
  int steps = 3;
  bool compiled = true;
  double clip = 0;  // 0: not clipped
  Device device = {};
};

struct Trained {
  std::vector<double> losses;
  std::vector<std::vector<std::byte>> values;  // of parameters and buffers
};

inline Trained train(const PlacedCase& one, const Placement& placement, const TrainingOptions& options = {}) {
  manual_seed(7);
  const auto [model, loss_of] = one.make();
  model.to(options.device);
  place(model, placement);
  optim::Momentum optimizer(model.parameters(), {.lr = 0.05, .momentum = 0.9, .weight_decay = 1e-3});
  auto step = [&, loss_of = loss_of](const Tensor& input, const Tensor& target) {
    Tensor loss = loss_of(input, target);
    loss.backward();
    if (options.clip > 0) optim::clip_grad_norm(optimizer.parameters(), Scalar(options.clip));
    optimizer.step();
    optimizer.clear_grad();
    return loss;
  };
  auto compiled = compile(step);
  Trained trained;
  for (int i = 0; i < options.steps; ++i) {
    const auto [input, target] = one.batch(i);
    const Tensor x = input.to(options.device), y = target.to(options.device);
    trained.losses.push_back((options.compiled ? compiled(x, y) : step(x, y)).item());
  }
  synchronize();
  for (const auto& [name, variable] : model.state_dict()) trained.values.push_back(variable.save());
  return trained;
}

// The plan that was submitted last and updates something: a training step's.
inline std::shared_ptr<runtime::Plan> last_training_plan() {
  for (const auto& plan : runtime::cached_plans())
    if (!plan->graph->assignments.empty()) return plan;
  return nullptr;
}

// Whether program `later` waits for `earlier`, itself or by others: those of its device before it, and what it is
// after.
inline bool waits_for(const runtime::Plan& plan, int later, int earlier) {
  if (later == earlier) return true;
  const runtime::PlanProgram& program = plan.programs[static_cast<size_t>(later)];
  for (int i = later - 1; i >= 0; --i)
    if (plan.programs[static_cast<size_t>(i)].program->device == program.program->device) {
      if (waits_for(plan, i, earlier)) return true;
      break;
    }
  for (int i : program.after)
    if (waits_for(plan, i, earlier)) return true;
  return false;
}

}  // namespace bonfire::testing
