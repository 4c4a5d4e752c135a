// A variable that is updated between a forward pass that has run and its backward pass.
#include <gtest/gtest.h>

#include "bonfire/bonfire.h"
#include "tests/support/expect_error.h"

namespace bonfire::versions_test {
namespace {

Parameter parameter(float value) { return Parameter(Variable::from<float>(std::vector<float>{value}, {1})); }

// Two losses, 3·w² and w²; the first is read, then an update by the second follows, 3 → 1.
struct TwoLosses {
  Parameter w = parameter(3);
  optim::SGD optimizer{std::vector<Parameter>{w}, {.lr = 1.0 / 3}};
  Tensor first, second;

  TwoLosses() {
    first = sum(square(w.value())) * 3.0;
    second = sum(square(w.value()));
    EXPECT_EQ(first.item<float>(), 27);
  }
  void finish() {
    EXPECT_NEAR(w.value().item<float>(), 1, 1e-6);
    optimizer.clear_grad();
    first.backward();
    EXPECT_NEAR(w.grad().item<float>(), 18, 1e-5) << "3 · 2 · w, with w = 3 as it was in the forward pass";
  }
};

TEST(Versions, AnUpdateLeavesTheVersionThatAHistoryNeeds) {
  TwoLosses losses;
  losses.second.backward();
  losses.optimizer.step();
  losses.finish();
}

TEST(Versions, ACompiledUpdateLeavesItToo) {
  TwoLosses losses;
  auto step = compile([&](const Tensor& rate) { losses.w.assign(losses.w.value() - losses.w.value() * rate); });
  step(Tensor::from<float>({2.0F / 3}, {1}));
  losses.finish();
}

TEST(Versions, AHandleAndAHistoryShareTheOldVersion) {
  TwoLosses losses;
  Tensor old = losses.w.value();
  losses.second.backward();
  losses.optimizer.step();
  EXPECT_EQ(old.item<float>(), 3);
  losses.finish();
}

TEST(Versions, SeveralUpdatesLeaveEachVersion) {
  Parameter w = parameter(1);
  std::vector<Tensor> losses;
  for (float value : {1.0F, 2.0F, 3.0F}) {
    losses.push_back(sum(square(w.value())));
    EXPECT_EQ(losses.back().item<float>(), value * value);
    w.assign(w.value() + 1.0);
    commit();
  }
  for (int i = 2; i >= 0; --i) {
    w.clear_grad();
    losses[static_cast<size_t>(i)].backward();
    EXPECT_EQ(w.grad().item<float>(), 2.0F * static_cast<float>(i + 1));
  }
}

TEST(Versions, LoadLeavesItToo) {
  Parameter w = parameter(3);
  Tensor loss = sum(square(w.value()));
  loss.item();
  const float other[] = {100};
  w.load(std::as_bytes(std::span<const float>(other)));
  loss.backward();
  EXPECT_EQ(w.grad().item<float>(), 6);
}

// A loop that reads its loss before backward() must not pay for a copy of every parameter.
TEST(Versions, UpdatesStayInPlaceInTheUsualLoop) {
  Parameter w = parameter(3);
  optim::SGD optimizer(std::vector<Parameter>{w}, {.lr = 0.1});
  for (int step = 0; step < 3; ++step) {
    Tensor loss = sum(square(w.value()));
    loss.item();
    loss.backward();
    Node* leaf = w.state().leaf;
    ASSERT_NE(leaf, nullptr);
    NodePtr held(leaf);
    EXPECT_FALSE(leaf->wanted());
    optimizer.step();
    optimizer.clear_grad();
    EXPECT_FALSE(static_cast<bool>(held->outputs[0].buffer)) << "a copy of the old version was made";
  }
}

TEST(Versions, AHistoryThatNobodyHoldsAnyMoreNeedsNothing) {
  Parameter w = parameter(3);
  {
    Tensor loss = sum(square(w.value()));
    loss.item();
    EXPECT_TRUE(w.state().leaf->wanted());
  }
  EXPECT_TRUE(w.state().leaf == nullptr || !w.state().leaf->wanted());
}

}  // namespace
}  // namespace bonfire::versions_test
