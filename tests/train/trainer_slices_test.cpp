// Trainers whose ranks have slices: of a table that no step reads, so that it may be cut in any way and keeps what it
// began with.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "bonfire/base/random.h"
#include "bonfire/graph/first_values.h"
#include "bonfire/nn/linear.h"
#include "bonfire/ops/loss.h"
#include "bonfire/train/checkpoint/checkpoint.h"
#include "bonfire/train/checkpoint/manifest.h"
#include "tests/support/scratch_folder.h"
#include "tests/train/as_ranks.h"
#include "tests/train/course.h"

namespace bonfire::train::trainer_slices_test {
namespace {

using bonfire::testing::ScratchFolder;
using Words = std::vector<std::string>;

const Shape kShape{6, 4};

class Numbers final : public data::Dataset {
 public:
  int64_t size() const override { return 96; }
  data::Sample get(int64_t index) const override {
    data::Array input{DType::f32, {3}, std::vector<std::byte>(3 * sizeof(float))},
        label{DType::f32, {1}, std::vector<std::byte>(sizeof(float))};
    auto *values = reinterpret_cast<float*>(input.bytes.data()), *wanted = reinterpret_cast<float*>(label.bytes.data());
    for (uint64_t i = 0; i < 3; ++i) {
      values[i] = uniform_at(1, 0, 3 * static_cast<uint64_t>(index) + i);
      *wanted += values[i] * static_cast<float>(i);
    }
    return {std::move(input), std::move(label), {}};
  }
};

class Net : public nn::Callable<Net> {
 public:
  Net(float first, const Slice& slice)
      : Callable("Net"), fc_(register_module("fc", nn::Linear({.in = 3, .out = 1}))), table_({kShape, DType::f32, {}}) {
    table_.set_first_values(first_values([first](int64_t i) { return first + static_cast<float>(i); }));
    table_.keep_slice(slice);
    register_parameter("table", Parameter(table_));
  }
  Tensor forward(const Tensor& x) const { return fc_(x); }

