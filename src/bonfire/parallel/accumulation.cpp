#include "bonfire/parallel/accumulation.h"

#include "bonfire/graph/tensor.h"
#include "bonfire/ops/elementwise.h"

namespace bonfire::fleet {

Accumulation::Accumulation(const optim::Optimizer& optimizer, int64_t batches)
    : parameters_(optimizer.parameters()), batches_(batches) {
  StepContext& context = StepContext::current();
  hooks_.push_back(context.before_backward.add(
      [part = 1.0 / static_cast<double>(batches)](const Tensor& seed) { return seed * part; }));
  hooks_.push_back(context.update_is_due.add([this] { return added_ + 1 == batches_; }));
  hooks_.push_back(context.gradients_are_done.add([this] { return added_ == 0; }));
  hooks_.push_back(context.after_step.add([this](const optim::Optimizer& one) {
    if (one.parameters() == parameters_) added_ = (added_ + 1) % batches_;
  }));
}

}  // namespace bonfire::fleet
