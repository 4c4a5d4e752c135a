#include "bonfire/parallel/data_parallel.h"

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <optional>
#include <set>
#include <thread>

#include "bonfire/autodiff/backward.h"
#include "bonfire/backend/cpu/threads.h"
#include "bonfire/base/error.h"
#include "bonfire/comm/local/local_group.h"
#include "bonfire/comm/lost_peer.h"
#include "bonfire/data/sampler.h"
#include "bonfire/graph/engine.h"
#include "bonfire/graph/variable_copies.h"
#include "bonfire/kernel/queue.h"
#include "bonfire/ops/elementwise.h"
#include "bonfire/ops/indexing.h"
#include "bonfire/ops/shape_ops.h"
#include "bonfire/parallel/balance.h"
#include "bonfire/parallel/sampler.h"

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

// A batch whose rows any thread can read: in the memory of the value itself where that is the host's.
class HostRows {
 public:
  explicit HostRows(const Tensor& batch) : batch_(batch), rows_(batch.size(0)) {
    const NodeOutput& output = batch.value().node->outputs[batch.value().index];
    if (output.buffer && batch.device().type == DeviceType::cpu) {
      if (output.ready) output.ready->wait();
      data_ = static_cast<const std::byte*>(output.buffer.data());
      return;
    }
    copy_.resize(batch.spec().bytes());
    batch.copy_to_host(copy_);
    data_ = copy_.data();
  }

  // The rows of one of the devices; of one that has none the first row, as a stand-in.
  Tensor deal(const data::Share& share, Device device) const {
    TensorSpec spec = batch_.spec();
    const size_t bytes = spec.bytes() / static_cast<size_t>(rows_);  // of a row
    spec.shape[0] = std::max<int64_t>(1, share.own);
    spec.device = device;
    Buffer buffer{std::make_shared<Storage>(device, std::max<size_t>(1, spec.bytes()))};
    std::vector<std::byte> together(device.type == DeviceType::cpu ? 0 : spec.bytes());  // to copy them at once
    auto* target = together.empty() ? static_cast<std::byte*>(buffer.data()) : together.data();
    for (int64_t row = 0; row < spec.shape[0]; ++row) {
      const auto place = static_cast<size_t>(share.own == 0 ? 0 : share.place(row));
      std::memcpy(target + static_cast<size_t>(row) * bytes, data_ + place * bytes, bytes);
    }
    if (!together.empty()) memory_of(device).copy_from_host(buffer.data(), together.data(), together.size());
    return Tensor::from_buffer(std::move(buffer), spec);
  }

 private:
  Tensor batch_;  // keeps the memory
  int64_t rows_;
  std::vector<std::byte> copy_;
  const std::byte* data_;
};

int64_t rows_of(std::span<const Tensor> batch) {
  for (const Tensor& tensor : batch) {
    if (!tensor.defined()) throw_error<ShapeError>("[data_parallel] a tensor of the batch is undefined");
    if (tensor.rank() == 0 || tensor.size(0) == 0)
      throw_error<ShapeError>(
          "[data_parallel] a tensor of the batch is {}: it has no samples to deal out; its first axis must be the "
          "samples",
          to_string(tensor.spec()));
    if (tensor.size(0) != batch[0].size(0))
      throw_error<ShapeError>("[data_parallel] the tensors of the batch have {} and {} samples; all need as many",
                              batch[0].size(0), tensor.size(0));
  }
  return batch[0].size(0);
}

// Launches what is pending, and names the results without their histories: other threads may use them then.
std::vector<Tensor> launched(std::vector<Tensor> results) {
  commit();
  for (Tensor& result : results) {
    if (!result.defined()) throw_error<GraphError>("[data_parallel] the step returned an undefined tensor");
    const NodeOutput& output = result.value().node->outputs[result.value().index];
    if (!output.buffer)
      throw_error<GraphError>(
          "[data_parallel] the step returned a variable ({}); return what it computes, and read variables from "
          "copies()",
          to_string(result.spec()));
    Tensor plain = Tensor::from_buffer(output.buffer, output.spec);
    plain.value().node->outputs[0].ready = output.ready;
    result = std::move(plain);
  }
  return results;
}

