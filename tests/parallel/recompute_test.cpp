// Modules that are computed again in the backward pass: the same numbers as without, on one device and in stages.
#include "bonfire/runtime/plan_cache.h"
#include "tests/parallel/in_stages.h"
#include "tests/support/expect_error.h"
#include "tests/support/pinned_kernels.h"
#include "tests/support/under_sanitizer.h"

namespace bonfire::recompute_test {
namespace {

using namespace in_stages;
using Modules = std::vector<std::string>;

bool has_copies(const runtime::Plan& plan) {
  return std::any_of(plan.graph->nodes().begin(), plan.graph->nodes().end(),
                     [](const GraphNode& node) { return node.recomputed; });
}

// Of the last few that ran.
bool ran_with_copies() {
  const auto plans = runtime::cached_plans();
  return std::any_of(plans.begin(), plans.begin() + std::min<std::ptrdiff_t>(4, std::ssize(plans)),
                     [](const auto& plan) { return has_copies(*plan); });
}

class Options {
 public:
  Options() : before_(StepContext::current().options) {}
  ~Options() { StepContext::current().options = before_; }
  Options(const Options&) = delete;
  Options& operator=(const Options&) = delete;

 private:
  StepOptions before_;
};

void expect_same(const Subject& subject, const Modules& modules, Training run, double tolerance) {
  run.recompute = {};
  const Outcome expected = on_one_device(subject, run);
  EXPECT_FALSE(ran_with_copies());
  run.recompute = modules;
  const Outcome found = on_one_device(subject, run);
  EXPECT_TRUE(ran_with_copies());
  if (tolerance > 0) {
    expect_near(found, expected, "fused", tolerance);
  } else {
    EXPECT_EQ(found, expected);
  }
}

// To the bit where each op is a kernel of its own; where several are fused they are rounded elsewhere, and f64 shows
// that nothing else differs.
void expect_same(const Subject& subject, const Modules& modules, Training run = {}) {
  const testing::PinnedKernels pinned;
  const Options kept;
  while (run.batches.size() < (testing::kUnderSanitizer ? 3 : 10))
    run.batches.push_back(run.batches.size() % 5 == 3 ? 6 : 8);
  StepContext::current().options.fuse_elementwise = false;
  expect_same(subject, modules, run, 0);
  run.mixed_precision = true;
  expect_same(subject, modules, run, 0);
  StepContext::current().options.fuse_elementwise = true;
  run.mixed_precision = false;
  run.dtype = DType::f64;
  expect_same(subject, modules, run, 1e-9);
}

TEST(Recompute, OfAVggGivesTheSameNumbers) { expect_same(small_vgg(), {"features", "classifier"}); }
TEST(Recompute, OfAResNetGivesTheSameNumbers) { expect_same(small_resnet(), {"layer1", "layer2", "layer3"}); }
TEST(Recompute, OfABertGivesTheSameNumbers) { expect_same(small_bert(), {"bert.encoder.layer.*"}); }
TEST(Recompute, OfAGpt2GivesTheSameNumbers) { expect_same(small_gpt2(), {"transformer.h.*"}); }
TEST(Recompute, OfAnLstmGivesTheSameNumbers) { expect_same(small_lstm(), {"lstm"}, {.adam = true}); }

TEST(Recompute, OfModulesInModulesGivesTheSameNumbers) {
  expect_same(small_resnet(), {"layer*", "layer*.0.conv*"});
  expect_same(small_bert(), {"bert.encoder", "bert.encoder.layer.*"});
}

TEST(Recompute, InStagesTrainsAsOnOneDevice) {
  const testing::PinnedKernels pinned;
  for (ScheduleKind schedule : kSchedules) {
    Training run{.schedule = schedule, .cut = {{"bert.encoder.layer.1"}}, .recompute = {"bert.encoder.layer.*"}};
    const Outcome again = on_one_device(small_bert(), run);
    const std::vector<Outcome> found = on_stages(small_bert(), run, {.pipeline = 2});
    run.recompute = {};
    const Outcome expected = on_one_device(small_bert(), run);
    for (const Outcome& one : found) expect_near(one, expected, name_of(schedule));
    expect_near(again, expected, "one device");
  }
}

TEST(Recompute, SaysThatAStepWhichIsCutKeepsAll) {
  const nn::Linear first({.in = 4, .out = 4}), second({.in = 4, .out = 4});
  const Tensor x = Tensor::from<float>(std::vector<float>(8, 0.5F), {2, 4});
  const auto told_by = [&](bool reads_early) {
    StepContext::current().told_of_kept_parts = false;
    ::testing::internal::CaptureStderr();
    const Tensor loss = sum(square(recompute([&](const Tensor& y) { return second(tanh(first(y))); }, x)));
    if (reads_early) loss.item();
    loss.backward();
    loss.item();
    return ::testing::internal::GetCapturedStderr();
  };
  EXPECT_EQ(told_by(false), "");
  EXPECT_NE(told_by(true).find("a step was committed between its forward and its backward pass"), std::string::npos);
}

TEST(Recompute, RefusesWhatHasNoEffect) {
  fleet::join(nullptr);
  const nn::Module net = small_resnet().make().module;
  const optim::Optimizer plain = optim::Momentum(net.parameters(), {.lr = 0.1});
  EXPECT_ERROR(fleet::distributed_optimizer(plain, {.use_recompute = true, .recompute_segments = Modules{"layer9"}}),
               ConfigError,
               "recompute_segments: 'layer9' matches no module that has parameters; the nearest is 'layer");
  EXPECT_ERROR(fleet::distributed_optimizer(plain, {.use_recompute = true, .recompute_segments = Modules{}}),
               ConfigError, "recompute_segments is empty");
  EXPECT_TRUE(StepContext::current().options.recompute.empty());
}

}  // namespace
}  // namespace bonfire::recompute_test
