// LARS, LAMB and gradient clipping as two ops, sums of squares and what is done with them: alone, as slices, and fused.

#include <gtest/gtest.h>

#include "bonfire/ops/elementwise.h"
#include "bonfire/ops/optimizer_update.h"
#include "bonfire/ops/random.h"
#include "bonfire/ops/reduce.h"
#include "bonfire/ops/shape_ops.h"
#include "bonfire/optim/clip_grad.h"
#include "bonfire/optim/optimizers.h"
#include "bonfire/runtime/plan_cache.h"

namespace bonfire::optim::norms_test {
namespace {

using Numbers = std::vector<double>;

// Of the kernel's blocks, none, one that is not full, one, and several; and one element.
const std::vector<Shape> kShapes = {{7}, {1}, {0}, {64, 64}, {3, 5000}};

std::vector<Tensor> drawn(const std::vector<Shape>& shapes, DType dtype) {
  std::vector<Tensor> list;
  for (const Shape& shape : shapes) list.push_back(uniform_random(shape).to(dtype));
  commit();
  return list;
}

// Whole numbers from −8 to 7: their squares add up to the same bits in any order.
std::vector<Tensor> whole_numbers(const std::vector<Shape>& shapes) {
  std::vector<Tensor> list;
  for (const Shape& shape : shapes) list.push_back(floor(uniform_random(shape) * 16.0 - 8.0));
  commit();
  return list;
}

// Everything that an update of `rule` reads.
struct Update {
  OptimizerUpdate update;
  Tensor counts;
  std::vector<int64_t> places;
  std::vector<Tensor> parameters, gradients, states;

  Update(OptimizerRule rule, std::vector<Tensor> own_parameters, std::vector<Tensor> own_gradients)
      : update{.rule = rule, .lr = 0.1, .weight_decay = 0.01, .first = 0.9, .second = 0.99, .eps = 1e-6},
        parameters(std::move(own_parameters)),
        gradients(std::move(own_gradients)) {
    std::vector<int64_t> before;
    for (size_t i = 0; i < parameters.size(); ++i) {
      places.push_back(static_cast<int64_t>(parameters.size() - 1 - i));
      before.push_back(static_cast<int64_t>(i / 2));
    }
    counts = Tensor::from<int64_t>(before, {static_cast<int64_t>(before.size())});
    for (int kind = 0; kind < state_count(rule); ++kind)
      for (const Tensor& gradient : gradients) {
        const Tensor wide = gradient.dtype() == DType::bf16 ? gradient.to(DType::f32) : gradient;
        states.push_back(square(wide) * 0.5);
      }
    commit();
  }

