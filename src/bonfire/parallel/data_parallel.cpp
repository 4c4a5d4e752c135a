#include "bonfire/parallel/data_parallel.h"

#include "bonfire/autodiff/backward.h"
#include "bonfire/base/error.h"
#include "bonfire/graph/engine.h"
#include "bonfire/kernel/queue.h"
#include "bonfire/parallel/dealt_rows.h"
#include "bonfire/parallel/device_speeds.h"
#include "bonfire/parallel/results_of_devices.h"
#include "bonfire/parallel/sampler.h"
#include "bonfire/parallel/strategies/local_sgd.h"

namespace bonfire::detail {

std::vector<Device> all_gpus_or_cpu() {
  std::vector<Device> all = devices();
  if (all.size() > 1) std::erase_if(all, [](Device device) { return device.type == DeviceType::cpu; });
  return all;
}

DealtSteps::DealtSteps(DeviceThreads& threads) : threads_(threads) {}
DealtSteps::~DealtSteps() = default;

void DealtSteps::balance_by_speed() {
  const size_t devices = threads_.devices().size();
  bool alone = false;
  threads_.run([&](size_t place) {
    if (place == 0) alone = fleet::local_sgd_of_job() != nullptr;
  });
  if (alone)
    throw_error<ConfigError>(
        "[data_parallel] balance_by_speed() weighs the gradients of all devices by their shares, and with "
        "use_local_sgd "
        "each has a gradient of its own; leave one of them out");
  if (!speeds_ && devices > 1) speeds_ = std::make_unique<DeviceSpeeds>(devices);
}

std::vector<data::Share> DealtSteps::deal(int64_t samples) const {
  const auto world = static_cast<int64_t>(threads_.devices().size());
  const std::span<const int64_t> by_speed = speeds_ ? speeds_->shares() : std::span<const int64_t>();
  std::vector<data::Share> shares;
  for (int64_t i = 0; i < world; ++i) shares.push_back(data::DistributedSampler{i, world}.share(samples, by_speed));
  return shares;
}

std::vector<int64_t> DealtSteps::shares(int64_t samples) const {
  std::vector<int64_t> own;
  for (const data::Share& share : deal(samples)) own.push_back(share.own);
  return own;
}

std::vector<Tensor> DealtSteps::run(const Body& body, std::span<const Tensor> batch) {
  const int64_t samples = samples_of(batch);
  commit();  // what was traced before comes first
  const std::vector<HostRows> rows(batch.begin(), batch.end());
  const std::vector<data::Share> shares = deal(samples);
  const size_t world = shares.size();
  RandomState& random = StepContext::current().random;
  const bool recording = grad_enabled();
  const bool timed = recording && speeds_ && speeds_->ends_window(shares);
  std::vector<std::vector<Tensor>> results(world);
  std::vector<uint64_t> steps(world);
  std::vector<double> seconds(world);
  threads_.run([&, seed = random.seed, step = random.step](size_t place) {
    const data::Share& share = shares[place];
    const Device device = threads_.devices()[place];
    StepContext::current().random.seed = seed;  // as if the caller's thread went on
    StepContext::current().random.step = step;
    set_grad_enabled(recording);
    const LocalSgd* local = fleet::local_sgd_of_job();
    const bool alone = local != nullptr && local->local();  // then no other device's samples count
    threads_.weigh_loss(place, alone ? (share.own > 0 ? 1 : 0) : share.weight());
    std::vector<Tensor> own;
    for (const HostRows& one : rows) own.push_back(one.deal(share, device));
    const fleet::StandIns scope(share.own == 0);
    const fleet::RowsOf own_rows(share);
    results[place] = submitted(body(place, own));
    steps[place] = StepContext::current().random.step;
    if (!timed) return;
    synchronize();
    seconds[place] = queue_of(device).seconds_computing();
  });
  if (timed) speeds_->note(seconds);
  random.step = steps[0];
  return world == 1 ? std::move(results[0]) : put_together(std::move(results), shares);
}

}  // namespace bonfire::detail
