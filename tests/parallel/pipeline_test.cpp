// Pipelines of stages train as one device does that adds up the gradients of as many micro-batches: every schedule, two
// to six stages, cuts by hand and by cost, last batches that do not fill their micro-batches, models with skip
// connections, tied weights and several heads.
#include "bonfire/parallel/pipeline/pipeline.h"

#include <cstdlib>

#include "bonfire/runtime/tuning.h"
#include "tests/parallel/in_stages.h"
#include "tests/support/scratch_folder.h"

namespace bonfire::pipeline_test {
namespace {

using namespace in_stages;

TEST(Pipeline, TrainsAVggLikeOneDeviceInEverySchedule) {
  for (ScheduleKind schedule : kSchedules)
    expect_same_as_one_device(small_vgg(), {.schedule = schedule, .cut = {{"features.4"}}}, 2, name_of(schedule));
}

TEST(Pipeline, TrainsInFourStagesOfAnySize) {
  for (ScheduleKind schedule : kSchedules)
    expect_same_as_one_device(
        small_vgg(), {.clip = 0.5, .schedule = schedule, .cut = {{"features.1", "features.6", "classifier.3"}}}, 4,
        name_of(schedule));
}

TEST(Pipeline, CutsByItselfWhereTheStagesCostTheSame) {
  for (int stages : {2, 3}) expect_same_as_one_device(small_vgg(), {}, stages, std::to_string(stages) + " stages");
}

TEST(Pipeline, TrainsAResNetWithItsSkipConnections) {
  expect_same_as_one_device(small_resnet(), {.micro_batches = 2, .batches = {4, 4}, .cut = {{"layer2"}}}, 2,
                            "two stages");
}

TEST(Pipeline, TrainsABertWhoseFirstAndLastStageShareItsWords) {
  for (ScheduleKind schedule : kSchedules)
    expect_same_as_one_device(small_bert(), {.clip = 0.3, .schedule = schedule, .cut = {{"bert.encoder.layer.1"}}}, 2,
                              name_of(schedule));
  expect_same_as_one_device(small_bert(),
                            {.clip = 0.3, .cut = {{"bert.encoder", "bert.encoder.layer.1", "cls.predictions.decoder"}}},
                            4, "four stages");
}

TEST(Pipeline, TrainsHeadsInStagesOfTheirOwn) {
  expect_same_as_one_device(two_headed(), {.cut = {{"cls", "box"}}}, 3,
                            "a head in the second stage, a head in the third");
  expect_same_as_one_device(two_headed(), {.schedule = ScheduleKind::zero_bubble, .cut = {{"conv3"}}}, 2,
                            "zero bubble");
}

TEST(Pipeline, TrainsAnLstm) {
  for (ScheduleKind schedule : kSchedules)
    expect_same_as_one_device(small_lstm(), {.schedule = schedule, .cut = {{"lstm", "fc"}}, .adam = true}, 3,
                              name_of(schedule));
}

TEST(Pipeline, TrainsWithSeveralStagesOnEachRank) {
  const Training vgg{.clip = 0.5,
                     .schedule = ScheduleKind::interleaved,
                     .chunks = 2,
                     .cut = {{"features.1", "features.6", "classifier.3"}}};
  expect_same_as_one_device(small_vgg(), vgg, 2, "four stages on two ranks");
  Training thrice = vgg;
  thrice.chunks = 3;
  thrice.cut = {};
  thrice.micro_batches = 3;
  expect_same_as_one_device(small_vgg(), thrice, 2, "six stages on two ranks, cut by cost, three micro-batches");
  expect_same_as_one_device(small_bert(), {.clip = 0.3, .schedule = ScheduleKind::interleaved, .chunks = 2}, 2,
                            "shared words on the first and the last rank");
  expect_same_as_one_device(small_lstm(),
                            {.schedule = ScheduleKind::interleaved, .chunks = 1, .cut = {{"lstm", "fc"}}, .adam = true},
                            3, "one stage on each of three ranks");
}

// What the first layer makes goes to the second stage late and to the fourth one early, both on the other rank.
class Forked : public nn::Callable<Forked> {
 public:
  Forked() : Callable("Forked") {
    for (const char* name : {"first", "second", "third", "fourth", "fifth"})
      layers_.push_back(register_module(name, nn::Linear({.in = 6, .out = 6})));
    head_.emplace(register_module("head", nn::Linear({.in = 12, .out = 4})));
  }
  Tensor forward(const Tensor& x) const {
    const Tensor a = tanh(layers_[0](x)), b = layers_[1](a);
    const Tensor c = layers_[2](b), d = tanh(layers_[3](c));
    return (*head_)(concat({layers_[4](d) + a, tanh(d)}, 1));
  }

