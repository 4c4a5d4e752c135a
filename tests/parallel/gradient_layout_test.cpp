// Gradients are reduced as the kernels that make them lay them, and element meets element whatever that is.
#include <gtest/gtest.h>

#include <algorithm>

#include "bonfire/base/random.h"
#include "bonfire/bonfire.h"
#include "bonfire/runtime/plan_cache.h"
#include "tests/parallel/two_ranks.h"

namespace bonfire::testing::gradient_layout_test {
namespace {

constexpr int64_t kChannels = 16, kBatch = 8;

Tensor draws(const Shape& shape, uint64_t stream, Device device) {
  std::vector<float> values(static_cast<size_t>(shape.count()));
  for (size_t i = 0; i < values.size(); ++i) values[i] = normal_at(11, stream, i);
  return Tensor::from<float>(values, shape, device);
}

void lay_all(const nn::Module& model, const Layout& layout) {
  for (const Variable& parameter : model.parameters()) {
    if (parameter.shape().rank() != 4) continue;
    std::vector<std::byte> value = parameter.save();
    parameter.state().layout = layout;
    parameter.state().layout_fixed = true;
    parameter.load(value);
  }
}

class TwoConvolutions : public nn::Callable<TwoConvolutions> {
 public:
  TwoConvolutions() : Callable("TwoConvolutions") {}
  Tensor forward(const Tensor& x) const { return second_(tanh(first_(x))); }

 private:
  nn::Conv2d make(const char* name) {
    return register_module(name, nn::Conv2d({.in = kChannels, .out = kChannels, .kernel = {3}, .padding = {1}}));
  }
  nn::Conv2d first_ = make("first"), second_ = make("second");
};

// The weights of all layers after three compiled steps, the first of them with `first_batch` samples.
std::vector<std::vector<std::byte>> train(const TwoConvolutions& model, optim::Momentum optimizer, Device device,
                                          int64_t first_batch = kBatch) {
  auto step = compile(std::function<Tensor(const Tensor&)>([&](const Tensor& x) {
    Tensor y = model(x), loss = mean(y * y);
    loss.backward();
    optimizer.step();
    optimizer.clear_grad();
    return loss;
  }));
  const auto rank = static_cast<uint64_t>(fleet::rank());
  for (uint64_t i = 0; i < 3; ++i)
    step(draws({i == 0 ? first_batch : kBatch, kChannels, 12, 12}, 10 * rank + i, device));
  std::vector<std::vector<std::byte>> weights;
  for (const Variable& parameter : model.parameters()) weights.push_back(parameter.save());
  return weights;
}

optim::Momentum momentum(const nn::Module& model) { return {model.parameters(), {.lr = 0.1, .momentum = 0.9}}; }

// What two ranks end with whose weights lie in these ways, or as the first plan likes where there are none.
std::vector<std::vector<std::byte>> train_laid(std::vector<Layout> layouts, int64_t first_batch_of_one = kBatch) {
  std::vector<std::vector<std::byte>> weights[2];
  Outcome outcome;
  on_two_ranks(outcome, [&](Device device) {
    const auto rank = static_cast<size_t>(fleet::rank());
    manual_seed(3);
    TwoConvolutions plain;
    plain.to(device);
    TwoConvolutions model = fleet::distributed_model(plain);
    if (!layouts.empty()) lay_all(model, layouts[rank]);
    weights[rank] =
        train(model, fleet::distributed_optimizer(momentum(model)), device, rank == 1 ? first_batch_of_one : kBatch);
  });
  for (const std::string& error : outcome.errors) EXPECT_EQ(error, "");
  EXPECT_EQ(weights[0], weights[1]);  // the same bits
  return weights[0];
}

void expect_near(const std::vector<std::vector<std::byte>>& got, const std::vector<std::vector<std::byte>>& expected) {
  ASSERT_EQ(got.size(), expected.size());
  for (size_t i = 0; i < got.size(); ++i) {
    auto *a = reinterpret_cast<const float*>(got[i].data()), *b = reinterpret_cast<const float*>(expected[i].data());
    for (size_t j = 0; j < got[i].size() / sizeof(float); ++j)
      ASSERT_NEAR(a[j], b[j], 1e-5) << "parameter " << i << ", element " << j;
  }
}

TEST(DataParallel, RanksWhoseWeightsLieOtherwiseReduceElementByElement) {
  auto expected = train_laid({Layout{}, Layout{}});
  expect_near(train_laid({channels_last(), channels_last()}), expected);
  expect_near(train_laid({channels_last(), Layout{}}), expected);
  expect_near(train_laid({Layout{}, channels_last()}), expected);
}

TEST(DataParallel, RanksThatBeginWithOtherBatchesEndAlike) { train_laid({}, 3); }

// Of the step, which is the largest plan.
std::vector<runtime::PlanNote> notes_of_step() {
  auto plans = runtime::cached_plans();
  auto fewer = [](const auto& a, const auto& b) { return a->notes.size() < b->notes.size(); };
  return (*std::max_element(plans.begin(), plans.end(), fewer))->notes;
}

int64_t reorders_of_weights(const std::vector<runtime::PlanNote>& notes) {
  return std::count_if(notes.begin(), notes.end(), [](const runtime::PlanNote& note) {
    return note.node == "reorder" && note.result.shape == Shape{kChannels, kChannels, 3, 3};
  });
}

int64_t reduced_as(const std::vector<runtime::PlanNote>& notes, const Layout& layout) {
  int64_t operands = 0;
  for (const runtime::PlanNote& note : notes)
    if (note.node == "all_reduce")
      operands += std::count(note.output_layouts.begin(), note.output_layouts.end(), layout);
  return operands;
}

TEST(DataParallel, ReducingReordersNothing) {
  runtime::clear_plan_cache();
  TwoConvolutions model;
  lay_all(model, channels_last());
  train(model, momentum(model), {});
  const int64_t alone = reorders_of_weights(notes_of_step());
  runtime::clear_plan_cache();
  train_laid({channels_last(), channels_last()});
  EXPECT_EQ(reorders_of_weights(notes_of_step()), alone);
  EXPECT_EQ(reduced_as(notes_of_step(), channels_last()), 2);  // both weights
}

}  // namespace
}  // namespace bonfire::testing::gradient_layout_test
