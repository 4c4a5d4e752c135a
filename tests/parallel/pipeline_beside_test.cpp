// What trains beside stages: mixed precision, shared batch statistics, gradients that add up over several batches,
// running means of weights; and what is said where something goes wrong.
#include <cstdlib>

#include "tests/parallel/in_stages.h"
#include "tests/parallel/on_mesh.h"

namespace bonfire::pipeline_beside_test {
namespace {

using namespace in_stages;
using namespace pipeline;
using bonfire::testing::errors_on_mesh;
using bonfire::testing::on_mesh;
using Cut = std::vector<std::string>;

// --- mixed precision -------------------------------------------------------------------------------------------------

double largest(const std::vector<double>& values) {
  double most = 0;
  for (double one : values) most = std::max(most, std::abs(one));
  return most;
}

// By how much tensors differ at most, as a share of the largest number in them.
double distance(const Outcome& found, const Outcome& expected, std::string* where = nullptr) {
  double most = 0;
  for (const auto& [name, values] : found) {
    const std::vector<double>& wanted = expected.at(name);
    EXPECT_EQ(values.size(), wanted.size()) << name;
    double apart = 0;
    for (size_t i = 0; i < values.size(); ++i) apart = std::max(apart, std::abs(values[i] - wanted[i]));
    const double share = apart / std::max(largest(wanted), 1e-2);
    if (share > most && where != nullptr) *where = name;
    most = std::max(most, share);
  }
  return most;
}

// Values are rounded to bf16 between programs where one device may keep them wide inside a kernel.
TEST(PipelineBeside, MixedPrecisionIsThatOfOneDevice) {
  constexpr double kRounding = 0.02;
  struct Case {
    const char* name;
    Subject subject;
    Cut cut;
  };
  for (const Case& one : {Case{"VGG", small_vgg(), {"features.4"}}, Case{"GPT-2", small_gpt2(), {"transformer.h.1"}},
                          Case{"BERT", small_bert(), {"bert.encoder.layer.1"}}, Case{"LSTM", small_lstm(), {"lstm"}}}) {
    Training run{.batches = {8, 6}, .clip = 0.5, .cut = one.cut, .mixed_precision = true};
    const Outcome expected = on_one_device(one.subject, run);
    Training full = run;
    full.mixed_precision = false;
    EXPECT_GT(distance(on_one_device(one.subject, full), expected), 0) << one.name;
    for (ScheduleKind schedule : kSchedules) {
      run.schedule = schedule;
      const std::vector<Outcome> found = on_stages(one.subject, run, {.pipeline = 2});
      for (const Outcome& stage : found) {
        std::string where;
        EXPECT_LT(distance(stage, expected, &where), kRounding)
            << one.name << ", " << name_of(schedule) << ", " << where;
      }
      expect_all(found, expected, one.name);
    }
  }
}

TEST(PipelineBeside, MixedPrecisionSendsAndKeepsBf16) {
  auto bytes_of = [](bool mixed_precision) {
    const Subject subject = small_vgg();
    const Training run{.batches = {8}, .cut = Cut{"features.4"}, .mixed_precision = mixed_precision};
    std::vector<size_t> bytes(2);
    for (const std::string& error : errors_on_ranks(2, {.pipeline = 2}, [&](Device device) {
           OnStage stage(subject, run, device);
           stage.train();
           bytes[static_cast<size_t>(device.index)] = stage.stages().slot_bytes();
         }))
      EXPECT_EQ(error, "");
    return bytes;
  };
  const std::vector<size_t> wide = bytes_of(false), narrow = bytes_of(true);
  for (size_t stage : {0, 1}) EXPECT_LT(narrow[stage] * 10, wide[stage] * 7) << "stage " << stage;
}

// --- several batches, several replicas -------------------------------------------------------------------------------

TEST(PipelineBeside, GradientsOfSeveralBatchesAddUp) {
  for (ScheduleKind schedule : kSchedules)
    expect_same_as_one_device(
        small_vgg(),
        {.batches = {8, 6, 8, 8}, .clip = 0.5, .schedule = schedule, .cut = Cut{"features.4"}, .accumulate = 2}, 2,
        name_of(schedule));
  expect_same_as_one_device(small_gpt2(),
                            {.batches = {8, 8, 6, 8, 6, 8},
                             .clip = 0.3,
                             .cut = Cut{"transformer.h.1"},
                             .adam = true,
                             .accumulate = 3,
                             .dtype = DType::f64},
                            2, "tied weights");
}

TEST(PipelineBeside, AStageKeepsTheMeanOfItsOwnWeights) {
  expect_same_as_one_device(small_vgg(), {.cut = Cut{"features.4"}, .mean = 0.9}, 2, "VGG");
  expect_same_as_one_device(small_gpt2(),
                            {.batches = {8, 8, 8, 6}, .cut = Cut{"transformer.h.1"}, .accumulate = 2, .mean = 0.9}, 2,
                            "tied weights, two batches an update");
}

// Losses are each replica's own.
void without_losses(std::vector<Outcome>& stages) {
  for (Outcome& one : stages) std::erase_if(one, [](const auto& named) { return named.first.starts_with("result"); });
}

TEST(PipelineBeside, ReplicasOfStagesShareBatchStatistics) {
  for (ScheduleKind schedule : kSchedules) {
    Training run{.schedule = schedule, .cut = Cut{"conv2"}, .replicas = 2, .sync_batch_norm = true};
    const Outcome expected = on_one_device(two_headed(), run);
    std::vector<Outcome> found = on_stages(two_headed(), run, {.data = 2, .pipeline = 2});
    without_losses(found);
    for (const Outcome& one : found) expect_near(one, expected, name_of(schedule));
    run.sync_batch_norm = false;
    found = on_stages(two_headed(), run, {.data = 2, .pipeline = 2});
    EXPECT_NE(found[0].at("bn1.running_mean"), found[1].at("bn1.running_mean"));
  }
}

// Of one step after a whole one, for which the second replica has no samples: its batch is anything.
std::vector<Outcome> with_stand_ins(uint64_t anything) {
  std::vector<Outcome> outcomes(4);
  const std::vector<std::string> errors = errors_on_ranks(4, {.data = 2, .pipeline = 2}, [&](Device device) {
    const Subject subject = two_headed();
    const Net net = make_net(subject, {});
    net.module.to(device);
    auto optimizer =
        fleet::distributed_optimizer(optim::SGD(net.module.parameters(), {.lr = 0.05}), {.sync_batch_norm = true});
    pipeline::Pipeline stages(net.module, optimizer, net.forward, {.micro_batches = 2, .cut = Cut{"conv2"}});
    const bool second = fleet::mesh().place(Axis::data) == 1;
    stages.train(batch_of(subject.data, 4, second ? 101 : 1, device));
    const fleet::StandIns scope(second);
    stages.train(batch_of(subject.data, 4, second ? anything : 2, device), std::vector<double>(2, second ? 0 : 1));
    for (const auto& [name, variable] : net.module.state_dict())
      if (stages.holds(variable))
        outcomes[static_cast<size_t>(device.index)][name] = variable.value().to_vector<double>();
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
  return outcomes;
}

TEST(PipelineBeside, StandInsCountForNothingInSharedStatistics) {
  const std::vector<Outcome> found = with_stand_ins(7);
  EXPECT_EQ(found, with_stand_ins(8));
  EXPECT_EQ(found[0], found[1]);
}

TEST(PipelineBeside, ReplicasAddUpSeveralBatchesWithMeans) {
  Training run{.batches = {8, 8, 8, 6}, .clip = 0.5, .cut = Cut{"conv3"}, .replicas = 2, .accumulate = 2, .mean = 0.9};
  const Outcome expected = on_one_device(two_headed(), run);
  std::vector<Outcome> found = on_stages(two_headed(), run, {.data = 2, .pipeline = 2});
  without_losses(found);
  for (Outcome& one : found) {
    std::erase_if(one, [](const auto& named) {  // each replica's own
      return named.first.find("running") != std::string::npos || named.first.find("num_batches") != std::string::npos;
    });
    expect_near(one, expected, "two replicas of two stages");
  }
}

// --- what is said ----------------------------------------------------------------------------------------------------

TEST(PipelineBeside, ReplicasWithOtherSchedulesAreNamed) {
  const Subject subject = two_headed();
  const std::vector<std::string> errors = errors_on_ranks(4, {.data = 2, .pipeline = 2}, [&](Device device) {
    Training run{.batches = {8}, .cut = Cut{"conv3"}};
    if (device.index == 3) run.schedule = ScheduleKind::gpipe;
    OnStage(subject, run, device).train();
  });
  for (const std::string& error : errors)
    EXPECT_NE(error.find("pipeline.schedule is 1f1b on ranks 0, 1 and 2 and gpipe on rank 3"), std::string::npos)
        << error;
}

// More than any machine has, in one module.
class Hungry : public nn::Callable<Hungry> {
 public:
  Hungry() : Callable("Hungry"), fc_(register_module("fc", nn::Linear({.in = 4, .out = 4}))) {}
  Tensor forward(const Tensor& x) const {
    const Tensor wide = broadcast_to(reshape(fc_(x), {x.size(0), 4, 1}), {x.size(0), 4, int64_t{1} << 36});
    return sum(max(exp(wide), {1}), {1}, {.keepdim = true});
  }

 private:
  nn::Linear fc_;
};

TEST(PipelineBeside, AStageThatRunsOutOfMemorySaysWhichAndHowMuch) {
  setenv("BONFIRE_TUNE", "off", 1);
  const Subject subject{[] {
                          const nn::Sequential model(
                              {nn::Linear({.in = 3, .out = 4}), nn::ReLU(), Hungry(), nn::Linear({.in = 1, .out = 4})});
                          return classifier_of(model);
                        },
                        {.input = {3}}};
  const std::vector<std::string> errors = errors_on_ranks(2, {.pipeline = 2}, [&](Device device) {
    OnStage(subject, {.micro_batches = 2, .batches = {4}, .cut = Cut{"2"}}, device).train();
  });
  unsetenv("BONFIRE_TUNE");
  EXPECT_NE(errors[1].find("[pipeline] stage 1 of 2, item "), std::string::npos) << errors[1];
  for (const std::string& error : errors) {
    EXPECT_NE(error.find("no memory for "), std::string::npos) << error;
    EXPECT_NE(error.find("stage 1 of 2 wants "), std::string::npos) << error;
    EXPECT_NE(error.find(" GB for weights and gradients"), std::string::npos) << error;
  }
}

// A weight that is trained in one place and only read in another.
class HalfTied : public nn::Callable<HalfTied> {
 public:
  HalfTied()
      : Callable("HalfTied"),
        first_(register_module("first", nn::Linear({.in = 4, .out = 4}))),
        second_(register_module("second", nn::Linear({.in = 4, .out = 4}))) {}
  Tensor forward(const Tensor& x) const {
    return second_(relu(first_(x))) + linear(x, first_.weight.value().detach(), Tensor());
  }

 private:
  nn::Linear first_, second_;
};

TEST(PipelineBeside, AWeightThatAnotherStageOnlyReadsIsRefused) {
  const Subject subject{[] { return classifier_of(HalfTied()); }, {.input = {4}}};
  const std::vector<std::string> errors = errors_on_ranks(2, {.pipeline = 2}, [&](Device device) {
    OnStage(subject, {.batches = {8}, .cut = Cut{"second"}}, device).train();
  });
  for (const std::string& error : errors)
    EXPECT_NE(error.find("rank 1 reads first.weight without a gradient (detached?), and rank 0 trains it"),
              std::string::npos)
        << error;
}

TEST(PipelineBeside, SaysThatItReducesByItself) {
  const Subject subject = small_vgg();
  const std::vector<std::string> errors = errors_on_ranks(2, {.pipeline = 2}, [&](Device device) {
    OnStage stage(subject, {.batches = {8}, .cut = Cut{"features.4"}}, device);
    const fleet::WithoutReduction scope;
    stage.train();
  });
  for (const std::string& error : errors)
    EXPECT_NE(error.find("a fleet::WithoutReduction asks it not to"), std::string::npos) << error;
}

// --- what shapes a step beside its inputs ----------------------------------------------------------------------------

// Two stages of a net with dropout and batch norm, as a program writes them.
class InTwoStages {
 public:
  explicit InTwoStages(Device device)
      : device_(device),
        net_({nn::Linear({.in = 4, .out = 4}), nn::BatchNorm1d({.channels = 4}), nn::Dropout(0.5),
              nn::Linear({.in = 4, .out = 4})}) {
    net_.to(device);
    optimizer_.emplace(net_.parameters(), optim::SGDOptions{.lr = 0.1});
    pipeline_.emplace(
        net_, *optimizer_,
        [this](std::span<const Tensor> batch) -> std::vector<Tensor> {
          return {mean(square(net_(batch[0]) - batch[0]))};
        },
        PipelineOptions{.micro_batches = 2, .cut = {{"3"}}});
  }

  double train() {
    std::vector<float> numbers(32);
    for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<float>(i * 7 % 11) - 5;
    const Tensor losses = pipeline_->train({{Tensor::from<float>(numbers, {8, 4}, device_)}})[0];
    const std::vector<double> both = losses.to_vector<double>();
    return both[0] + both[1];
  }
  nn::Sequential& net() { return net_; }

 private:
  Device device_;
  nn::Sequential net_;
  std::optional<optim::SGD> optimizer_;
  std::optional<Pipeline> pipeline_;
};

TEST(PipelineBeside, AModuleInAnotherModeIsAnotherStep) {
  std::array<std::vector<double>, 2> losses;
  on_mesh(2, {.pipeline = 2}, [&](Device device) {
    manual_seed(3);
    InTwoStages stages(device);
    std::vector<double>& own = losses[static_cast<size_t>(device.index)];
    stages.train();
    const Variable seen = stages.net()[1].state_dict().back().variable;  // of batches
    stages.net().eval();
    // Without dropout and with fixed statistics nothing is drawn: as far as weights are the same, losses are.
    own = {stages.train()};
    const std::vector<std::byte> before = device.index == 0 ? seen.save() : std::vector<std::byte>();
    own.push_back(stages.train());
    if (device.index == 0) {
      EXPECT_EQ(seen.save(), before);
    }
    stages.net().train();
    own.push_back(stages.train());
    if (device.index == 0) {
      EXPECT_NE(seen.save(), before);
    }
  });
  EXPECT_EQ(losses[0], losses[1]);
  EXPECT_LT(losses[0][1], losses[0][0]) << "a step down";
  EXPECT_GT(losses[0][2], losses[0][1]) << "dropout again";
}

TEST(PipelineBeside, ParametersThatAreFrozenLaterAskForAnotherPipeline) {
  const std::vector<std::string> errors = errors_on_mesh(2, {.pipeline = 2}, [](Device device) {
    InTwoStages stages(device);
    stages.train();
    stages.net()[3].set_requires_grad(false);
    stages.train();
  });
  // Who is second may hear of it from the first.
  const bool is_told = std::ranges::any_of(errors, [](const std::string& error) {
    return error.find("3.bias gets no longer a gradient, unlike when the stages were cut; make a new Pipeline") !=
           std::string::npos;
  });
  EXPECT_TRUE(is_told) << errors[0] << errors[1];
  for (const std::string& error : errors) EXPECT_NE(error, "");
}

}  // namespace
}  // namespace bonfire::pipeline_beside_test