 private:
  nn::Linear fc_;
  Variable table_;
};

// How ranks share the table out. They stand along the tensor axis: all of them train on the same samples.
using Cut = std::function<Slice(int rank, int ranks)>;
const Cut kWhole = [](int, int) { return Slice(kShape); };
const Cut kRows = [](int rank, int ranks) { return Slice::part(kShape, 0, rank, ranks); };
const Cut kColumns = [](int rank, int ranks) { return Slice::part(kShape, 1, rank, ranks); };
const Cut kFlat = [](int rank, int ranks) { return Slice::range(kShape, 24 * rank / ranks, 24 * (rank + 1) / ranks); };

// `first` is what the table counts from before anything is loaded.
Course fit(const ScratchFolder& folder, int ranks, const Cut& cut, float first, const Words& more, int64_t stop_at = -1,
           int tensor = 0) {
  Course course;
  auto body = [&](int rank) {
    Words settings{"output=" + (folder / "runs").string(),
                   fmt::format("place=cpu:{}", rank),
                   "batch_size=24",
                   "epochs=3",
                   "optimizer=adam",
                   "ema_decay=0.9",
                   "lr=0.01",
                   "log_freq=1",
                   "check_replicas=5"};
    settings.insert(settings.end(), more.begin(), more.end());
    const Config config = default_config(settings);
    manual_seed(config.seed);
    const auto task =
        make_task({.name = "regression", .unit = "rows", .loss = [](const Outputs& outputs, const Tensor& label) {
                     return mse_loss(outputs[0], label);
                   }});
    const int parts = tensor == 0 ? ranks : tensor;
    Trainer trainer(config, Net(first, cut(rank % parts, parts)), task);
    trainer.add(std::make_unique<Witness>(course, stop_at));
    trainer.add(metrics_log());
    trainer.add(report_page());
    trainer.fit(std::make_shared<Numbers>(), std::make_shared<Numbers>());
  };
  course.errors = as_ranks(ranks, body, {.tensor = tensor == 0 ? ranks : tensor});
  for (const std::string& error : course.errors) EXPECT_EQ(error, "");
  return course;
}

std::vector<float> table_in(const nn::TensorFiles& files, const std::string& name = "table") {
  const std::vector<std::byte> bytes = files.read(name, Slice(kShape));
  const auto* values = reinterpret_cast<const float*>(bytes.data());
  return {values, values + bytes.size() / sizeof(float)};
}

std::vector<float> counting(float first) {
  std::vector<float> values(24);
  for (size_t i = 0; i < values.size(); ++i) values[i] = first + static_cast<float>(i);
  return values;
}

std::filesystem::path checkpoint(const ScratchFolder& folder, int64_t step) {
  return folder / "runs/1/checkpoints" / checkpoint_name(step);
}

std::vector<std::byte> fc_in(const std::filesystem::path& checkpoint) {
  return open_tensors(weights_file(checkpoint)).read("fc.weight", Slice({1, 3}));
}

TEST(TrainerOfSlices, EachRankSavesItsOwnAndTheBestIsOneWholeFile) {
  ScratchFolder folder, whole;
  const Course course = fit(folder, 3, kRows, 100, {});
  EXPECT_FALSE(course.end.interrupted);
  const Manifest manifest = read_manifest(checkpoint(folder, 12));
  EXPECT_EQ(manifest.files.at("weights.rank-2.safetensors").slices.at("table"), kRows(2, 3));
  EXPECT_EQ(table_in(open_tensors(weights_file(checkpoint(folder, 12)))), counting(100));
  EXPECT_EQ(table_in(open_tensors(folder / "runs/1/best.safetensors")), counting(100));
  // Nothing else is changed by it.
  const Course other = fit(whole, 3, kWhole, 100, {});
  ASSERT_EQ(course.steps.size(), other.steps.size());
  for (size_t i = 0; i < course.steps.size(); ++i) EXPECT_EQ(course.steps[i].loss, other.steps[i].loss) << i;
  EXPECT_EQ(fc_in(checkpoint(folder, 12)), fc_in(checkpoint(whole, 12)));
  EXPECT_TRUE(folder.get("runs/1/best.safetensors") == whole.get("runs/1/best.safetensors"));
}

// Stopped in the middle of an epoch. The model that goes on counts from elsewhere until its table is loaded.
TEST(TrainerOfSlices, GoesOnWithAnyOtherCutAndNumberOfRanks) {
  ScratchFolder undisturbed;
  fit(undisturbed, 2, kRows, 100, {});
  const std::vector<std::byte> expected = fc_in(checkpoint(undisturbed, 12));
  struct Other {
    int ranks;
    const Cut* cut;
  };
  for (const Other& other : {Other{2, &kRows}, {2, &kColumns}, {2, &kFlat}, {2, &kWhole}, {1, &kWhole}, {3, &kFlat}}) {
    ScratchFolder folder;
    EXPECT_TRUE(fit(folder, 2, kRows, 100, {}, 6).end.interrupted);
    const Course second = fit(folder, other.ranks, *other.cut, -50, {"resume=auto"});
    EXPECT_LE(second.steps.size(), 6U);
    const nn::TensorFiles files = open_tensors(weights_file(checkpoint(folder, 12)));
    EXPECT_EQ(table_in(files), counting(100)) << other.ranks;
    EXPECT_EQ(table_in(open_tensors(average_file(checkpoint(folder, 12)))), counting(100)) << other.ranks;
    EXPECT_EQ(table_in(open_tensors(folder / "runs/1/best.safetensors")), counting(100)) << other.ranks;
    if (other.ranks == 2) {
      EXPECT_EQ(fc_in(checkpoint(folder, 12)), expected);
    }
  }
}

TEST(TrainerOfSlices, BeginsFromTheWeightsOfAnyOtherCut) {
  ScratchFolder whole, rows;
  fit(whole, 1, kWhole, 100, {"epochs=1"});
  fit(rows, 2, kRows, 200, {"epochs=1"});
  for (const Cut* cut : {&kRows, &kColumns, &kFlat}) {
    ScratchFolder folder;
    fit(folder, 3, *cut, -50, {"epochs=1", "init_from=" + (whole / "runs/1").string()});
    EXPECT_EQ(table_in(open_tensors(weights_file(checkpoint(folder, 4)))), counting(100));
  }
  for (const std::string& from : {(rows / "runs/1").string(), checkpoint(rows, 4).string()}) {
    ScratchFolder folder;
    fit(folder, 1, kWhole, -50, {"epochs=1", "init_from=" + from});
    EXPECT_EQ(table_in(open_tensors(weights_file(checkpoint(folder, 4)))), counting(200)) << from;
  }
}

// Plain SGD: a gradient, or a loss, that counted ranks of the tensor axis would be another multiple.
TEST(TrainerOfSlices, TrainsAsManySamplesAsTheDataAxisHasRanks) {
  const Words plain{"optimizer=sgd", "lr=0.1"};
  auto with = [&](const char* batch) {
    Words words = plain;
    words.push_back(batch);
    return words;
  };
  ScratchFolder alone;
  const Course expected = fit(alone, 1, kWhole, 100, with("batch_size=24"));
  struct Other {
    int ranks, tensor;
    const char* batch;
  };
  for (const Other& other : {Other{2, 2, "batch_size=24"}, {3, 3, "batch_size=24"}, {4, 2, "batch_size=12"}}) {
    ScratchFolder folder;
    const Course course = fit(folder, other.ranks, kRows, 100, with(other.batch), -1, other.tensor);
    ASSERT_EQ(course.steps.size(), expected.steps.size()) << other.ranks;
    for (size_t i = 0; i < course.steps.size(); ++i)
      EXPECT_NEAR(course.steps[i].loss, expected.steps[i].loss, 1e-5 * (1 + expected.steps[i].loss))
          << other.ranks << ", step " << i;
    ASSERT_EQ(course.evaluations.size(), expected.evaluations.size());
    EXPECT_NEAR(course.evaluations.back().loss, expected.evaluations.back().loss, 1e-5) << other.ranks;
  }
}

}  // namespace
}  // namespace bonfire::train::trainer_slices_test