// One of the results of all devices.
class Parts {
 public:
  Parts(std::vector<Tensor> parts, std::span<const data::Share> shares) : parts_(std::move(parts)), shares_(shares) {}

  Tensor whole() const {
    if (parts_[0].rank() == 0) return is_floating(parts_[0].dtype()) ? mean() : total();
    for (size_t i = 0; i < parts_.size(); ++i)
      if (const Tensor& part = parts_[i]; part.size(0) != std::max<int64_t>(1, own(i)))
        throw_error<ShapeError>(
            "[data_parallel] the step returned {}, of {} samples; return one number, or a row for each sample",
            to_string(part.spec()), std::max<int64_t>(1, own(i)));
    return rows();
  }

 private:
  int64_t own(size_t i) const { return shares_[i].own; }
  Tensor here(size_t i) const { return parts_[i].to(parts_[0].device()); }

  Tensor mean() const {
    Tensor sum;
    for (size_t i = 0; i < parts_.size(); ++i)
      if (own(i) > 0) {
        Tensor part = here(i) * (static_cast<double>(own(i)) / static_cast<double>(samples_));
        sum = sum.defined() ? sum + part : part;
      }
    return sum;
  }

  Tensor total() const {
    Tensor sum;
    for (size_t i = 0; i < parts_.size(); ++i)
      if (own(i) > 0) sum = sum.defined() ? sum + here(i) : here(i);
    return sum;
  }

  // Side by side the rows of device 0 come first, then those of device 1, …
  Tensor rows() const {
    std::vector<Tensor> all;
    std::vector<int64_t> order(static_cast<size_t>(samples_));  // [sample]: its place in these
    int64_t rows = 0;
    for (size_t i = 0; i < parts_.size(); ++i) {
      if (own(i) > 0) all.push_back(here(i));
      for (int64_t row = 0; row < own(i); ++row) order[static_cast<size_t>(shares_[i].place(row))] = rows++;
    }
    return index_select(concat(all, 0), 0, Tensor::from<int64_t>(order, {samples_}, parts_[0].device()));
  }

  std::vector<Tensor> parts_;  // [device]
  std::span<const data::Share> shares_;
  int64_t samples_ = shares_[0].all;  // of the whole batch
};

// How fast the devices are, and what each has of a batch by that.
class Pace {
 public:
  explicit Pace(size_t devices) : since_(devices), rows_(devices) {}

  std::span<const int64_t> shares() const {  // empty: all have as much
    return balance_ ? std::span<const int64_t>(balance_->shares()) : std::span<const int64_t>();
  }

  // To be asked before each step that trains. True: it is the last of a window, and note() wants to know its end.
  bool ends_window(std::span<const data::Share> shares) {
    const auto devices = static_cast<int64_t>(rows_.size());
    if (!balance_ && shares[0].all < 2 * devices) return false;  // too few samples to share in another way
    if (!balance_) balance_.emplace(devices, shares[0].all / devices);
    for (size_t i = 0; i < rows_.size(); ++i) rows_[i] += shares[i].own;
    mark_ = balance_->after_step();
    return mark_ != Balance::Mark::none;
  }

  // Seconds that each device has computed until the end of that step.
  void note(const std::vector<double>& seconds) {
    std::vector<int64_t> nanoseconds;
    for (size_t i = 0; i < seconds.size(); ++i) {
      const auto rows = static_cast<double>(std::max<int64_t>(1, rows_[i]));
      nanoseconds.push_back(static_cast<int64_t>(1e9 * (seconds[i] - since_[i]) / rows));
    }
    since_ = seconds;
    rows_.assign(rows_.size(), 0);
    if (mark_ == Balance::Mark::end) balance_->note(nanoseconds);
  }

