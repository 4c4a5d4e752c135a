// Steps that keep to a memory budget: less memory, the same bits.
#include <gtest/gtest.h>

#include "bonfire/bonfire.h"
#include "bonfire/runtime/plan_cache.h"
#include "tests/parallel/small_models.h"
#include "tests/support/expect_error.h"
#include "tests/support/pinned_kernels.h"
#include "tests/support/under_sanitizer.h"

namespace bonfire::memory_budget_test {
namespace {

using namespace in_stages;

// How long a test trains.
struct Length {
  int64_t rows = 64;
  uint64_t steps = 30;
};
constexpr Length kOfALargeNet{.rows = 64, .steps = 3};

struct Trained {
  std::vector<double> numbers;  // losses, then weights and buffers
  size_t temporaries = 0, fixed = 0;
  std::vector<runtime::BudgetOutcome> outcomes;
  int copies = 0;
};

class Strategies {
 public:
  Strategies() { fleet::join(nullptr); }
  ~Strategies() { fleet::leave(); }
  Strategies(const Strategies&) = delete;
  Strategies& operator=(const Strategies&) = delete;
};

Trained train(const Subject& subject, const DistributedStrategy& strategy, const Length& length = {}) {
  const Strategies scope;
  runtime::clear_plan_cache();
  manual_seed(5);
  const Net net = subject.make();
  optim::Optimizer optimizer =
      fleet::distributed_optimizer(optim::Adam(net.module.parameters(), {.lr = 0.003}), strategy);
  auto step = compile([&](const Tensor& input, const Tensor& label) {
    const Tensor batch[] = {input, label};
    Tensor loss = net.forward(batch)[0];
    loss.backward();
    optimizer.step();
    optimizer.clear_grad();
    return loss;
  });
  Trained trained;
  const uint64_t steps = testing::kUnderSanitizer ? 3 : length.steps;
  for (uint64_t b = 0; b < steps; ++b) {
    const std::vector<Tensor> batch = batch_of(subject.data, length.rows, b, {}, DType::f32);
    if (b == 0) trained.fixed = 3 * (batch[0].spec().bytes() + batch[1].spec().bytes() + 4);
    trained.numbers.push_back(step(batch[0], batch[1]).item());
  }
  const auto plan = runtime::cached_plans().front();
  trained.temporaries = runtime::peak_bytes(*plan, {});
  trained.outcomes = plan->budget;
  for (const GraphNode& node : plan->graph->nodes()) trained.copies += node.recomputed ? 1 : 0;
  for (const auto& [name, variable] : net.module.state_dict()) {
    trained.fixed += variable.spec().bytes();
    for (double number : variable.value().to_vector<double>()) trained.numbers.push_back(number);
  }
  for (const auto& [name, state] : optimizer.state()) trained.fixed += state.spec().bytes();
  for (const Variable& parameter : optimizer.parameters()) trained.fixed += parameter.spec().bytes();
  return trained;
}

std::string bytes_text(double bytes) { return fmt::format("{:.3f}KB", bytes / 1000); }

// With shares of the memory that temporaries take without a budget. Nets of two layers cannot do with much less.
void expect_same_in_less(const Subject& subject, std::initializer_list<double> shares, const Length& length = {},
                         DistributedStrategy strategy = {}) {
  const testing::PinnedKernels pinned;
  const Trained expected = train(subject, strategy, length);
  EXPECT_TRUE(expected.outcomes.empty());
  for (double share : shares) {
    SCOPED_TRACE(share);
    const double budget = static_cast<double>(expected.fixed) + share * static_cast<double>(expected.temporaries);
    strategy.memory_budget = bytes_text(budget);
    const Trained found = train(subject, strategy, length);
    EXPECT_EQ(found.numbers, expected.numbers);
    EXPECT_GT(found.copies, expected.copies);
    ASSERT_EQ(found.outcomes.size(), 1U);
    const runtime::BudgetOutcome& outcome = found.outcomes[0];
    EXPECT_LE(static_cast<double>(outcome.after), budget);
    EXPECT_EQ(outcome.before - outcome.after, expected.temporaries - found.temporaries);
    EXPECT_NEAR(static_cast<double>(outcome.before), static_cast<double>(expected.fixed + expected.temporaries),
                0.02 * static_cast<double>(outcome.before));
    EXPECT_GT(outcome.seconds_again, 0);
    EXPECT_LT(outcome.seconds_again, outcome.seconds);
  }
}

TEST(MemoryBudget, OfAVggGivesTheSameBits) { expect_same_in_less(small_vgg(), {0.96}); }
TEST(MemoryBudget, OfAResNetGivesTheSameBits) { expect_same_in_less(small_resnet(), {0.8, 0.6}, kOfALargeNet); }
TEST(MemoryBudget, OfABertGivesTheSameBits) { expect_same_in_less(small_bert(), {0.9, 0.8}); }
TEST(MemoryBudget, OfAGpt2GivesTheSameBits) { expect_same_in_less(small_gpt2(), {0.9, 0.7}); }

TEST(MemoryBudget, InMixedPrecisionGivesTheSameBits) {
  expect_same_in_less(small_bert(), {0.9}, {}, {.use_amp = true});
  expect_same_in_less(small_gpt2(), {0.8}, {}, {.use_amp = true});
}

TEST(MemoryBudget, BesideMarkedModulesGivesTheSameBits) {
  expect_same_in_less(small_resnet(), {0.8}, kOfALargeNet, {.use_recompute = true, .recompute_segments = {{"layer1"}}});
}

TEST(MemoryBudget, WithTimedKernelsGivesTheSameBits) {
  const Trained expected = train(small_gpt2(), {});
  const double budget = static_cast<double>(expected.fixed) + 0.8 * static_cast<double>(expected.temporaries);
  const Trained found = train(small_gpt2(), {.memory_budget = bytes_text(budget)});
  EXPECT_EQ(found.numbers, expected.numbers);
  EXPECT_LE(static_cast<double>(found.temporaries), 0.81 * static_cast<double>(expected.temporaries));
}

TEST(MemoryBudget, ThatIsLargeEnoughChangesNothing) {
  const testing::PinnedKernels pinned;
  const Trained expected = train(small_vgg(), {});
  for (const char* budget : {"auto", "0.9", "1 TiB"}) {
    const Trained found = train(small_vgg(), {.memory_budget = budget});
    EXPECT_EQ(found.numbers, expected.numbers);
    EXPECT_EQ(found.temporaries, expected.temporaries);
    EXPECT_TRUE(found.outcomes.empty());
  }
  EXPECT_TRUE(train(small_vgg(), {.use_recompute = true}).outcomes.empty()) << "is as memory_budget: auto";
}

TEST(MemoryBudget, ThatCannotBeHeldSaysTheLeast) {
  const testing::PinnedKernels pinned;
  EXPECT_ERROR(train(small_vgg(), {.memory_budget = "2KB"}), ConfigError,
               "memory_budget is 2.0 kB on cpu:0, and the step needs at least ");
}

TEST(MemoryBudget, RefusesWhatIsNoAmount) {
  for (const char* text : {"6", "6 apples", "-1GB", "0", "1.5", "GB", "", "infGB", "nanGB", "1e300GB"})
    EXPECT_ERROR(check_strategy({.memory_budget = text}), ConfigError, "expected bytes with their unit (6GB");
  for (const char* text : {"6GB", "5.5GiB", "800 MB", "0.8", "1", "auto", "off"})
    EXPECT_NO_THROW(check_strategy({.memory_budget = text})) << text;
}

}  // namespace
}  // namespace bonfire::memory_budget_test
