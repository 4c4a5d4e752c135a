#include "bonfire/graph/variable_copies.h"

#include <gtest/gtest.h>

#include <thread>

#include "bonfire/ops/elementwise.h"
#include "bonfire/ops/reduce.h"

namespace bonfire::variable_copies_test {
namespace {

const Device kOther{DeviceType::cpu, 1};

Variable made() {
  Variable variable = Variable::from<float>(std::vector<float>{1, 2}, {2});
  variable.set_requires_grad(true);
  return variable;
}

std::vector<float> values(const Variable& variable) { return variable.value().to_vector<float>(); }

TEST(VariableCopies, AreReadAndChangedInTheirScopeOnly) {
  const Variable variable = made();
  VariableCopies copies;
  copies.add(variable, kOther);
  copies.add(variable, kOther);  // the same one
  {
    UseCopies scope(copies);
    EXPECT_EQ(values(variable), (std::vector<float>{0, 0}));
    EXPECT_EQ(variable.value().device(), kOther);
    variable.assign(variable + 5.0);
    EXPECT_EQ(values(variable), (std::vector<float>{5, 5}));
    std::thread([&] { EXPECT_EQ(values(variable), (std::vector<float>{1, 2})); }).join();
    const VariableCopies none;
    UseCopies inner(none);
    EXPECT_EQ(values(variable), (std::vector<float>{1, 2}));
  }
  EXPECT_EQ(values(variable), (std::vector<float>{1, 2}));
  EXPECT_EQ(values(*copies.find(variable)), (std::vector<float>{5, 5}));
}

TEST(VariableCopies, HaveGradientsOfTheirOwn) {
  const Variable variable = made(), frozen = Variable::from<float>(std::vector<float>{3}, {1});
  VariableCopies copies;
  copies.add(variable, kOther);
  copies.add(frozen, kOther);
  EXPECT_FALSE(copies.find(frozen)->requires_grad());
  {
    UseCopies scope(copies);
    sum(variable * 3.0).backward();
    EXPECT_EQ(variable.grad().to_vector<float>(), (std::vector<float>{3, 3}));
  }
  EXPECT_FALSE(variable.grad().defined());
  EXPECT_EQ(copies.find(variable)->grad().to_vector<float>(), (std::vector<float>{3, 3}));
}

TEST(VariableCopies, OfAnUndefinedVariableThereAreNone) {
  VariableCopies copies;
  UseCopies scope(copies);
  EXPECT_EQ(copies.find(Variable()), nullptr);
  EXPECT_FALSE(here(Variable()).defined());
}

}  // namespace
}  // namespace bonfire::variable_copies_test
