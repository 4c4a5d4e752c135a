#include "bonfire/parallel/device_threads.h"

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>

#include "bonfire/backend/cpu/device/threads.h"
#include "bonfire/base/error.h"
#include "bonfire/comm/local/local_group.h"
#include "bonfire/comm/lost_peer.h"
#include "bonfire/graph/step_context.h"
#include "bonfire/graph/trace.h"
#include "bonfire/graph/variable_copies.h"
#include "bonfire/ops/elementwise.h"
#include "bonfire/parallel/fleet.h"
#include "bonfire/parallel/placement.h"

namespace bonfire::detail {

namespace {

void check_devices(const std::vector<Device>& devices) {
  if (devices.empty())
    throw_error<ConfigError>(
        "[data_parallel] the list of devices is empty; name at least one, such as parse_device(\"cpu:0\")");
  std::set<Device> seen;
  for (Device device : devices) {
    require_device(device);
    if (!seen.insert(device).second)
      throw_error<ConfigError>(
          "[data_parallel] {} is named twice; each copy of the model needs a device of its own (cpu:0, cpu:1, … share "
          "the cores)",
          to_string(device));
  }
  if (fleet::world_size() > 1)
    throw_error<ConfigError>(
        "[data_parallel] this process is rank {} of {}; either start one process, or use one device in each and "
        "fleet::distributed_model",
        fleet::rank(), fleet::world_size());
}

// Whether only the failure of another device has made this one fail. A kernel's failure has its reason inside.
bool is_of_another_device(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& known) {
    return comm::is_lost_peer(known);
  } catch (...) {
    return false;
  }
}

}  // namespace

struct DeviceThreads::State {
  std::vector<Device> devices;
  std::vector<std::thread> threads;  // [device]
  std::mutex mutex;
  std::condition_variable changed;
  const std::function<void(size_t)>* task = nullptr;
  uint64_t round = 0;  // of the task
  size_t working = 0;  // threads that have not finished it
  bool stop = false;
  std::vector<std::exception_ptr> errors;  // [device], of the task
  std::string failure;                     // of the first task that failed; empty: none
  std::vector<VariableCopies> copies;      // [device]: of the model's variables; none on the first, which has those
  std::vector<Scalar> weights;             // [device]: of its losses

  void serve(size_t place) {
    Hook weighing;
    if (devices.size() > 1)
      weighing = StepContext::current().before_backward.add(
          [this, place](const Tensor& seed) { return mul(seed, weights[place].tensor(seed.dtype(), seed.device())); });
    uint64_t done = 0;
    while (const std::function<void(size_t)>* next = wait_for_task(done)) {
      try {
        const UseCopies scope(copies[place]);
        (*next)(place);
      } catch (...) {
        errors[place] = std::current_exception();
        Trace::current().clear();  // half a step
        // The others may be waiting for this device.
        StepContext::current().tell_failure(comm::reason_of(errors[place]));
      }
      std::lock_guard lock(mutex);
      if (--working == 0) changed.notify_all();
    }
  }

  // That of the round after `done`, which becomes it; nullptr at the end.
  const std::function<void(size_t)>* wait_for_task(uint64_t& done) {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return stop || round != done; });
    if (stop) return nullptr;
    done = round;
    return task;
  }

  // What each thread has thrown.
  std::vector<std::exception_ptr> run(const std::function<void(size_t)>& body) {
    std::unique_lock lock(mutex);
    errors.assign(devices.size(), nullptr);
    task = &body;
    working = devices.size();
    ++round;
    changed.notify_all();
    changed.wait(lock, [&] { return working == 0; });
    return std::move(errors);
  }
};

DeviceThreads::DeviceThreads(const std::vector<Device>& devices) {
  check_devices(devices);
  state_ = std::make_unique<State>();
  state_->devices = devices;
  state_->copies.resize(devices.size());
  for (size_t i = 0; i < devices.size(); ++i) state_->weights.emplace_back(1);
  const auto on_cpu =
      std::count_if(devices.begin(), devices.end(), [](Device device) { return device.type == DeviceType::cpu; });
  cpu::share_cpu_threads(std::max(1, static_cast<int>(on_cpu)));
  for (size_t i = 0; i < devices.size(); ++i)
    state_->threads.emplace_back([state = state_.get(), i] { state->serve(i); });
  auto groups = comm::local_groups(static_cast<int>(devices.size()));
  run([&](size_t place) { fleet::join(groups[place]); });
}

DeviceThreads::~DeviceThreads() {
  state_->run([](size_t) { fleet::leave(); });  // after a failed step the group is dead, and leaving it says so
  {
    std::lock_guard lock(state_->mutex);
    state_->stop = true;
  }
  state_->changed.notify_all();
  for (std::thread& thread : state_->threads) thread.join();
}

const std::vector<Device>& DeviceThreads::devices() const { return state_->devices; }

void DeviceThreads::copy_variables_of(const nn::Module& model) {
  if (const std::set<Device> parts = devices_of(model); parts.size() > 1)
    throw_error<ConfigError>(
        "[data_parallel] the model's modules are on {} and {}, and each device gets a copy of all of it; leave the "
        "placement out, or start several ranks, each with devices of its own",
        to_string(*parts.begin()), to_string(*parts.rbegin()));
  model.to(state_->devices[0]);
  for (size_t i = 1; i < state_->devices.size(); ++i)
    for (const auto& [name, variable] : model.state_dict()) state_->copies[i].add(variable, state_->devices[i]);
}

void DeviceThreads::for_each_copy(const std::function<void(size_t)>& body) const {
  for (size_t i = 0; i < state_->devices.size(); ++i) {
    const UseCopies scope(state_->copies[i]);
    body(i);
  }
}

void DeviceThreads::run(const std::function<void(size_t)>& body) {
  if (!state_->failure.empty())
    throw_error<CommError>("[data_parallel] an earlier step has failed: {}; make a new DataParallel", state_->failure);
  const std::vector<std::exception_ptr> errors = state_->run(body);
  std::exception_ptr first;
  for (const std::exception_ptr& error : errors)
    if (error && (!first || (is_of_another_device(first) && !is_of_another_device(error)))) first = error;
  if (!first) return;
  state_->failure = comm::reason_of(first);
  std::rethrow_exception(first);
}

void DeviceThreads::weigh_loss(size_t place, double weight) { state_->weights[place].set(weight); }

}  // namespace bonfire::detail
