#include "bonfire/parallel/balance.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "bonfire/bonfire.h"
#include "bonfire/data/glyphs.h"
#include "tests/parallel/two_ranks.h"
#include "tests/support/expect_error.h"

namespace bonfire::balance_test {
namespace {

using Numbers = std::vector<int64_t>;

// How long a step takes with these shares.
int64_t longest(const Numbers& shares, const Numbers& nanoseconds) {
  int64_t most = 0;
  for (size_t r = 0; r < shares.size(); ++r) most = std::max(most, shares[r] * nanoseconds[r]);
  return most;
}

TEST(Balance, SharesFollowSpeed) {
  EXPECT_EQ(shares_for(Numbers{700, 700}, 64), (Numbers{64, 64}));
  EXPECT_EQ(shares_for(Numbers{1000, 3000}, 64), (Numbers{96, 32}));
  EXPECT_EQ(shares_for(Numbers{3000, 1000}, 64), (Numbers{32, 96}));
  EXPECT_EQ(shares_for(Numbers{1000, 2000, 2000}, 64), (Numbers{96, 48, 48}));
  EXPECT_EQ(shares_for(Numbers{5}, 64), Numbers{64});
}

TEST(Balance, EveryRankKeepsASample) {
  EXPECT_EQ(shares_for(Numbers{1, 100'000'000'000}, 8), (Numbers{15, 1}));
  EXPECT_EQ(shares_for(Numbers{1, 100'000'000'000}, 2), (Numbers{3, 1}));
  EXPECT_EQ(shares_for(Numbers{1, 1'000'000, 1'000'000}, 64), (Numbers{176, 8, 8}));  // in steps of 8
}

TEST(Balance, SharesAddUpMoveInEighthsAndAreTheBestThereAre) {
  std::mt19937 random(11);
  for (int trial = 0; trial < 200; ++trial) {
    const auto batch = static_cast<int64_t>(2 + random() % 200);
    const int64_t part = std::max<int64_t>(1, batch / 8);
    Numbers nanoseconds(2 + random() % 6);
    for (int64_t& one : nanoseconds) one = static_cast<int64_t>(1 + random() % 10'000);
    const Numbers shares = shares_for(nanoseconds, batch);
    EXPECT_EQ(std::accumulate(shares.begin(), shares.end(), int64_t{0}),
              batch * static_cast<int64_t>(nanoseconds.size()));
    for (int64_t share : shares) {
      EXPECT_GE(share, 1);
      EXPECT_EQ((share - batch) % part, 0);
    }
    // No part moved from one rank to another makes the step shorter.
    for (size_t from = 0; from < shares.size(); ++from)
      for (size_t to = 0; to < shares.size(); ++to) {
        Numbers other = shares;
        other[from] -= part;
        other[to] += part;
        if (other[from] < 1) continue;
        EXPECT_GE(longest(other, nanoseconds), longest(shares, nanoseconds));
      }
  }
}

TEST(Balance, SharesChangeOnlyWhereTwoWindowsSayThatItIsWorthIt) {
  Balance balance(2, 64);
  EXPECT_FALSE(balance.note(Numbers{1000, 3000}));                              // one window says nothing yet
  EXPECT_FALSE(balance.note(Numbers{1000, 1000}));                              // it was disturbed
  for (int i = 0; i < 5; ++i) EXPECT_FALSE(balance.note(Numbers{1000, 1150}));  // 72 and 56: hardly shorter
  EXPECT_EQ(balance.shares(), (Numbers{64, 64}));
  EXPECT_FALSE(balance.note(Numbers{1000, 3000}));
  EXPECT_TRUE(balance.note(Numbers{1000, 3000}));
  EXPECT_EQ(balance.shares(), (Numbers{96, 32}));
  for (int i = 0; i < 5; ++i) EXPECT_FALSE(balance.note(Numbers{1000, 3100 - 40 * i}));
  EXPECT_FALSE(balance.note(Numbers{1000, 1000}));  // the slow one has become fast
  EXPECT_TRUE(balance.note(Numbers{1000, 1000}));
  EXPECT_EQ(balance.shares(), (Numbers{64, 64}));
}

// A clock that has stood still, or a step that took for ever, is a number too.
TEST(Balance, TimesThatCannotBeAreTakenForTheNearestThatCan) {
  Balance balance(2, 8);
  balance.note(Numbers{0, INT64_MAX});
  EXPECT_TRUE(balance.note(Numbers{-5, INT64_MAX}));
  EXPECT_EQ(balance.shares(), (Numbers{15, 1}));
}

TEST(Balance, WindowsGrowAndBeginAfterTheFirstStepsWithNewShares) {
  using Mark = Balance::Mark;
  Balance balance(2, 64);
  auto steps_until = [&](Mark mark) {
    for (int steps = 1;; ++steps)
      if (Mark found = balance.after_step(); found != Mark::none) {
        EXPECT_EQ(found, mark);
        return steps;
      }
  };
  EXPECT_EQ(steps_until(Mark::begin), 2);
  EXPECT_EQ(steps_until(Mark::end), 8);
  balance.note(Numbers{1000, 3000});
  EXPECT_EQ(steps_until(Mark::end), 16);
  ASSERT_TRUE(balance.note(Numbers{1000, 3000}));
  EXPECT_EQ(steps_until(Mark::begin), 2);
  for (int steps : {32, 64, 64, 64}) {
    EXPECT_EQ(steps_until(Mark::end), steps);
    EXPECT_FALSE(balance.note(Numbers{1000, 3000}));
  }
}

TEST(Balance, ABatchOfOneSampleIsRefused) {
  EXPECT_ERROR(Balance(2, 1), ConfigError, "use a larger batch_size, or leave balance: auto out");
}

// --- the gradient, with shares that change --------------------------------------------------------------------------

class DroppingNet : public nn::Callable<DroppingNet> {
 public:
  DroppingNet() : Callable("DroppingNet") {}
  Tensor forward(const Tensor& image) const {  // u8 [N, 28, 28, 1]
    Tensor x = reshape(image, {image.size(0), 1, 28, 28}).to(DType::f32) * (1.0 / 255);
    Tensor y = tanh(norm_(conv_(avg_pool2d(x, {.kernel = {2}}))));
    return fc_(drop_(flatten(avg_pool2d(y, {.kernel = {2}}), 1)));
  }

 private:
  nn::Conv2d conv_ = register_module("conv", nn::Conv2d({.in = 1, .out = 4, .kernel = {3}, .padding = {1}}));
  nn::BatchNorm2d norm_ = register_module("norm", nn::BatchNorm2d({.channels = 4}));
  nn::Linear fc_ = register_module("fc", nn::Linear({.in = 196, .out = 10}));
  nn::Dropout drop_ = register_module("drop", nn::Dropout(0.3));
};

// Losses over all samples of each step: 3 epochs of 103 samples in batches of 16, the last of 7. With two ranks their
// shares change in the middle of the first epoch and at the end of the second.
std::vector<double> losses_of(Device device) {
  manual_seed(5);
  DroppingNet plain;
  plain.to(device);
  DroppingNet model = fleet::distributed_model(plain);
  auto optimizer = fleet::distributed_optimizer(optim::Momentum(model.parameters(), {.lr = 0.05, .momentum = 0.9}),
                                                {.sync_batch_norm = fleet::world_size() > 1});
  data::DataLoader train(std::make_shared<data::Glyphs>(data::GlyphsOptions{.size = 103}),
                         {.batch_size = 16 / fleet::world_size(),
                          .sampler = fleet::sampler(),
                          .shuffle = true,
                          .num_workers = 2,
                          .device = device});
  std::vector<double> losses;
  Scalar weight = 1;
  auto step = compile([&](const Tensor& image, const Tensor& label) {
    Tensor loss = cross_entropy(model(image), label);
    (loss * weight).backward();
    optimizer.step();
    optimizer.clear_grad();
    return loss;
  });
  while (train.position().epoch < 3) {
    if (fleet::world_size() > 1 && losses.size() == 3) train.set_shares({13, 3});
    if (fleet::world_size() > 1 && losses.size() == 13) train.set_shares({2, 14});
    auto [image, label] = train.next();
    fleet::RowsOf rows(train.share());
    fleet::StandIns scope(train.share().own == 0);
    weight.set(train.share().weight());
    double loss = step(image, label).item() * train.share().weight();
    if (fleet::world_size() > 1) fleet::group().all_reduce({&loss, 1, DType::f64}, comm::Reduce::mean);
    losses.push_back(loss);
  }
  return losses;
}

TEST(Balance, WithSharesThatChangeTheGradientIsThatOfOneRank) {
  fleet::join(nullptr);
  const std::vector<double> whole = losses_of({});
  fleet::leave();
  ASSERT_EQ(whole.size(), 21U);
  testing::Outcome outcome;
  std::vector<double> parts[2];
  testing::on_two_ranks(outcome, [&](Device device) { parts[device.index] = losses_of(device); });
  for (const std::string& error : outcome.errors) EXPECT_EQ(error, "");
  for (const std::vector<double>& part : parts) {
    ASSERT_EQ(part.size(), whole.size());
    for (size_t i = 0; i < whole.size(); ++i) EXPECT_NEAR(part[i], whole[i], 1e-5 * whole[i]) << "step " << i;
  }
}

}  // namespace
}  // namespace bonfire::balance_test
