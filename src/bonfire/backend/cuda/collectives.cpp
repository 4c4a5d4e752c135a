#include "bonfire/backend/cuda/collectives.h"

#include <algorithm>
#include <chrono>

#include "bonfire/backend/cuda/memory.h"
#include "bonfire/backend/cuda/replay.h"
#include "bonfire/base/error.h"

namespace bonfire::cuda {

namespace {

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::byte* pinned_memory(size_t bytes) {
  // While a stream is captured its thread may call nothing that could wait for it; this does not.
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  check(cudaThreadExchangeStreamCaptureMode(&mode), "cudaThreadExchangeStreamCaptureMode");
  void* memory = nullptr;
  const cudaError_t status = cudaHostAlloc(&memory, bytes, cudaHostAllocPortable);
  check(cudaThreadExchangeStreamCaptureMode(&mode), "cudaThreadExchangeStreamCaptureMode");
  check(status, "cudaHostAlloc");
  return static_cast<std::byte*>(memory);
}

}  // namespace

StagedCollective::StagedCollective(const Program& program, size_t step, bool blocks, CollectiveThread& thread)
    : step_(program.steps[step]), device_(program.device), blocks_(blocks), thread_(thread) {
  for (int position : step_.outputs) bytes_.push_back(program.addresses[static_cast<size_t>(position)].bytes);
}

StagedCollective::~StagedCollective() {
  if (own_ != nullptr) cudaFreeHost(own_);
}

std::vector<std::byte*> StagedCollective::places_for(std::span<void* const> outputs) {
  constexpr size_t kAlignment = 64;
  std::vector<size_t> offsets;
  size_t total = 0;
  for (size_t bytes : bytes_)
    offsets.push_back(std::exchange(total, total + (bytes + kAlignment - 1) / kAlignment * kAlignment));
  std::vector<std::byte*> places;
  for (size_t i = 0; i < bytes_.size(); ++i) {
    std::byte* place = memory_of_cuda(device_.index).staged_at(outputs[i], bytes_[i]);
    if (place == nullptr && own_ == nullptr) own_ = pinned_memory(own_bytes_ = std::max<size_t>(1, total));
    places.push_back(place == nullptr ? own_ + offsets[i] : place);
  }
  return places;
}

std::vector<StagedCollective::Copy> StagedCollective::copies(std::span<void* const> addresses) const {
  constexpr std::ptrdiff_t kGap = 64;  // bytes: variables side by side are aligned so
  std::vector<Copy> list;
  for (size_t i = 0; i < bytes_.size(); ++i)
    if (bytes_[i] > 0)
      list.push_back({static_cast<std::byte*>(addresses[i]), static_cast<std::byte*>(operands_[i]), bytes_[i],
                      memory_of_cuda(device_.index).staged_at(addresses[i], bytes_[i]) == operands_[i]});
  std::sort(list.begin(), list.end(), [](const Copy& a, const Copy& b) { return a.host < b.host; });
  std::vector<Copy> merged;
  for (const Copy& next : list) {
    Copy* last = merged.empty() ? nullptr : &merged.back();
    if (last != nullptr && last->shared && next.shared && next.host - last->host == next.device - last->device &&
        next.host - (last->host + last->bytes) < kGap) {
      last->bytes = static_cast<size_t>(next.host - last->host) + next.bytes;
    } else {
      merged.push_back(next);
    }
  }
  return merged;
}

void StagedCollective::enqueue_begin(std::span<void* const> inputs, std::span<void* const> outputs,
                                     cudaStream_t stream) {
  const std::vector<std::byte*> places = places_for(outputs);
  if (!std::equal(places.begin(), places.end(), operands_.begin(), operands_.end()))
    operands_.assign(places.begin(), places.end());
  outputs_.assign(outputs.begin(), outputs.end());
  for (const Copy& copy : copies(inputs))
    check(cudaMemcpyAsync(copy.host, copy.device, copy.bytes, cudaMemcpyDeviceToHost, stream), "cudaMemcpyAsync");
  auto tell = [](void* self) {
    auto& collective = *static_cast<StagedCollective*>(self);
    collective.thread_.begin(collective);
  };
  check(cudaLaunchHostFunc(stream, tell, this), "cudaLaunchHostFunc");
}

void StagedCollective::enqueue_end(std::span<void* const> outputs, cudaStream_t stream) {
  done_.enqueue_wait(stream);
  for (const Copy& copy : copies(outputs))
    check(cudaMemcpyAsync(copy.device, copy.host, copy.bytes, cudaMemcpyHostToDevice, stream), "cudaMemcpyAsync");
}

bool StagedCollective::fits() const {
  for (size_t i = 0; i < outputs_.size(); ++i) {
    std::byte* place = memory_of_cuda(device_.index).staged_at(outputs_[i], bytes_[i]);
    const bool own = own_ != nullptr && operands_[i] >= own_ && operands_[i] < own_ + own_bytes_;
    if (place != operands_[i] && !(place == nullptr && own)) return false;
  }
  return true;
}

void StagedCollective::run() const {
  try {
    step_.kernel->run({operands_, operands_, nullptr, nullptr, nullptr});
  } catch (const Error& error) {
    std::throw_with_nested(DeviceError(step_.label + " failed on " + to_string(device_) + ": " + error.what()));
  }
}

StagedSteps stage_collectives(const Launch& launch, CollectiveThread& thread) {
  const Program& program = *launch.program;
  StagedSteps staged;
  std::vector<Accesses> accesses;
  for (const ProgramStep& step : program.steps) accesses.push_back(accesses_of(program, step, launch.addresses));
  const std::vector<std::vector<int>> waits = dependencies(accesses);
  // Behind the last one, and before those that need its result, nothing is left to compute.
  std::vector<bool> needed(program.steps.size());  // by a later collective
  bool last = true;
  for (size_t i = program.steps.size(); i-- > 0;) {
    const bool collective = program.steps[i].collective;
    if (collective || needed[i])
      for (int earlier : waits[i]) needed[static_cast<size_t>(earlier)] = true;
    if (!collective) continue;
    staged.resize(std::max(staged.size(), program.steps.size()));
    staged[i] = std::make_unique<StagedCollective>(program, i, last || needed[i], thread);
    last = false;
  }
  return staged;
}

CollectiveThread::~CollectiveThread() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

std::shared_ptr<CollectiveLaunch> CollectiveThread::expect(const Launch& launch, size_t collectives) {
  auto expected = std::make_shared<CollectiveLaunch>();
  expected->left = collectives;
  expected->after_failure = launch.after_failure;
  std::lock_guard lock(mutex_);
  launches_.push_back(expected);
  if (!thread_.joinable()) thread_ = std::thread([this] { serve(); });
  return expected;
}

void CollectiveThread::forget(const std::shared_ptr<CollectiveLaunch>& launch) {
  std::lock_guard lock(mutex_);
  std::erase(launches_, launch);
}

void CollectiveThread::begin(StagedCollective& collective) {
  {
    std::lock_guard lock(mutex_);
    begun_.push_back({&collective, seconds_now()});
  }
  changed_.notify_all();
}

void CollectiveThread::serve() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return stop_ || !begun_.empty(); });
    if (stop_) return;
    const Begun next = begun_.front();
    begun_.pop_front();
    const std::shared_ptr<CollectiveLaunch> launch = launches_.front();
    lock.unlock();
    try {
      next.collective->run();
    } catch (const std::exception& error) {
      if (!launch->failure) {
        launch->failure = std::current_exception();
        tell(launch->after_failure, error.what());
      }
    }
    if (next.collective->blocks_) launch->waited += seconds_now() - next.since;
    lock.lock();
    if (--launch->left == 0) launches_.pop_front();
    next.collective->done_.set();  // the device goes on after a failure too: whoever waits for the launch is told
  }
}

}  // namespace bonfire::cuda
