// Every optimizer and schedule against the values of tests/golden: 50 steps of given gradients, the rate dropping to a
// tenth on the way.

#include "bonfire/optim/optimizers.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "bonfire/optim/schedule.h"
#include "tests/golden/golden.h"

namespace bonfire::optim::optimizers_test {
namespace {

using nlohmann::json;

double number(const json& options, const char* name, double otherwise = 0) { return options.value(name, otherwise); }
std::array<double, 2> betas(const json& options) { return options.at("betas").get<std::array<double, 2>>(); }

Optimizer make_optimizer(const std::string& name, const ParameterGroups& parameters, const json& o) {
  double lr = number(o, "lr"), decay = number(o, "weight_decay");
  if (name.starts_with("sgd")) return SGD(parameters, {.lr = lr, .weight_decay = decay});
  if (name.starts_with("momentum") || name == "nesterov")
    return Momentum(
        parameters,
        {.lr = lr, .momentum = number(o, "momentum"), .weight_decay = decay, .nesterov = o.value("nesterov", false)});
  if (name == "adagrad") return Adagrad(parameters, {.lr = lr, .weight_decay = decay, .eps = number(o, "eps")});
  if (name == "adamw")
    return AdamW(parameters, {.lr = lr, .betas = betas(o), .eps = number(o, "eps"), .weight_decay = decay});
  if (name.starts_with("adam"))
    return Adam(parameters, {.lr = lr, .betas = betas(o), .eps = number(o, "eps"), .weight_decay = decay});
  if (name == "lars")
    return LARS(parameters, {.lr = lr,
                             .momentum = number(o, "momentum"),
                             .weight_decay = decay,
                             .trust_coefficient = number(o, "trust_coefficient"),
                             .eps = number(o, "eps")});
  if (name == "lamb")
    return LAMB(parameters, {.lr = lr, .betas = betas(o), .eps = number(o, "eps"), .weight_decay = decay});
  throw std::runtime_error("no optimizer for the case " + name);
}

// The numbers as T, and a variable of them.
template <class T>
std::vector<T> as(const std::vector<float>& values) {
  return {values.begin(), values.end()};
}
template <class T>
Parameter make_parameter(const json& description) {
  auto shape = description.at("shape").get<std::vector<int64_t>>();
  std::string name = description.at("name");
  std::vector<float> values =
      golden::parameter_values(name, shape, golden::kind_from_text(description.at("kind").get<std::string>()));
  return Parameter(Variable::from<T>(as<T>(values), Shape(shape)));
}

bool has_gradient(const json& file, const std::string& name, int step) {
  const json& gaps = file.at("gaps").at(name);
  return std::find(gaps.begin(), gaps.end(), step) == gaps.end();
}

// Runs the steps of a case in T and calls check(step, name, values) after those that the file has.
template <class T, class Check>
void run_case(const json& file, const json& one, const char* values, const Check& check) {
  const json& expected = one.at(values);
  const bool gaps = std::string_view(values) == "values_with_gaps";
  std::vector<Parameter> parameters;
  for (const json& description : file.at("parameters")) parameters.push_back(make_parameter<T>(description));
  Optimizer optimizer = make_optimizer(one.at("name"), parameters, one.at("options"));
  for (int step = 0; step < file.at("steps").get<int>(); ++step) {
    if (step == file.at("lr_drop_step").get<int>())
      optimizer.set_lr(optimizer.lr() * file.at("lr_drop_factor").get<double>());
    for (size_t i = 0; i < parameters.size(); ++i) {
      std::string name = file.at("parameters")[i].at("name");
      if (gaps && !has_gradient(file, name, step)) continue;
      std::vector<float> gradient = golden::gradient_values(name, step, parameters[i].shape().count());
      parameters[i].grad_variable().assign(Tensor::from<T>(std::span<const T>(as<T>(gradient)), parameters[i].shape()));
      parameters[i].state().gradient_is_clear = false;
    }
    optimizer.step();
    optimizer.clear_grad();
    std::string key = std::to_string(step + 1);
    if (!expected.contains(key)) continue;
    for (size_t i = 0; i < parameters.size(); ++i) {
      std::string name = file.at("parameters")[i].at("name");
      check(step + 1, name, parameters[i].value().template to_vector<double>(),
            expected.at(key).at(name).template get<std::vector<double>>());
    }
  }
}

class GoldenOptimizers : public ::testing::TestWithParam<std::string> {
 protected:
  GoldenOptimizers() : file_(golden::load_json("optimizers")) {
    for (const json& one : file_.at("cases"))
      if (one.at("name") == GetParam()) case_ = one;
  }
  json file_, case_;
};

auto within(double tolerance) {
  return [tolerance](int step, const std::string& name, const auto& found, const auto& expected) {
    for (size_t i = 0; i < expected.size(); ++i)
      EXPECT_NEAR(found[i], expected[i], tolerance * std::max(1.0, std::abs(expected[i])))
          << name << "[" << i << "] after step " << step;
  };
}

TEST_P(GoldenOptimizers, InF64) { run_case<double>(file_, case_, "values", within(1e-12)); }
TEST_P(GoldenOptimizers, InF32) { run_case<float>(file_, case_, "values", within(5e-6)); }

// A parameter that has no gradient in some steps, the first ones among them.
TEST_P(GoldenOptimizers, CountTheUpdatesOfEachParameter) {
  run_case<double>(file_, case_, "values_with_gaps", within(1e-12));
  run_case<float>(file_, case_, "values_with_gaps", within(5e-6));
}

std::vector<std::string> optimizer_names() {
  std::vector<std::string> names;
  const json file = golden::load_json("optimizers");
  for (const json& one : file.at("cases")) names.push_back(one.at("name"));
  return names;
}
INSTANTIATE_TEST_SUITE_P(All, GoldenOptimizers, ::testing::ValuesIn(optimizer_names()),
                         [](const auto& info) { return info.param; });

TEST(GoldenSchedules, EveryRateIsTheExpectedOne) {
  const json file = golden::load_json("schedules");
  ASSERT_FALSE(file.at("cases").empty());
  for (const json& one : file.at("cases")) {
    const json& o = one.at("options");
    Schedule schedule{.kind = parse_schedule_kind(one.at("name").get<std::string>()),
                      .lr = one.at("lr"),
                      .milestones = o.value("milestones", std::vector<double>()),
                      .gamma = number(o, "gamma"),
                      .total_steps = number(o, "total_steps"),
                      .min_lr = number(o, "min_lr"),
                      .power = number(o, "power"),
                      .warmup_steps = number(o, "warmup_steps"),
                      .warmup_start_lr = number(o, "warmup_start_lr")};
    auto rates = one.at("rates").get<std::vector<double>>();
    for (size_t step = 0; step < rates.size(); ++step)
      EXPECT_NEAR(schedule.at(static_cast<double>(step)), rates[step], 1e-12)
          << one.at("name") << (schedule.warmup_steps > 0 ? " with warm-up" : "") << " at step " << step;
  }
}

}  // namespace
}  // namespace bonfire::optim::optimizers_test