  UpdateOperands operands() const { return update_operands(update, {counts, places}, parameters, gradients, states); }
};

std::vector<Numbers> values_of(const Tensors& results) {
  commit();
  std::vector<Numbers> list;
  for (const Tensor& result : results) list.push_back(result.to_vector<double>());
  return list;
}

// Nobody holds the squares when these have returned, so that they are fused.
Tensors updated(const Update& update) {
  const UpdateOperands operands = update.operands();
  return optimizer_update(operands, update_squares(operands));
}
Tensors clipped(const std::vector<Tensor>& gradients, double max_norm) {
  return clip_gradients(gradients, gradient_squares(gradients), max_norm);
}

// The names of the nodes of the step that was submitted last.
std::vector<std::string> nodes_of_last_step() {
  std::vector<std::string> names;
  for (const GraphNode& node : runtime::cached_plans().front()->graph->nodes())
    if (!node.is_input()) names.emplace_back(node.name());
  return names;
}
size_t kernels_of_last_step() {
  size_t steps = 0;
  for (const runtime::PlanProgram& program : runtime::cached_plans().front()->programs)
    steps += program.program->steps.size();
  return steps;
}

const OptimizerRule kRules[] = {OptimizerRule::lars, OptimizerRule::lamb};

TEST(Norms, AnUpdateBySquaresOfItsOwnHasTheBitsOfTheFusedOne) {
  for (OptimizerRule rule : kRules)
    for (DType dtype : {DType::f32, DType::f64, DType::bf16}) {
      manual_seed(3);
      const Update update(rule, drawn(kShapes, dtype), drawn(kShapes, dtype));
      const std::vector<Numbers> fused = values_of(updated(update));
      EXPECT_EQ(nodes_of_last_step(), std::vector<std::string>{"optimizer_update"});
      const UpdateOperands operands = update.operands();
      const Tensor squares = update_squares(operands);
      squares.to_vector<double>();  // a step of its own
      EXPECT_EQ(nodes_of_last_step(), std::vector<std::string>{"update_squares"});
      EXPECT_EQ(values_of(optimizer_update(operands, squares)), fused) << static_cast<int>(rule) << name_of(dtype);
      EXPECT_EQ(nodes_of_last_step(), std::vector<std::string>{"optimizer_update_by_squares"});
    }
}

TEST(Norms, SquaresAreThoseOfParametersAndOfWhatTheirNormsAreComparedWith) {
  manual_seed(4);
  const Update update(OptimizerRule::lars, whole_numbers(kShapes), whole_numbers(kShapes));
  const Tensor squares = update_squares(update.operands());
  EXPECT_EQ(squares.shape(), (Shape{2, static_cast<int64_t>(kShapes.size())}));
  const Numbers found = squares.to_vector<double>();
  for (size_t i = 0; i < kShapes.size(); ++i) {
    EXPECT_EQ(found[i], sum(square(update.parameters[i].to(DType::f64))).item<double>());
    EXPECT_EQ(found[kShapes.size() + i], sum(square(update.gradients[i].to(DType::f64))).item<double>());
  }
}

// Rows [begin, end) of every tensor.
std::vector<Tensor> rows(const std::vector<Tensor>& list, int64_t begin, int64_t end) {
  std::vector<Tensor> slices;
  for (const Tensor& one : list) slices.push_back(slice(one, 0, begin, end));
  return slices;
}

// As two ranks would: each has some rows of every tensor, and the squares of both are added between the two ops.
TEST(Norms, SlicesAreUpdatedAsTheWholeIs) {
  const std::vector<Shape> shapes = {{5, 3}, {5, 2000}};
  for (OptimizerRule rule : kRules) {
    manual_seed(5);
    const Update whole(rule, whole_numbers(shapes), whole_numbers(shapes));
    const std::vector<Numbers> expected = values_of(updated(whole));
    Update slices[] = {whole, whole};
    Tensor squares;
    for (size_t i = 0; i < 2; ++i) {
      for (auto list : {&Update::parameters, &Update::gradients, &Update::states})
        slices[i].*list = rows(whole.*list, i == 0 ? 0 : 2, i == 0 ? 2 : 5);
      const Tensor own = update_squares(slices[i].operands());
      squares = squares.defined() ? squares + own : own;
    }
    Tensors first = optimizer_update(slices[0].operands(), squares);
    Tensors second = optimizer_update(slices[1].operands(), squares);
    commit();
    EXPECT_EQ(first[0].to_vector<double>(), expected[0]);
    for (size_t i = 1; i < first.size(); ++i) {
      const Numbers found = concat(std::vector{first[i], second[i]}, 0).to_vector<double>();
      ASSERT_EQ(found.size(), expected[i].size());
      for (size_t k = 0; k < found.size(); ++k)
        if (rule == OptimizerRule::lars)
          ASSERT_EQ(found[k], expected[i][k]) << i << ", " << k;
        else  // directions are no whole numbers
          ASSERT_NEAR(found[k], expected[i][k], 1e-6) << i << ", " << k;
    }
  }
}

TEST(Norms, ClippingBySquaresOfItsOwnHasTheBitsOfTheFusedOne) {
  for (DType dtype : {DType::f32, DType::f64, DType::bf16})
    for (double max_norm : {0.5, 1e6}) {
      manual_seed(6);
      const std::vector<Tensor> gradients = drawn(kShapes, dtype);
      const std::vector<Numbers> fused = values_of(clipped(gradients, max_norm));
      EXPECT_EQ(nodes_of_last_step(), std::vector<std::string>{"clip_gradients"});
      const Tensor squares = gradient_squares(gradients);
      squares.item<double>();
      EXPECT_EQ(values_of(clip_gradients(gradients, squares, max_norm)), fused);
      EXPECT_EQ(nodes_of_last_step(), std::vector<std::string>{"clip_gradients_by_squares"});
    }
}

TEST(Norms, SlicesAreClippedAsTheWholeIs) {
  manual_seed(7);
  const std::vector<Tensor> whole = whole_numbers({{5, 3}, {5, 2000}});
  const std::vector<Numbers> expected = values_of(clipped(whole, 1));
  const std::vector<Tensor> first = rows(whole, 0, 2), second = rows(whole, 2, 5);
  const Tensor squares = gradient_squares(first) + gradient_squares(second);
  Tensors results[] = {clip_gradients(first, squares, 1), clip_gradients(second, squares, 1)};
  EXPECT_EQ(results[0][0].to_vector<double>(), expected[0]);
  for (size_t i = 1; i < expected.size(); ++i)
    EXPECT_EQ(concat(std::vector{results[0][i], results[1][i]}, 0).to_vector<double>(), expected[i]);
}

// One step of a small model, the second of its kind.
template <class Kind>
void step(const typename Kind::Options& options, bool clips) {
  std::vector<Parameter> parameters;
  for (const Shape& shape : kShapes) parameters.emplace_back(Variable({shape, DType::f32, {}}));
  Kind optimizer(parameters, options);
  for (int i = 0; i < 2; ++i) {
    Tensor loss = sum(square(parameters[0] - 3.0));
    for (size_t k = 1; k < parameters.size(); ++k) loss = loss + sum(square(parameters[k] - 3.0));
    loss.backward();
    if (clips) clip_grad_norm(parameters, 1);
    optimizer.step();
    optimizer.clear_grad();
  }
  synchronize();
}

struct LarsStep : LARS {
  using Options = LARSOptions;
  using LARS::LARS;
};
struct LambStep : LAMB {
  using Options = LAMBOptions;
  using LAMB::LAMB;
};
struct MomentumStep : Momentum {
  using Options = MomentumOptions;
  using Momentum::Momentum;
};
struct AdamStep : Adam {
  using Options = AdamOptions;
  using Adam::Adam;
};

// What has no norms is one kernel, and so are the rules that have.
TEST(Norms, AStepHasNoKernelForThemAlone) {
  for (bool clips : {false, true}) {
    step<MomentumStep>({.lr = 0.1}, clips);
    const size_t momentum = kernels_of_last_step();
    step<LarsStep>({.lr = 0.1}, clips);
    EXPECT_EQ(kernels_of_last_step(), momentum) << runtime::print_plan(*runtime::cached_plans().front());
    step<AdamStep>({.lr = 0.1}, clips);
    const size_t adam = kernels_of_last_step();
    step<LambStep>({.lr = 0.1}, clips);
    EXPECT_EQ(kernels_of_last_step(), adam) << runtime::print_plan(*runtime::cached_plans().front());
    const std::string plan = runtime::print_plan(*runtime::cached_plans().front());
    EXPECT_EQ(plan.find("squares"), std::string::npos) << plan;
    EXPECT_NE(plan.find("optimizer_update"), std::string::npos) << plan;
    EXPECT_EQ(plan.find("clip_gradients") != std::string::npos, clips) << plan;
  }
}

}  // namespace
}  // namespace bonfire::optim::norms_test
