#include "bonfire/base/vector_math.h"

#include <gtest/gtest.h>

#include <limits>

namespace bonfire::base::vector_math_test {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// The largest relative error over [low, high], in steps that hit no special points.
template <class Found, class Exact>
double worst_error(float low, float high, Found found, Exact exact) {
  double worst = 0;
  for (float x = low; x < high; x += (high - low) / 40007.0F) {
    double expected = exact(static_cast<double>(x));
    worst = std::max(worst, std::abs(static_cast<double>(found(x)) - expected) / std::abs(expected));
  }
  return worst;
}

TEST(Exponential, IsWithinOneUnitInTheLastPlace) {
  auto found = [](float x) { return exponential(x); };
  auto exact = [](double x) { return std::exp(x); };
  EXPECT_LT(worst_error(-87, 88.5F, found, exact), 1.3e-7);
  EXPECT_LT(worst_error(-1e-3F, 1e-3F, found, exact), 1.3e-7);
}

TEST(Exponential, ReachesItsLimits) {
  EXPECT_EQ(exponential(0.0F), 1.0F);
  EXPECT_EQ(exponential(-kInfinity), 0.0F);
  EXPECT_EQ(exponential(kInfinity), kInfinity);
  EXPECT_EQ(exponential(89.0F), kInfinity);
  EXPECT_EQ(exponential(-200.0F), 0.0F);
  EXPECT_NEAR(exponential(-95.0F), std::exp(-95.0), 1e-45);  // below the smallest normal number
  EXPECT_TRUE(std::isnan(exponential(std::numeric_limits<float>::quiet_NaN())));
}

TEST(QuickExponential, IsTheSameBelow88) {
  auto found = [](float x) { return quick_exponential(x); };
  auto exact = [](double x) { return std::exp(x); };
  EXPECT_LT(worst_error(-87, 88, found, exact), 1.3e-7);
  EXPECT_EQ(quick_exponential(0.0F), 1.0F);
  EXPECT_EQ(quick_exponential(-87.1F), 0.0F);  // not one of the numbers that processors are slow with
  for (float x : {-1e4F, -1e7F, -1e9F, -1e30F}) EXPECT_EQ(quick_exponential(x), 0.0F) << x;
  EXPECT_EQ(quick_exponential(-kInfinity), 0.0F);
  EXPECT_TRUE(std::isnan(quick_exponential(std::numeric_limits<float>::quiet_NaN())));
}

TEST(HyperbolicTangent, IsExactNearZeroToo) {
  auto found = [](float x) { return hyperbolic_tangent(x); };
  auto exact = [](double x) { return std::tanh(x); };
  EXPECT_LT(worst_error(1e-6F, 0.3F, found, exact), 1e-6);
  EXPECT_LT(worst_error(-12, -0.2F, found, exact), 1e-6);
  EXPECT_EQ(hyperbolic_tangent(100.0F), 1.0F);
  EXPECT_EQ(hyperbolic_tangent(-100.0F), -1.0F);
  EXPECT_EQ(hyperbolic_tangent(0.0F), 0.0F);
}

TEST(ErrorFunction, IsExactNearZeroAndFarFromIt) {
  auto found = [](float x) { return error_function(x); };
  auto exact = [](double x) { return std::erf(x); };
  EXPECT_LT(worst_error(1e-6F, 0.5F, found, exact), 5e-7);
  EXPECT_LT(worst_error(-6, -0.3F, found, exact), 5e-7);
  EXPECT_EQ(error_function(0.0F), 0.0F);
  EXPECT_EQ(error_function(kInfinity), 1.0F);
  EXPECT_EQ(error_function(-kInfinity), -1.0F);
  EXPECT_TRUE(std::isnan(error_function(std::numeric_limits<float>::quiet_NaN())));
}

}  // namespace
}  // namespace bonfire::base::vector_math_test
