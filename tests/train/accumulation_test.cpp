// accumulate_steps: micro-batches that add up to the gradient of one large batch.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <thread>

#include "bonfire/base/error.h"
#include "bonfire/comm/local/local_group.h"
#include "bonfire/graph/trace.h"
#include "bonfire/nn/safetensors.h"
#include "bonfire/parallel/fleet.h"
#include "bonfire/train/checkpoint/checkpoint.h"
#include "bonfire/train/trainer.h"
#include "tests/support/scratch_folder.h"
#include "tests/train/digits.h"

namespace bonfire::train::accumulation_test {
namespace {

using bonfire::testing::ScratchFolder;
using Words = std::vector<std::string>;

constexpr int64_t kBatch = 48;  // of an update, whatever it is made of

const std::string kAverage = "ema_decay=0.9";

struct Way {
  int64_t micro_batches = 1;  // accumulate_steps
  int ranks = 1;
  bool op_by_op = false;
  Words settings = {};
};

struct OpByOp {
  explicit OpByOp(bool on) { set_check_numbers(on); }
  ~OpByOp() { set_check_numbers(false); }
};

bool averages(const Way& way) {
  return std::find(way.settings.begin(), way.settings.end(), kAverage) != way.settings.end();
}

// All weights, or their running means, after two epochs of 200 images: 4 updates of 48 and one of 8 in each.
std::vector<double> weights_after(const Way& way) {
  const ScratchFolder folder;
  const std::string data = data_of_digits(folder);
  OpByOp scope(way.op_by_op);
  auto groups = comm::local_groups(way.ranks, {.timeout = std::chrono::seconds(60)});
  std::filesystem::path file;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < way.ranks; ++rank)
    threads.emplace_back([&, rank] {
      Words settings{data,
                     "output=" + (folder / "runs").string(),
                     "place=cpu:" + std::to_string(rank),
                     "model=mlp",
                     "optimizer=sgd",
                     "lr=0.1",
                     "epochs=2",
                     "limit=200",
                     "drop_last=false",
                     "seed=3",
                     "batch_size=" + std::to_string(kBatch / way.micro_batches / way.ranks),
                     "strategy.accumulate_steps=" + std::to_string(way.micro_batches)};
      settings.insert(settings.end(), way.settings.begin(), way.settings.end());
      fleet::join(groups[static_cast<size_t>(rank)]);
      try {
        RunEnds end = Trainer(default_config(settings)).run();
        if (rank == 0) file = averages(way) ? average_file(end.checkpoint) : weights_file(end.checkpoint);
      } catch (const Error& error) {
        ADD_FAILURE() << error.what();
      }
      fleet::leave();
    });
  for (std::thread& thread : threads) thread.join();
  std::vector<double> numbers;
  auto tensors = nn::SafetensorsFile::open(file);
  for (const nn::TensorEntry& tensor : tensors.entries()) {
    std::vector<float> values(tensor.bytes.size() / sizeof(float));
    std::memcpy(values.data(), tensor.bytes.data(), tensor.bytes.size());
    numbers.insert(numbers.end(), values.begin(), values.end());
  }
  return numbers;
}

void expect_near(const std::vector<double>& found, const std::vector<double>& expected, const std::string& what) {
  ASSERT_EQ(found.size(), expected.size()) << what;
  double worst = 0;
  for (size_t i = 0; i < found.size(); ++i) worst = std::max(worst, std::abs(found[i] - expected[i]));
  EXPECT_LE(worst, 1e-6) << what;
}

class Accumulation : public ::testing::TestWithParam<Words> {};

TEST_P(Accumulation, IsOneLargeBatchHoweverItIsMade) {
  const std::vector<double> large = weights_after({.settings = GetParam()});
  for (int64_t micro_batches : {2, 3, 4, 8})
    for (int ranks : {1, 2})
      expect_near(weights_after({.micro_batches = micro_batches, .ranks = ranks, .settings = GetParam()}), large,
                  fmt::format("{} micro-batches on {} ranks", micro_batches, ranks));
  expect_near(weights_after({.ranks = 2, .settings = GetParam()}), large, "one batch on 2 ranks");
  expect_near(weights_after({.micro_batches = 3, .op_by_op = true, .settings = GetParam()}), large, "op by op");
}

INSTANTIATE_TEST_SUITE_P(Ways, Accumulation,
                         ::testing::Values(Words{}, Words{"clip_grad_norm=0.5"}, Words{kAverage},
                                           Words{"schedule=cosine", "warmup_epochs=1", "optimizer=momentum"}));

}  // namespace
}  // namespace bonfire::train::accumulation_test
