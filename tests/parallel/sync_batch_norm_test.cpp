// sync_batch_norm over threads as ranks: what one rank would do with all samples.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <numeric>
#include <thread>

#include "bonfire/base/random.h"
#include "bonfire/bonfire.h"
#include "bonfire/comm/local/local_group.h"
#include "bonfire/parallel/fleet.h"
#include "tests/support/expect_error.h"

namespace bonfire::sync_batch_norm_test {
namespace {

constexpr int64_t kBatch = 12, kSteps = 50;

class NormedNet : public nn::Callable<NormedNet> {
 public:
  NormedNet() : Callable("NormedNet") {}
  Tensor forward(const Tensor& x) const {  // [N, 1, 8, 8]
    Tensor y = avg_pool2d(tanh(norm1_(conv1_(x))), {.kernel = {2}});
    y = tanh(norm2_(conv2_(y)) + y);  // with a residual, as fusion likes it
    return fc_(flatten(y, 1));
  }

 private:
  nn::Conv2d conv1_ = register_module("conv1", nn::Conv2d({.in = 1, .out = 6, .kernel = {3}, .padding = {1}}));
  nn::BatchNorm2d norm1_ = register_module("norm1", nn::BatchNorm2d({.channels = 6}));
  nn::Conv2d conv2_ = register_module("conv2", nn::Conv2d({.in = 6, .out = 6, .kernel = {3}, .padding = {1}}));
  nn::BatchNorm2d norm2_ = register_module("norm2", nn::BatchNorm2d({.channels = 6}));
  nn::Linear fc_ = register_module("fc", nn::Linear({.in = 96, .out = 5}));
};

// Samples [first, first + count) of a step's batch. Their means differ: statistics of a part are not those of the
// whole.
Tensor images(int64_t step, int64_t first, int64_t count, Device device) {
  std::vector<float> pixels(static_cast<size_t>(count) * 64);
  for (size_t i = 0; i < pixels.size(); ++i) {
    size_t at = static_cast<size_t>(first) * 64 + i;
    size_t sample = at / 64;
    pixels[i] = normal_at(3, static_cast<uint64_t>(step), at) + 0.3F * static_cast<float>(sample);
  }
  return Tensor::from<float>(pixels, {count, 1, 8, 8}, device);
}

Tensor labels(int64_t step, int64_t first, int64_t count, Device device) {
  std::vector<int64_t> classes(static_cast<size_t>(count));
  for (size_t i = 0; i < classes.size(); ++i) classes[i] = (7 * step + 3 * (first + static_cast<int64_t>(i))) % 5;
  return Tensor::from<int64_t>(classes, {count}, device);
}

struct Course {
  std::vector<double> losses;  // of all samples, each step
  std::vector<float> running;  // variance of the second norm, at the end
};

// One rank's training on its share of each batch; the loss of each rank counts by its samples. Who has none takes part
// with stand-ins.
Course train(Device device, std::span<const int64_t> shares, bool sync) {
  manual_seed(5);
  NormedNet plain;
  plain.to(device);
  NormedNet model = fleet::distributed_model(plain);
  auto optimizer = fleet::distributed_optimizer(optim::Momentum(model.parameters(), {.lr = 0.02, .momentum = 0.9}),
                                                {.sync_batch_norm = sync});
  auto rank = static_cast<size_t>(fleet::rank());
  int64_t first = 0;
  for (size_t r = 0; r < rank; ++r) first += shares[r];
  const double weight = static_cast<double>(shares[rank]) / kBatch;
  const int64_t rows = shares[rank] == 0 ? 4 : shares[rank];
  fleet::StandIns scope(shares[rank] == 0);
  Course course;
  for (int64_t step = 0; step < kSteps; ++step) {
    Tensor loss = cross_entropy(model(images(step, first, rows, device)), labels(step, first, rows, device));
    (loss * (weight * static_cast<double>(fleet::world_size()))).backward();
    optimizer.step();
    optimizer.clear_grad();
    double mean = weight * loss.item();
    if (fleet::world_size() > 1) fleet::group().all_reduce({&mean, 1, DType::f64}, comm::Reduce::sum);
    course.losses.push_back(mean);
  }
  for (const auto& [name, variable] : model.state_dict()) {
    if (name != "norm2.running_var") continue;
    std::vector<std::byte> bytes = variable.save();
    course.running.resize(bytes.size() / sizeof(float));
    std::memcpy(course.running.data(), bytes.data(), bytes.size());
  }
  return course;
}

std::vector<Course> train_on(const std::vector<int64_t>& shares, bool sync) {
  auto groups = comm::local_groups(static_cast<int>(shares.size()), {.timeout = std::chrono::seconds(60)});
  std::vector<Course> courses(shares.size());
  std::vector<std::thread> threads;
  for (size_t r = 0; r < shares.size(); ++r)
    threads.emplace_back([&, r] {
      fleet::join(groups[r]);
      courses[r] = train({DeviceType::cpu, static_cast<int16_t>(r)}, shares, sync);
      fleet::leave();
    });
  for (std::thread& thread : threads) thread.join();
  return courses;
}

double largest_difference(const Course& a, const Course& b) {
  double most = 0;
  for (size_t i = 0; i < a.losses.size(); ++i)
    most = std::max(most, std::abs(a.losses[i] - b.losses[i]) / std::abs(b.losses[i]));
  return most;
}

TEST(DataParallel, SyncBatchNormTrainsAsOneRankWouldOnTheWholeBatch) {
  const Course whole = train_on({kBatch}, false)[0];
  for (const std::vector<int64_t>& shares : {std::vector<int64_t>{6, 6}, {9, 3}, {2, 5, 5}, {12, 0}, {0, 7, 5}}) {
    std::vector<Course> parts = train_on(shares, true);
    EXPECT_LT(largest_difference(parts[0], whole), 1e-5) << shares.size() << " ranks, rank 0 has " << shares[0];
    for (const Course& part : parts) EXPECT_EQ(part.running, parts[0].running);  // the same bits everywhere
    ASSERT_EQ(parts[0].running.size(), whole.running.size());
    for (size_t c = 0; c < whole.running.size(); ++c)
      EXPECT_NEAR(parts[0].running[c], whole.running[c], 1e-4 * std::abs(whole.running[c]));
  }
  EXPECT_GT(largest_difference(train_on({6, 6}, false)[0], whole), 1e-3);  // without it they part
}

// A norm over features has as many values per channel as there are samples: here one on some ranks, or on all.
TEST(DataParallel, SyncBatchNormIsForRanksWithOneValuePerChannelToo) {
  constexpr int64_t kFeatures = 4;
  // Gradient of the bias before the norm's weights, running variance and results of all samples, in their order.
  struct Found {
    std::vector<float> results, gradient, running;
  };
  auto normed = [](Device device, int64_t first, int64_t count, int64_t all, bool sync) {
    nn::BatchNorm1d norm({.channels = kFeatures});
    norm.to(device);
    nn::BatchNorm1d model = fleet::distributed_model(norm);
    auto optimizer = fleet::distributed_optimizer(optim::SGD(model.parameters(), {}), {.sync_batch_norm = sync});
    std::vector<float> values(static_cast<size_t>(count * kFeatures));
    for (size_t i = 0; i < values.size(); ++i) values[i] = normal_at(3, 1, static_cast<size_t>(first * kFeatures) + i);
    Tensor y = model(Tensor::from<float>(values, {count, kFeatures}, device));
    const double weight = static_cast<double>(fleet::world_size()) / static_cast<double>(all);
    (sum(square(y) * y) * weight).backward();
    Found found{.results = y.to_vector<float>(), .gradient = {}, .running = {}};
    found.gradient = model.parameters()[1].grad().to_vector<float>();
    found.running = model.state_dict()[3].variable.value().to_vector<float>();
    return found;
  };
  auto on = [&](const std::vector<int64_t>& shares, bool sync) {
    const int64_t all = std::accumulate(shares.begin(), shares.end(), int64_t{0});
    auto groups = comm::local_groups(static_cast<int>(shares.size()), {.timeout = std::chrono::seconds(60)});
    std::vector<Found> found(shares.size());
    std::vector<std::thread> threads;
    for (size_t r = 0; r < shares.size(); ++r)
      threads.emplace_back([&, r] {
        fleet::join(groups[r]);
        const int64_t first = std::accumulate(shares.begin(), shares.begin() + static_cast<int64_t>(r), int64_t{0});
        found[r] = normed({DeviceType::cpu, static_cast<int16_t>(r)}, first, shares[r], all, sync);
        fleet::leave();
      });
    for (std::thread& thread : threads) thread.join();
    for (size_t r = 1; r < found.size(); ++r)
      found[0].results.insert(found[0].results.end(), found[r].results.begin(), found[r].results.end());
    return found[0];
  };
  for (const std::vector<int64_t>& shares : {std::vector<int64_t>{1, 1}, {1, 4}, {1, 1, 1, 2}}) {
    const Found whole = on({std::accumulate(shares.begin(), shares.end(), int64_t{0})}, false),
                parts = on(shares, true);
    auto expect_near = [](const std::vector<float>& one, const std::vector<float>& other) {
      ASSERT_EQ(one.size(), other.size());
      for (size_t i = 0; i < one.size(); ++i) EXPECT_NEAR(one[i], other[i], 1e-4 * (1 + std::abs(other[i])));
    };
    expect_near(parts.results, whole.results);
    expect_near(parts.gradient, whole.gradient);
    expect_near(parts.running, whole.running);
  }
}

TEST(DataParallel, WithoutSyncBatchNormOneValuePerChannelIsRefused) {
  nn::BatchNorm1d norm({.channels = 4});
  EXPECT_ERROR(norm(ones({1, 4})), ShapeError, "more than one value per channel, input is [1, 4]; use a larger batch");
}

}  // namespace
}  // namespace bonfire::sync_batch_norm_test