 private:
  std::vector<nn::Linear> layers_;
  std::optional<nn::Linear> head_;
};

TEST(Pipeline, SendsToTwoStagesOfARank) {
  const Subject subject{[] { return classifier_of(Forked()); }, {.input = {6}}};
  expect_same_as_one_device(
      subject, {.schedule = ScheduleKind::interleaved, .chunks = 2, .cut = {{"third", "fourth", "fifth"}}}, 2, "fork");
}

// Running statistics and losses are each replica's own.
TEST(Pipeline, OfTwoReplicasAveragesTheirGradients) {
  const Training run{.clip = 0.5, .cut = {{"conv3"}}, .replicas = 2};
  const Outcome expected = on_one_device(two_headed(), run);
  for (Outcome& one : on_stages(two_headed(), run, {.data = 2, .pipeline = 2})) {
    std::erase_if(one, [](const auto& named) {
      return named.first.starts_with("result") || named.first.find("running") != std::string::npos ||
             named.first.find("num_batches") != std::string::npos;
    });
    expect_near(one, expected, "two replicas of two stages");
  }
}

// By measured times images lie with their channels last or in blocks, between the programs of a stage too.
TEST(Pipeline, TrainsWithKernelsThatWereTimed) {
  const testing::ScratchFolder folder;
  setenv("BONFIRE_CACHE", folder.path().c_str(), 1);
  setenv("BONFIRE_TUNE", "full", 1);
  runtime::reload_tuning();
  for (ScheduleKind schedule : kSchedules)
    expect_same_as_one_device(small_vgg(), {.schedule = schedule, .cut = {{"features.4"}}}, 2, name_of(schedule));
  expect_same_as_one_device(small_resnet(), {.micro_batches = 2, .batches = {4, 4}, .cut = {{"layer2"}}}, 2, "ResNet");
  unsetenv("BONFIRE_CACHE");
  setenv("BONFIRE_TUNE", "off", 1);
  runtime::reload_tuning();
}

// --- memory ---------------------------------------------------

TEST(Pipeline, KeepsLessOf1F1BThanOfGPipe) {
  auto bytes_of = [](ScheduleKind schedule) {
    std::vector<size_t> bytes(2);
    auto groups = comm::local_groups(2, {.timeout = std::chrono::seconds(60)});
    std::vector<std::thread> threads;
    for (int rank = 0; rank < 2; ++rank)
      threads.emplace_back([&, rank] {
        const auto i = static_cast<size_t>(rank);
        const Device device{DeviceType::cpu, static_cast<int16_t>(rank)};
        fleet::join(groups[i], {.pipeline = 2});
        const Subject subject = small_vgg();
        const Net net = subject.make();
        net.module.to(device);
        optim::Optimizer optimizer = optim::SGD(net.module.parameters(), {.lr = 0.1});
        pipeline::Pipeline pipeline(net.module, optimizer, net.forward,
                                    {.micro_batches = 8, .schedule = schedule, .cut = {{"features.4"}}});
        pipeline.train(batch_of(subject.data, 8, 1, device));
        bytes[i] = pipeline.slot_bytes();
        fleet::leave();
      });
    for (std::thread& thread : threads) thread.join();
    return bytes;
  };
  const std::vector<size_t> all = bytes_of(ScheduleKind::gpipe), few = bytes_of(ScheduleKind::one_f_one_b);
  EXPECT_LE(few[0] * 2, all[0]);  // 2 and 3 slots instead of 8
  EXPECT_LE(few[1] * 2, all[1]);
}

// --- what cannot be -------------------------------------------

std::vector<std::string> errors_of(const Subject& subject, const Training& run, int stages) {
  std::vector<std::string> errors;
  on_stages(subject, run, {.pipeline = stages}, &errors);
  return errors;
}

void expect_on_all(const std::vector<std::string>& errors, const std::string& text) {
  for (const std::string& error : errors) EXPECT_NE(error.find(text), std::string::npos) << error;
}

TEST(Pipeline, RefusesACutThatCannotBe) {
  expect_on_all(errors_of(small_vgg(), {.cut = {{"features.40"}}}, 2),
                "cut names 'features.40', and the step runs through no such module; there are features.0, features.1");
  expect_on_all(errors_of(small_vgg(), {.cut = {{"features"}}}, 2), "with which the first stage would begin too");
  expect_on_all(errors_of(small_vgg(), {.cut = {{"classifier", "classifier.0"}}}, 3), "where a stage begins already");
  expect_on_all(errors_of(small_vgg(), {.cut = {{"classifier", "features.4"}}}, 3), "the step runs through it before");
  expect_on_all(errors_of(small_vgg(), {.cut = {{"classifier"}}}, 3), "the mesh has 3 stages: name 2");
  expect_on_all(errors_of(small_resnet(), {.cut = {{"layer1.0.conv2"}}}, 2),
                "goes through 'layer1.0.relu', which computes on both sides");
}

// A rank sends nothing to itself, and writes each gradient in one program.
TEST(Pipeline, RefusesWhatTwoStagesOfARankShare) {
  const Training run{.schedule = ScheduleKind::interleaved, .chunks = 2, .cut = {{"conv3", "cls", "box"}}};
  for (const std::string& error : errors_of(two_headed(), run, 2))
    EXPECT_NE(error.find("stage 3 reads what stage 1 computes, and rank 1 has both"), std::string::npos) << error;
}

TEST(Pipeline, OfStagesWithOtherSchedulesOrCutsBeginsOnNone) {
  auto run_both = [](const pipeline::PipelineOptions& first, const pipeline::PipelineOptions& second) {
    auto groups = comm::local_groups(2, {.timeout = std::chrono::seconds(60)});
    std::vector<std::string> errors(2);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < 2; ++rank)
      threads.emplace_back([&, rank] {
        const auto i = static_cast<size_t>(rank);
        const Device device{DeviceType::cpu, static_cast<int16_t>(rank)};
        fleet::join(groups[i], {.pipeline = 2});
        try {
          const Subject subject = small_vgg();
          const Net net = subject.make();
          net.module.to(device);
          optim::Optimizer optimizer = optim::SGD(net.module.parameters(), {.lr = 0.1});
          pipeline::Pipeline pipeline(net.module, optimizer, net.forward, rank == 0 ? first : second);
          pipeline.train(batch_of(subject.data, 8, 1, device));
        } catch (const Error& error) {
          errors[i] = error.what();
        }
        try {
          fleet::leave();
        } catch (const Error&) {  // named above
        }
      });
    for (std::thread& thread : threads) thread.join();
    return errors;
  };
  const pipeline::PipelineOptions usual{.micro_batches = 4, .cut = {{"classifier"}}};
  pipeline::PipelineOptions other = usual;
  other.schedule = ScheduleKind::gpipe;
  expect_on_all(run_both(usual, other), "pipeline.schedule is 1f1b on rank 0 and gpipe on rank 1");
  other = usual;
  other.cut = {{"features.4"}};
  expect_on_all(run_both(usual, other), "pipeline.cut is classifier on rank 0 and features.4 on rank 1");
}

TEST(Pipeline, NamesStageAndPlaceInTheScheduleWhereAnotherStageIsGone) {
  auto groups = comm::local_groups(2, {.timeout = std::chrono::seconds(60)});
  std::string error;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank)
    threads.emplace_back([&, rank] {
      const Device device{DeviceType::cpu, static_cast<int16_t>(rank)};
      fleet::join(groups[static_cast<size_t>(rank)], {.pipeline = 2});
      try {
        const Subject subject = small_vgg();
        const Net net = subject.make();
        net.module.to(device);
        optim::Optimizer optimizer = optim::SGD(net.module.parameters(), {.lr = 0.1});
        pipeline::Pipeline pipeline(net.module, optimizer, net.forward, {.micro_batches = 4, .cut = {{"classifier"}}});
        for (int step = 0; step < 5; ++step) {
          pipeline.train(batch_of(subject.data, 8, 1, device))[0].to_vector<double>();
          if (rank == 1 && step == 1) StepContext::current().tell_failure("this stage ends");
          if (rank == 1 && step == 1) break;
        }
      } catch (const Error& found) {
        if (rank == 0) error = found.what();
      }
      try {
        fleet::leave();
      } catch (const Error&) {  // named above
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_NE(error.find("[pipeline] stage 0 of 2, "), std::string::npos) << error;
  EXPECT_NE(error.find("of its schedule ("), std::string::npos) << error;
  EXPECT_NE(error.find("this stage ends"), std::string::npos) << error;
}

}  // namespace
}  // namespace bonfire::pipeline_test
