#include <gtest/gtest.h>

#include <cmath>

#include "bonfire/base/error.h"
#include "bonfire/ops/elementwise.h"
#include "bonfire/ops/reduce.h"
#include "bonfire/optim/clip_grad.h"
#include "bonfire/optim/optimizer_state.h"
#include "bonfire/optim/optimizers.h"
#include "bonfire/runtime/compile.h"
#include "bonfire/runtime/plan_cache.h"
#include "tests/support/expect_error.h"
#include "tests/support/scratch_folder.h"

namespace bonfire::optim::optimizer_test {
namespace {

using Numbers = std::vector<float>;

Parameter parameter(const Numbers& values, std::string name = {}) {
  Variable variable({{static_cast<int64_t>(values.size())}, DType::f32, {}}, std::move(name));
  variable.load(std::as_bytes(std::span<const float>(values)));
  return Parameter(variable);
}
Numbers values_of(const Variable& variable) { return variable.value().to_vector<float>(); }

// A loss whose gradient is 2 (w − 3) for every element.
Tensor distance(const Variable& w) { return sum(square(w - 3.0)); }

TEST(Optimizer, UpdatesParametersInPlace) {
  Parameter w = parameter({1, 2});
  SGD optimizer(std::vector{w}, {.lr = 0.25});
  const void* memory = w.state().buffer.data();
  distance(w).backward();
  optimizer.step();
  EXPECT_EQ(values_of(w), (Numbers{2, 2.5F}));
  EXPECT_EQ(w.state().buffer.data(), memory);
}

TEST(Optimizer, LaysParametersGradientsAndStateOutLastFirst) {
  std::vector<Parameter> all = {parameter({1}), parameter(Numbers(20, 1)), parameter({3})};
  Momentum optimizer(all, {});
  auto state = optimizer.state();  // step, then one buffer a parameter
  ASSERT_EQ(state.size(), 4U);
  auto address = [](const Variable& variable) { return static_cast<char*>(variable.state().buffer.data()); };
  for (auto variable : {+[](const Parameter&p, const Variable&) { return Variable(p); },
                        +[](const Parameter&p, const Variable&) { return p.grad_variable(); },
                        +[](const Parameter&, const Variable&s) { return s; }}) {
    char* last = address(variable(all[2], state[3].second));
    EXPECT_EQ(address(variable(all[1], state[2].second)), last + 64);
    EXPECT_EQ(address(variable(all[0], state[1].second)), last + 64 + 128);
  }
}

TEST(Optimizer, LeavesFrozenParametersOutAndCountsTiedOnesOnce) {
  Parameter w = parameter({1}), frozen = parameter({1});
  frozen.set_requires_grad(false);
  SGD optimizer(std::vector{w, frozen, w}, {.lr = 0.5});
  EXPECT_EQ(optimizer.parameters(), std::vector<Variable>{w});
  sum(w * frozen).backward();
  optimizer.step();
  EXPECT_EQ(values_of(w), Numbers{0.5F});
  EXPECT_EQ(values_of(frozen), Numbers{1});
}

TEST(Optimizer, LeavesParametersWithoutAGradientAlone) {
  Parameter used = parameter({1}), idle = parameter({1});
  Momentum optimizer(std::vector{used, idle}, {.lr = 0.5, .weight_decay = 0.1});
  for (int i = 0; i < 2; ++i) {
    distance(used).backward();
    optimizer.step();
    optimizer.clear_grad();
  }
  EXPECT_EQ(values_of(idle), Numbers{1});
  EXPECT_NE(values_of(used), Numbers{1});
}

TEST(Optimizer, AddsGradientsUpUntilTheyAreCleared) {
  Parameter w = parameter({1});
  SGD optimizer(std::vector{w}, {.lr = 0.125});
  distance(w).backward();
  distance(w).backward();
  optimizer.step();
  EXPECT_EQ(values_of(w), Numbers{2});  // 1 + 0.125 · (4 + 4)
  optimizer.clear_grad();
  distance(w).backward();
  optimizer.step();
  EXPECT_EQ(values_of(w), Numbers{2.25F});
}

TEST(Optimizer, GivesGroupsTheirOwnSettings) {
  Parameter a = parameter({2}), b = parameter({2}), c = parameter({2});
  SGD optimizer({{.parameters = {a}}, {.parameters = {b}, .lr = 0.2}, {.parameters = {c}, .weight_decay = 1}},
                {.lr = 0.1});
  auto step = [&] {
    optimizer.clear_grad();
    (sum(a) + sum(b) + sum(c)).backward();
    optimizer.step();
  };
  step();
  EXPECT_FLOAT_EQ(values_of(a)[0], 1.9F);
  EXPECT_FLOAT_EQ(values_of(b)[0], 1.8F);
  EXPECT_FLOAT_EQ(values_of(c)[0], 1.7F);
  optimizer.set_lr(0.3);
  EXPECT_DOUBLE_EQ(optimizer.lr(), 0.3);
  EXPECT_DOUBLE_EQ(optimizer.lr(1), 0.6);
  step();
  EXPECT_FLOAT_EQ(values_of(a)[0], 1.6F);
  EXPECT_FLOAT_EQ(values_of(b)[0], 1.2F);
}

TEST(Optimizer, NeedsNoNewPlanForANewRate) {
  Parameter w = parameter({1});
  Adam optimizer(std::vector{w}, {});
  auto step = [&] {
    distance(w).backward();
    optimizer.step();
    optimizer.clear_grad();
  };
  step();
  step();
  uint64_t compiled = runtime::cache_statistics().compiled;
  optimizer.set_lr(0.7);
  float before = values_of(w)[0];
  step();
  EXPECT_NEAR(values_of(w)[0] - before, 0.7, 0.1);
  EXPECT_EQ(runtime::cache_statistics().compiled, compiled);
}

TEST(Optimizer, WorksInsideACompiledStep) {
  Parameter plain = parameter({1, -2}), compiled = parameter({1, -2});
  Adam plain_optimizer(std::vector{plain}, {.lr = 0.1}), optimizer(std::vector{compiled}, {.lr = 0.1});
  auto step = compile([&](const Tensor& target) {
    Tensor loss = sum(square(compiled - target));
    loss.backward();
    optimizer.step();
    optimizer.clear_grad();
    return loss;
  });
  for (int i = 0; i < 4; ++i) {
    if (i == 2) {
      optimizer.set_lr(0.03);
      plain_optimizer.set_lr(0.03);
    }
    Tensor target = Tensor::from<float>({static_cast<float>(i), 1}, {2});
    step(target);
    sum(square(plain - target)).backward();
    plain_optimizer.step();
    plain_optimizer.clear_grad();
  }
  EXPECT_EQ(values_of(compiled), values_of(plain));
  EXPECT_EQ(step.traced(), 1);
}

TEST(Optimizer, ContinuesFromItsSavedState) {
  auto run = [](int saved_after) {
    Parameter w = parameter({1, 2, 3}, "w");
    auto optimizer = std::make_unique<Adam>(std::vector{w}, AdamOptions{.lr = 0.1});
    for (int i = 0; i < 6; ++i) {
      if (i == saved_after) {
        std::vector<std::pair<std::string, std::vector<std::byte>>> saved;
        for (auto& [name, variable] : optimizer->state()) saved.emplace_back(name, variable.save());
        EXPECT_EQ(saved[0].first, "step");
        EXPECT_EQ(saved[1].first, "w.exp_avg");
        EXPECT_EQ(saved[2].first, "w.exp_avg_sq");
        w = parameter(values_of(w), "w");
        optimizer = std::make_unique<Adam>(std::vector{w}, AdamOptions{.lr = 0.1});
        auto state = optimizer->state();
        for (size_t k = 0; k < state.size(); ++k) state[k].second.load(saved[k].second);
      }
      distance(w).backward();
      optimizer->step();
      optimizer->clear_grad();
    }
    return values_of(w);
  };
  EXPECT_EQ(run(3), run(-1));
}

// The first update of a parameter is as large as that of another, however late it comes.
TEST(Optimizer, CountsTheUpdatesOfEachParameter) {
  Parameter early = parameter({1}), late = parameter({1});
  Adam optimizer(std::vector{early, late}, {.lr = 0.01});
  for (int i = 0; i < 50; ++i) {
    distance(i < 49 ? early : late).backward();
    optimizer.step();
    optimizer.clear_grad();
  }
  EXPECT_NEAR(values_of(late)[0], 1.01, 1e-5);
  EXPECT_EQ(optimizer.state()[0].second.value().to_vector<int64_t>(), (std::vector<int64_t>{49, 1}));
}

TEST(Optimizer, TakesOneCountForAllFromOlderFiles) {
  bonfire::testing::ScratchFolder folder;
  auto make = [](std::vector<Parameter>& all) {
    all = {parameter({1, 2}, "a"), parameter({3}, "b")};
    return Adam(all, {.lr = 0.1});
  };
  std::vector<Parameter> written, read;
  Adam first = make(written), second = make(read);
  auto step = [](const Adam& optimizer, const std::vector<Parameter>& all) {
    (distance(all[0]) + distance(all[1])).backward();
    Adam(optimizer).step();
    optimizer.clear_grad();
  };
  for (int i = 0; i < 3; ++i) step(first, written);
  nn::StateDict older = state_dict(first);
  ASSERT_EQ(older[0].name, "step");
  older[0].variable = Variable::from<int64_t>(std::vector<int64_t>{3}, Shape{});
  nn::save_state_dict(older, folder / "optimizer.safetensors");
  load_optimizer_state(second, folder / "optimizer.safetensors");
  for (size_t i = 0; i < 2; ++i) read[i].load(written[i].save());
  step(first, written);
  step(second, read);
  for (size_t i = 0; i < 2; ++i) EXPECT_EQ(values_of(read[i]), values_of(written[i]));
  EXPECT_EQ(second.state()[0].second.value().to_vector<int64_t>(), (std::vector<int64_t>{4, 4}));
}

TEST(Optimizer, KeepsStateOfBf16ParametersInF32) {
  Variable variable({{40}, DType::bf16, {}});
  Parameter w(variable);
  Momentum optimizer(std::vector{w}, {.lr = 0.5, .momentum = 0.5});
  for (int i = 0; i < 2; ++i) {
    sum(w.value().to(DType::f32)).backward();
    optimizer.step();
    optimizer.clear_grad();
  }
  EXPECT_EQ(optimizer.state()[1].second.dtype(), DType::f32);
  EXPECT_EQ(values_of(w), Numbers(40, -1.25F));  // −0.5 · 1 − 0.5 · 1.5
}

TEST(Optimizer, UpdatesLargeParametersAsSmallOnes) {
  // Longer than a block of the kernel, and not a multiple of anything.
  Parameter large = parameter(Numbers(10007, 2)), small = parameter({2});
  for (auto make : {+[](const Parameter& w) -> Optimizer { return LARS(std::vector{w}, {.lr = 0.5, .momentum = 0}); },
                    +[](const Parameter& w) -> Optimizer { return LAMB(std::vector{w}, {.lr = 0.5}); },
                    +[](const Parameter& w) -> Optimizer { return AdamW(std::vector{w}, {.lr = 0.5}); }}) {
    for (const Parameter& w : {large, small}) {
      Optimizer optimizer = make(w);
      optimizer.clear_grad();
      distance(w).backward();
      optimizer.step();
    }
    Numbers values = values_of(large);
    float expected = values_of(small)[0];  // all elements are alike, so ratios of norms are the same
    for (float value : values) ASSERT_NEAR(value, expected, 1e-5);
  }
}

TEST(Optimizer, RefusesSettingsThatMakeNoSense) {
  Parameter w = parameter({1});
  EXPECT_ERROR(SGD(std::vector{w}, {.lr = -1}), ConfigError, "[sgd] lr is -1");
  EXPECT_ERROR(Adam(std::vector{w}, {.weight_decay = -1}), ConfigError, "[adam] weight_decay is -1");
  EXPECT_ERROR(SGD(std::vector<Parameter>{}, {.lr = 1}), ConfigError, "[sgd] there is no parameter");
}

TEST(ClipGradNorm, ScalesGradientsDownToTheNorm) {
  Parameter a = parameter({0, 0}), b = parameter({0});
  SGD optimizer(std::vector{a, b}, {.lr = 1});
  auto backward = [&] {
    optimizer.clear_grad();
    (sum(a * Tensor::from<float>({2, 3}, {2})) + sum(b * 6.0)).backward();  // the norm is 7
  };
  backward();
  Tensor norm = clip_grad_norm(std::vector{a, b}, 3.5);
  optimizer.step();
  EXPECT_FLOAT_EQ(norm.item<float>(), 7);
  EXPECT_NEAR(values_of(a)[0], -1, 1e-6);
  EXPECT_NEAR(values_of(a)[1], -1.5, 1e-6);
  EXPECT_NEAR(values_of(b)[0], -3, 1e-6);
  EXPECT_NEAR(b.grad().item<float>(), 3, 1e-6);
}

TEST(ClipGradNorm, LeavesSmallGradientsAndThoseThatAreNotThere) {
  Parameter a = parameter({5}), idle = parameter({5});
  EXPECT_EQ(clip_grad_norm(std::vector{a, idle}, 1).item<float>(), 0);
  sum(a * 0.5).backward();
  EXPECT_EQ(clip_grad_norm(std::vector{a, idle, a}, 1).item<float>(), 0.5F);
  EXPECT_EQ(a.grad().item<float>(), 0.5F);
  EXPECT_FALSE(idle.grad().defined());
}

TEST(ClipGradNorm, PassesOnWhatIsNotANumber) {
  Parameter a = parameter({-1, 1});
  sum(sqrt(a.value())).backward();
  EXPECT_TRUE(std::isnan(clip_grad_norm(std::vector{a}, 1).item<float>()));
  EXPECT_TRUE(std::isnan(a.grad().to_vector<float>()[1]));
}

}  // namespace
}  // namespace bonfire::optim::optimizer_test
