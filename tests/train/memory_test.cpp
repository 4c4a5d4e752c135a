// What a run will need of memory, foretold without running it, beside what it then takes.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>

#include "bonfire/runtime/plan_cache.h"
#include "bonfire/train/trainer.h"
#include "tests/support/expect_error.h"
#include "tests/support/scratch_folder.h"
#include "tests/train/as_ranks.h"
#include "tests/train/digits.h"

namespace bonfire::train::memory_test {
namespace {

using bonfire::testing::ScratchFolder;
using Words = std::vector<std::string>;

struct Taken {
  size_t stored = 0, temporaries = 0;
};

// The most that storages of a device take in steps 3 to 5 of a run, and the arena of its fullest plan.
Callbacks measuring(Device device, size_t before, Taken& taken) {
  return {.step = [=, &taken](const StepReport& report) {
    if (report.step == 2) reset_most_storage(device);
    if (report.step != 5) return;
    taken.stored = storage_use(device).most - before;
    for (const auto& plan : runtime::cached_plans())
      taken.temporaries = std::max(taken.temporaries, runtime::peak_bytes(*plan, device));
  }};
}

class Memory : public ::testing::Test {
 protected:
  Memory() { setenv("BONFIRE_TUNE", "off", 1); }
  ~Memory() override { unsetenv("BONFIRE_TUNE"); }
  void SetUp() override {
    put_digits(folder_ / "digits");
    runtime::clear_plan_cache();
  }