 private:
  std::optional<Balance> balance_;  // since the first batch
  Balance::Mark mark_ = Balance::Mark::none;
  std::vector<double> since_;  // [device] seconds at the window's begin
  std::vector<int64_t> rows_;  // [device] since then
};

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
  std::vector<Scalar> weights;             // [device]: of the losses of its samples; compiled steps know them
  std::optional<Pace> pace;                // with balance_by_speed()

  void serve(size_t place) {
    Hook weighing;
    if (devices.size() > 1)
      weighing = StepContext::current().before_backward.add(
          [this, place](const Tensor& seed) { return mul(seed, weights[place].tensor(seed.dtype(), seed.device())); });
    for (uint64_t done = 0;;) {
      const std::function<void(size_t)>* own;
      {
        std::unique_lock lock(mutex);
        changed.wait(lock, [&] { return stop || round != done; });
        if (stop) return;
        done = round;
        own = task;
      }
      try {
        const UseCopies scope(copies[place]);
        (*own)(place);
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

  std::vector<data::Share> deal(int64_t samples) const {  // [device]
    const auto world = static_cast<int64_t>(devices.size());
    const std::span<const int64_t> by_speed = pace ? pace->shares() : std::span<const int64_t>();
    std::vector<data::Share> shares;
    for (int64_t i = 0; i < world; ++i) shares.push_back(data::DistributedSampler{i, world}.share(samples, by_speed));
    return shares;
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
  const auto on_cpu =
      std::count_if(devices.begin(), devices.end(), [](Device device) { return device.type == DeviceType::cpu; });
  cpu::share_cpu_threads(std::max(1, static_cast<int>(on_cpu)));
  for (size_t i = 0; i < devices.size(); ++i)
    state_->threads.emplace_back([state = state_.get(), i] { state->serve(i); });
  auto groups = comm::local_groups(static_cast<int>(devices.size()));
  for (size_t i = 0; i < devices.size(); ++i) state_->weights.emplace_back(1);
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

void DeviceThreads::copy_variables_of(const nn::Module& model) {
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

void DeviceThreads::balance_by_speed() {
  if (!state_->pace && state_->devices.size() > 1) state_->pace.emplace(state_->devices.size());
}

std::vector<Device> all_gpus_or_cpu() {
  std::vector<Device> all = devices();
  if (all.size() > 1) std::erase_if(all, [](Device device) { return device.type == DeviceType::cpu; });
  return all;
}

std::vector<int64_t> DeviceThreads::shares(int64_t samples) const {
  std::vector<int64_t> own;
  for (const data::Share& share : state_->deal(samples)) own.push_back(share.own);
  return own;
}

std::vector<Tensor> DeviceThreads::step(const Body& body, std::span<const Tensor> batch) {
  const int64_t samples = rows_of(batch);
  commit();  // what was traced before comes first
  const std::vector<HostRows> rows(batch.begin(), batch.end());
  const std::vector<data::Share> shares = state_->deal(samples);
  const size_t world = shares.size();
  const RandomState random = StepContext::current().random;
  const bool recording = grad_enabled();
  const bool timed = recording && state_->pace && state_->pace->ends_window(shares);
  std::vector<std::vector<Tensor>> results(world);
  std::vector<uint64_t> steps(world);
  std::vector<double> seconds(world);
  run([&](size_t place) {
    const data::Share& share = shares[place];
    const Device device = state_->devices[place];
    StepContext::current().random.seed = random.seed;  // as if the caller's thread went on
    StepContext::current().random.step = random.step;
    set_grad_enabled(recording);
    state_->weights[place].set(share.weight());
    std::vector<Tensor> own;
    for (const HostRows& one : rows) own.push_back(one.deal(share, device));
    const fleet::StandIns scope(share.own == 0);
    const fleet::RowsOf own_rows(share);
    results[place] = launched(body(place, own));
    steps[place] = StepContext::current().random.step;
    if (!timed) return;
    synchronize();
    seconds[place] = queue_of(device).seconds_computing();
  });
  if (timed) state_->pace->note(seconds);
  StepContext::current().random.step = steps[0];
  if (world == 1) return std::move(results[0]);

  Trace trace;
  TraceScope scope(trace);
  NoGrad no_grad;
  std::vector<Tensor> whole;
  for (size_t i = 0; i < results[0].size(); ++i) {
    std::vector<Tensor> parts;
    for (std::vector<Tensor>& list : results) {
      if (list.size() != results[0].size())
        throw_error<GraphError>("[data_parallel] the step returned {} tensors on one device and {} on another",
                                results[0].size(), list.size());
      parts.push_back(std::move(list[i]));
    }
    whole.push_back(Parts(std::move(parts), shares).whole());
  }
  commit();
  StepContext::current().random.step = steps[0];  // putting together is no step of the program's
  return whole;
}

}  // namespace bonfire::detail
