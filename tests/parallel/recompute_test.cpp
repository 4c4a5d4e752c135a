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

// --- LSTMs over long sequences, which are cut into spans of time
// ------------------------------------------------------

struct LongLstm {
  int64_t times, batch, input, hidden, layers;
  double dropout = 0;
  bool batch_first = false, mixed_precision = false, is_nested = false;
  int reads = 0;  // of its results: the last output, all outputs, the last states, everything

  std::string text() const {
    return fmt::format(
        "{} times, batch {}, {} inputs, {} layers of {}, dropout {}, batch first {}, bf16 {}, nested {}, reads {}",
        times, batch, input, layers, hidden, dropout, batch_first, mixed_precision, is_nested, reads);
  }
};

LongLstm random_lstm(uint64_t number) {
  uint64_t drawn = 0;
  const auto below = [&](int64_t end) {
    return static_cast<int64_t>(uniform_at(31, number, drawn++) * static_cast<float>(end));
  };
  return {.times = 64 + below(150),
          .batch = 1 + below(4),
          .input = 1 + below(6),
          .hidden = 1 + below(9),
          .layers = 1 + below(3),
          .dropout = below(2) == 0 ? 0 : 0.3,
          .batch_first = below(2) == 0,
          .mixed_precision = number % 2 == 1,
          .is_nested = number % 5 == 4,
          .reads = static_cast<int>(number / 2 % 4)};
}

Tensor loss_of(const LongLstm& lstm, const LstmResult& result) {
  const Tensor last = slice(result.output, lstm.batch_first ? 1 : 0, -1);
  switch (lstm.reads) {
    case 0: return sum(square(last));
    case 1: return mean(square(result.output));
    case 2: return sum(square(result.h)) + sum(result.c);
    default: return mean(square(result.output)) + sum(last) + sum(square(result.h)) + sum(result.c);
  }
}

// The loss, and the gradients of all parameters and of what goes in.
Outcome gradients_of(const LongLstm& lstm, const Modules& recomputed) {
  StepOptions& options = StepContext::current().options;
  options.recompute = recomputed;
  options.use_amp = lstm.mixed_precision;
  manual_seed(11);
  struct Around : nn::Callable<Around> {
    explicit Around(const nn::LSTM& lstm) : Callable("Around"), inner(register_module("lstm", lstm)) {}
    LstmResult forward(const Tensor& x) const { return inner(x); }
    nn::LSTM inner;
  };
  const Around net(nn::LSTM({.input = lstm.input,
                             .hidden = lstm.hidden,
                             .layers = lstm.layers,
                             .batch_first = lstm.batch_first,
                             .dropout = lstm.dropout}));
  const Shape shape =
      lstm.batch_first ? Shape{lstm.batch, lstm.times, lstm.input} : Shape{lstm.times, lstm.batch, lstm.input};
  std::vector<float> numbers(static_cast<size_t>(shape.count()));
  for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = normal_at(12, 1, i);
  Tensor x = Tensor::from<float>(numbers, shape);
  x.set_requires_grad(true);
  Tensor loss = loss_of(lstm, lstm.is_nested && !recomputed.empty() ? recompute([&] { return net(x); }) : net(x));
  loss.backward();
  Outcome outcome{{"loss", {loss.item()}}, {"x", x.grad().to_vector<double>()}};
  for (const auto& [name, parameter] : net.named_parameters()) outcome[name] = parameter.grad().to_vector<double>();
  return outcome;
}

// Sums over time are added up in another order.
void expect_same_but_for_sums(const Outcome& found, const Outcome& expected, double tolerance) {
  EXPECT_EQ(found.at("loss"), expected.at("loss"));
  for (const auto& [name, values] : expected) {
    double most = 0;
    for (double value : values) most = std::max(most, std::abs(value));
    ASSERT_EQ(found.at(name).size(), values.size());
    for (size_t i = 0; i < values.size(); ++i)
      ASSERT_NEAR(found.at(name)[i], values[i], tolerance * most) << name << " at " << i;
  }
}

TEST(Recompute, OfLongLstmsGivesTheSameNumbers) {
  const testing::PinnedKernels pinned;
  const Options kept;
  StepContext::current().options.fuse_elementwise = false;
  for (uint64_t number = 0; number < (testing::kUnderSanitizer ? 8 : 40); ++number) {
    const LongLstm lstm = random_lstm(number);
    SCOPED_TRACE(fmt::format("{}: {}", number, lstm.text()));
    const Outcome expected = gradients_of(lstm, {}), found = gradients_of(lstm, {"lstm"});
    EXPECT_TRUE(ran_with_copies());
    expect_same_but_for_sums(found, expected, lstm.mixed_precision ? 1e-2 : 1e-6);
  }
}

TEST(Recompute, OfAnLstmOver2000StepsTrainsAsWithout) {
  const testing::PinnedKernels pinned;
  const Options kept;
  StepContext::current().options.fuse_elementwise = false;
  Subject subject = small_lstm();
  subject.data.input = {2000};
  for (const bool mixed_precision : {false, true}) {
    Training run{.micro_batches = 1, .batches = {}, .mixed_precision = mixed_precision};
    run.batches.assign(testing::kUnderSanitizer ? 3 : 30, 4);
    const Outcome expected = on_one_device(subject, run);
    run.recompute = {"lstm"};
    const Outcome found = on_one_device(subject, run);
    EXPECT_EQ(found.at("result 0").front(), expected.at("result 0").front());
    expect_near(found, expected, mixed_precision ? "bf16" : "f32", mixed_precision ? 1e-2 : 1e-6);
  }
}

TEST(Recompute, OfALongLstmInStagesTrainsAsOnOneDevice) {
  const testing::PinnedKernels pinned;
  Subject subject = small_lstm();
  subject.data.input = {70};
  for (ScheduleKind schedule : kSchedules) {
    Training run{.schedule = schedule, .cut = {{"fc"}}, .recompute = {"lstm"}};
    const std::vector<Outcome> found = on_stages(subject, run, {.pipeline = 2});
    run.recompute = {};
    const Outcome expected = on_one_device(subject, run);
    for (const Outcome& one : found) expect_near(one, expected, name_of(schedule));
  }
}

TEST(Recompute, OfALongLstmNeedsLittleMemory) {
  const Options kept;
  const auto peak_of = [](const Modules& recomputed) {
    runtime::clear_plan_cache();
    StepContext::current().options.recompute = recomputed;
    const models::LstmClassifier net = models::lstm_classifier({.vocabulary = 50, .embedding = 16, .hidden = 32});
    const std::vector<Tensor> batch = batch_of({.input = {4000}, .symbols = 50}, 4, 1, {});
    cross_entropy(net(batch[0]), batch[1]).backward();
    synchronize();
    size_t most = 0;
    for (const auto& plan : runtime::cached_plans()) most = std::max(most, runtime::peak_bytes(*plan, {}));
    return static_cast<double>(most);
  };
  for (const bool mixed_precision : {false, true}) {
    StepContext::current().options.use_amp = mixed_precision;
    const double with_all = peak_of({});
    EXPECT_LE(peak_of({"lstm"}), 0.15 * with_all) << mixed_precision;
  }
}

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