  Words settings(const Words& more) const {
    Words all{"data=" + (folder_ / "digits").string(),
              "output=" + (folder_ / "runs").string(),
              "place=cpu",
              "batch_size=8",
              "model=resnet18_small",
              "num_workers=1",
              "steps=6",
              "log_freq=1",
              "lr=0.01"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }

  Taken taken_by_run(const Words& more) const {
    const Device device;
    Taken taken;
    const size_t before = storage_use(device).now;
    Trainer trainer(default_config(settings(more)));
    trainer.add(measuring(device, before, taken));
    trainer.run();
    return taken;
  }

  void expect_foretold(const Words& more) const {
    const std::vector<StepMemory> foretold = Trainer(default_config(settings(more))).memory();
    ASSERT_FALSE(foretold.empty());
    EXPECT_FALSE(std::filesystem::exists(folder_ / "runs")) << "nothing of a run is made";
    const Taken taken = taken_by_run(more);
    EXPECT_NEAR(static_cast<double>(foretold[0].stored()), static_cast<double>(taken.stored),
                0.03 * static_cast<double>(taken.stored))
        << to_string(foretold[0]);
    EXPECT_EQ(foretold[0].temporaries.arena, taken.temporaries);
  }

  ScratchFolder folder_;
};

TEST_F(Memory, OfAStepIsWhatItTakes) { expect_foretold({}); }

TEST_F(Memory, WithBf16AdamAnAverageAndClipping) {
  expect_foretold({"strategy.use_amp=true", "optimizer=adam", "ema_decay=0.9", "clip_grad_norm=1"});
}

TEST_F(Memory, OfAModelThatIsComputedAgain) {
  const Words marks{"strategy.use_recompute=true", "strategy.recompute_segments=[layer1, layer2, layer3]"};
  expect_foretold(marks);
  const StepMemory with = Trainer(default_config(settings(marks))).memory()[0],
                   without = Trainer(default_config(settings({}))).memory()[0];
  EXPECT_LT(with.temporaries.arena, 0.8 * static_cast<double>(without.temporaries.arena));
  EXPECT_EQ(with.stored(), without.stored());
}

struct Told final : Reporter {
  explicit Told(MemoryReport& last, std::vector<std::string>& notes) : last(last), notes(notes) {}
  void begin(const RunBegins&) override {}
  void step(const StepReport&) override {}
  void evaluated(const EvaluationReport&) override {}
  void memory(const MemoryReport& report) override { last = report; }
  void note(const std::string& text) override { notes.push_back(text); }
  void end(const RunEnds&) override {}
  MemoryReport& last;
  std::vector<std::string>& notes;
};

TEST_F(Memory, WithinABudgetIsSaidForetoldAndMeasured) {
  const StepMemory without = Trainer(default_config(settings({}))).memory()[0];
  const auto budget = without.stored() + 7 * without.temporaries.arena / 10;
  const Words within{fmt::format("memory_budget={:.3f}MB", static_cast<double>(budget) * 1e-6), "steps=12"};
  runtime::clear_plan_cache();  // of the step without
  expect_foretold(within);
  std::filesystem::remove_all(folder_ / "runs");
  const StepMemory foretold = Trainer(default_config(settings(within))).memory()[0];
  EXPECT_LE(foretold.all(), budget);
  EXPECT_NE(to_string(foretold).find("for memory_budget: memory "), std::string::npos);
  MemoryReport told;
  std::vector<std::string> notes;
  Trainer trainer(default_config(settings(within)));
  trainer.add(std::make_unique<Told>(told, notes));
  trainer.add(report_page());
  trainer.run();
  ASSERT_EQ(told.budget.size(), 2U);
  EXPECT_NE(told.budget[0].find(" % (estimated)"), std::string::npos) << told.budget[0];
  EXPECT_NE(told.budget[1].find("measured on cpu:0: memory "), std::string::npos) << told.budget[1];
  for (const std::string& line : told.budget) EXPECT_EQ(std::ranges::count(notes, line), 1) << line;
  ASSERT_EQ(told.devices.size(), 1U);
  EXPECT_LE(told.devices[0].all(), budget);
  std::ifstream file(folder_ / "runs/1/report.html");
  const std::string page((std::istreambuf_iterator<char>(file)), {});
  EXPECT_NE(page.find("<h2>Memory of a step</h2>"), std::string::npos);
  EXPECT_NE(page.find(told.budget[1]), std::string::npos);
}

TEST_F(Memory, OfStagesHasNoBudgetYet) {
  const Words stages{"num_gpus=2", "mesh.pipeline=2", "memory_budget=1GB"};
  EXPECT_ERROR(Trainer(default_config(settings(stages))).memory(), ConfigError,
               "memory_budget is not available yet for the stages of a pipeline");
}

TEST_F(Memory, OfDevicesThatShareABatch) { expect_foretold({"place=cpu:0,cpu:1"}); }

TEST_F(Memory, OfDevicesThatShareOutWhatTheyHold) {
  const Words devices{"place=cpu:0,cpu:1", "optimizer=adam"};
  const StepMemory copies = Trainer(default_config(settings(devices))).memory()[0];
  for (const std::string level : {"optimizer", "parameters"}) {
    SCOPED_TRACE(level);
    Words shared = devices;
    shared.push_back("strategy.sharding=" + level);
    runtime::clear_plan_cache();  // of the level before
    expect_foretold(shared);
    std::filesystem::remove_all(folder_ / "runs");
    const StepMemory part = Trainer(default_config(settings(shared))).memory()[0];
    const auto half = [](size_t of) { return static_cast<double>(of) / 2; };
    EXPECT_NEAR(static_cast<double>(part.optimizer), half(copies.optimizer), 0.02 * half(copies.optimizer));
    EXPECT_NEAR(static_cast<double>(part.gradients), half(copies.gradients), 0.02 * half(copies.gradients));
    if (level == "parameters") {
      EXPECT_NEAR(static_cast<double>(part.parameters), half(copies.parameters), 0.02 * half(copies.parameters));
    } else {
      EXPECT_EQ(part.parameters, copies.parameters);
    }
  }
}

TEST_F(Memory, OfStages) {
  const Words stages{"mesh.pipeline=2", "pipeline.micro_batches=4", "pipeline.cut=[layer3]", "num_workers=0"};
  Words all = stages;
  all.emplace_back("num_gpus=2");
  const std::vector<StepMemory> foretold = Trainer(default_config(settings(all))).memory();
  ASSERT_EQ(foretold.size(), 2U);
  std::array<Taken, 2> taken;
  const std::vector<std::string> errors = as_ranks(2, [&](int rank) {
    const Device device{DeviceType::cpu, static_cast<int16_t>(rank)};
    const auto own = static_cast<size_t>(rank);
    const size_t before = storage_use(device).now;
    Words words = settings(stages);
    words.push_back(fmt::format("place=cpu:{}", rank));
    Trainer trainer(default_config(words));
    // Only the first rank has reporters that hear of steps.
    if (rank == 0) trainer.add(measuring(device, before, taken[own]));
    if (rank == 1) reset_most_storage(device);
    trainer.run();
    if (rank == 1) taken[own].stored = storage_use(device).most - before;
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
  for (size_t rank = 0; rank < 2; ++rank)
    EXPECT_NEAR(static_cast<double>(foretold[rank].stored()), static_cast<double>(taken[rank].stored),
                0.1 * static_cast<double>(taken[rank].stored))
        << to_string(foretold[rank]);
  EXPECT_GT(foretold[0].slots, 0U);
  EXPECT_LT(foretold[0].parameters, foretold[1].parameters) << "most weights of a ResNet are in its last layers";
}

// By hand: what is kept of micro-batches is as many as the schedule has under way.
TEST_F(Memory, OfGPipeGrowsWithMicroBatches) {
  auto slots = [&](const char* schedule) {
    const Words words{"mesh.pipeline=2", "pipeline.micro_batches=8", "pipeline.cut=[layer3]", "num_gpus=2",
                      fmt::format("pipeline.schedule={}", schedule)};
    return static_cast<double>(Trainer(default_config(settings(words))).memory()[0].slots);
  };
  EXPECT_NEAR(slots("gpipe") / slots("1f1b"), 4, 0.6);  // eight, and two
}

TEST_F(Memory, IsDrawnAndNamesTheLargestValues) {
  const std::string text = to_string(Trainer(default_config(settings({}))).memory()[0]);
  for (const char* part : {"parameters and buffers", "optimizer state", "temporaries over the step", "forward",
                           "backward", "the largest where they are most", "layer1"})
    EXPECT_NE(text.find(part), std::string::npos) << part << " in\n" << text;
}

TEST_F(Memory, OfARunThatIsGoneOnWithIsRefused) {
  EXPECT_ERROR(Trainer(default_config(settings({"resume=auto"}))).memory(), ConfigError, "give its config.yaml");
}

TEST_F(Memory, OfAMeshThatCannotBeSaysSo) {
  EXPECT_ERROR(Trainer(default_config(settings({"num_gpus=3", "mesh.pipeline=2"}))).memory(), ConfigError, "mesh");
}

}  // namespace
}  // namespace bonfire::train::memory_test
