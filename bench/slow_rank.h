#pragma once
// What a rank that is slow now and then costs, for bench_comm: four ranks train on drawn digits, and at each step one
// of them, drawn anew, takes 10 ms longer. Synchronous training waits for it at every step, local SGD at every fourth.
//
// A rank is this program with --slow-rank, started by `bonfire launch`. Rank 0 prints milliseconds a step and the share
// of 1,000 test images that it tells right at the end.

#include <fmt/format.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "bonfire/base/random.h"
#include "bonfire/bonfire.h"
#include "measure.h"

namespace bench {

using namespace bonfire;

inline Tensor normalized(const Tensor& image) {
  return normalize_image(image, full({1}, 0.5, DType::f32), full({1}, 0.5, DType::f32), {.channels_last = true});
}

inline double accuracy(const models::MnistCnn& model) {
  constexpr int64_t kImages = 1000;
  data::DataLoader digits(
      std::make_shared<data::Glyphs>(data::GlyphsOptions{.split = data::Split::test, .size = kImages}),
      {.batch_size = kImages, .shuffle = false});
  auto [image, label] = digits.next();
  NoGrad no_grad;
  return mean(cast(equal(argmax(model(normalized(image)), 1), label), DType::f32)).item();
}

inline int be_slow_now_and_then(bool local_sgd) {
  constexpr int64_t kSteps = 160, kFirst = 20;  // steps; those before the first warm up
  fleet::init();
  data::DataLoader digits(std::make_shared<data::Glyphs>(), {.batch_size = 16, .sampler = fleet::sampler()});
  manual_seed(1);
  auto model = fleet::distributed_model(models::mnist_cnn());
  auto optimizer = fleet::distributed_optimizer(optim::Momentum(model.parameters(), {.lr = 0.02, .momentum = 0.9}),
                                                {.use_local_sgd = local_sgd});
  Clock::time_point begin;
  for (int64_t step = 0; step < kSteps; ++step) {
    if (step == kFirst) begin = Clock::now();
    auto [image, label] = digits.next();
    const double drawn = uniform_at(9, 0, static_cast<uint64_t>(step)) * fleet::world_size();
    if (static_cast<int>(drawn) == fleet::rank()) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    Tensor loss = cross_entropy(model(normalized(image)), label);
    loss.backward();
    optimizer.step();
    optimizer.clear_grad();
    loss.item();
  }
  synchronize();
  fleet::group().barrier();
  const double taken = 1e3 * seconds(Clock::now() - begin) / (kSteps - kFirst);
  fleet::average();
  const double right = accuracy(model);
  if (fleet::rank() == 0) std::printf("%f %f\n", taken, right);
  std::fflush(stdout);
  fleet::leave();
  return 0;
}

inline void measure_slow_rank(const std::string& self, int rounds, nlohmann::json& rows) {
  const std::string launcher = std::filesystem::canonical("/proc/self/exe").replace_filename("bonfire").string();
  std::vector<double> times[2], right[2];  // synchronous, local SGD
  for (int round = 0; round < rounds; ++round)
    for (size_t local : {0, 1}) {
      double taken = 0, share = 0;
      const std::string line =
          output_of(fmt::format("{} launch --nproc_per_node 4 {} --slow-rank {}", launcher, self, local));
      if (std::sscanf(line.c_str(), "[rank 0] %lf %lf", &taken, &share) != 2)
        throw_error<CommError>("[bench_comm] the ranks of `bonfire launch` have failed");
      times[local].push_back(taken);
      right[local].push_back(100 * share);
    }
  std::printf(
      "one random slow rank (10 ms) of 4 at each step, mnist_cnn on digits, 160 steps of 64: synchronous %.1f ms a "
      "step, "
      "%.1f %% right; local SGD (4) %.1f ms, %.1f %%\n",
      median(times[0]), median(right[0]), median(times[1]), median(right[1]));
  rows.push_back({{"case", "one random slow rank of 4"},
                  {"synchronous_ms", median(times[0])},
                  {"synchronous_top1", median(right[0])},
                  {"local_sgd_ms", median(times[1])},
                  {"local_sgd_top1", median(right[1])}});
}

}  // namespace bench
