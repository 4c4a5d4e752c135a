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

StagedCollective::StagedCollective(const Program& program, size_t step, bool blocks, CollectiveLines& lines)
    : step_(program.steps[step]), device_(program.device), blocks_(blocks), lines_(lines) {
  for (int position : step_.inputs) operands_.push_back({program.addresses[static_cast<size_t>(position)].bytes});
  for (int position : step_.outputs) operands_.push_back({program.addresses[static_cast<size_t>(position)].bytes});
  for (const auto& [output, input] : step_.in_place)
    if (inputs()[static_cast<size_t>(input)].bytes == outputs()[static_cast<size_t>(output)].bytes)
      inputs()[static_cast<size_t>(input)].stands_at = output;
}

StagedCollective::~StagedCollective() {
  if (own_ != nullptr) cudaFreeHost(own_);
}

// Where each operand is on the host: in the block that is staged as a whole, else in memory of its own.
void StagedCollective::place(std::span<void* const> inputs_there, std::span<void* const> outputs_there) {
  constexpr size_t kAlignment = 64;
  for (size_t i = 0; i < inputs_there.size(); ++i) inputs()[i].device = inputs_there[i];
  for (size_t i = 0; i < outputs_there.size(); ++i) outputs()[i].device = outputs_there[i];
  size_t total = 0;
  std::vector<size_t> offsets;
  for (const Operand& operand : operands_)
    offsets.push_back(std::exchange(total, total + (operand.bytes + kAlignment - 1) / kAlignment * kAlignment));
  for (size_t i = 0; i < operands_.size(); ++i) {
    Operand& operand = operands_[i];
    if (operand.stands_at >= 0) continue;
    std::byte* staged = memory_of_cuda(device_.index).staged_at(operand.device, operand.bytes);
    if (staged == nullptr && own_ == nullptr) own_ = pinned_memory(own_bytes_ = std::max<size_t>(1, total));
    operand.host = staged == nullptr ? own_ + offsets[i] : staged;
  }
  for (Operand& input : inputs())
    if (input.stands_at >= 0) input.host = outputs()[static_cast<size_t>(input.stands_at)].host;
}

std::vector<StagedCollective::Copy> StagedCollective::copies(std::span<Operand> operands) const {
  constexpr std::ptrdiff_t kGap = 64;  // bytes: variables side by side are aligned so
  std::vector<Copy> list;
  for (const Operand& operand : operands)
    if (operand.bytes > 0)
      list.push_back({static_cast<std::byte*>(operand.device), static_cast<std::byte*>(operand.host), operand.bytes,
                      memory_of_cuda(device_.index).staged_at(operand.device, operand.bytes) == operand.host});
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

void StagedCollective::enqueue_begin(std::span<void* const> inputs_there, std::span<void* const> outputs_there,
                                     cudaStream_t stream) {
  place(inputs_there, outputs_there);
  for (const Copy& copy : copies(inputs()))
    check(cudaMemcpyAsync(copy.host, copy.device, copy.bytes, cudaMemcpyDeviceToHost, stream), "cudaMemcpyAsync");
  auto tell = [](void* self) {
    auto& collective = *static_cast<StagedCollective*>(self);
    collective.lines_.begin(collective);
  };
  check(cudaLaunchHostFunc(stream, tell, this), "cudaLaunchHostFunc");
}

void StagedCollective::enqueue_end(std::span<void* const>, cudaStream_t stream) {
  done_.enqueue_wait(stream);
  for (const Copy& copy : copies(outputs()))
    check(cudaMemcpyAsync(copy.device, copy.host, copy.bytes, cudaMemcpyHostToDevice, stream), "cudaMemcpyAsync");
}

bool StagedCollective::fits() const {
  return std::all_of(operands_.begin(), operands_.end(), [&](const Operand& operand) {
    if (operand.stands_at >= 0) return true;  // where its output is
    std::byte* staged = memory_of_cuda(device_.index).staged_at(operand.device, operand.bytes);
    const bool own = own_ != nullptr && operand.host >= own_ && operand.host < own_ + own_bytes_;
    return staged == operand.host || (staged == nullptr && own);
  });
}

void StagedCollective::run(const std::shared_ptr<CollectiveSubmission>& submission, Background& background) {
  const std::string where = step_.label + " failed on " + to_string(device_);
  StepOutbox outbox(background, submission->groups, where, submission->after_failure);
  std::vector<void*> from, to;
  for (const Operand& input : inputs()) from.push_back(input.host);
  for (const Operand& output : outputs()) to.push_back(output.host);
  try {
    step_.kernel->run({from, to, nullptr, nullptr, nullptr, submission->groups.get(), &outbox});
  } catch (const Error& error) {
    std::throw_with_nested(DeviceError(where + ": " + error.what()));
  }
}

StagedSteps stage_collectives(const Submission& submission, CollectiveLines& lines) {
  const Program& program = *submission.program;
  StagedSteps staged;
  std::vector<Accesses> accesses;
  for (const ProgramStep& step : program.steps) accesses.push_back(accesses_of(program, step, submission.addresses));
  const std::vector<std::vector<int>> waits = dependencies(accesses);
  // After the last one, and before those that need its result, nothing is left to compute.
  std::vector<bool> needed(program.steps.size());  // by a later one
  bool last = true;
  for (size_t i = program.steps.size(); i-- > 0;) {
    const bool in_line = program.steps[i].line.has_value();
    if (in_line || needed[i])
      for (int earlier : waits[i]) needed[static_cast<size_t>(earlier)] = true;
    if (!in_line) continue;
    staged.resize(std::max(staged.size(), program.steps.size()));
    staged[i] = std::make_unique<StagedCollective>(program, i, last || needed[i], lines);
    last = false;
  }
  return staged;
}

std::shared_ptr<CollectiveSubmission> CollectiveLines::expect(const Submission& submission, size_t steps) {
  auto expected = std::make_shared<CollectiveSubmission>();
  expected->left = steps;
  expected->after_failure = submission.after_failure;
  expected->groups = submission.groups;
  std::lock_guard lock(mutex_);
  submissions_.push_back(expected);
  return expected;
}

void CollectiveLines::forget(const std::shared_ptr<CollectiveSubmission>& submission) {
  std::lock_guard lock(mutex_);
  std::erase(submissions_, submission);
}

void CollectiveLines::begin(StagedCollective& collective) {
  std::shared_ptr<CollectiveSubmission> submission;
  {
    std::lock_guard lock(mutex_);
    submission = submissions_.front();
    if (--submission->left == 0) submissions_.pop_front();
  }
  auto work = [this, submission, &collective, since = seconds_now()] {
    std::exception_ptr failure;
    try {
      collective.run(submission, background_);
    } catch (const std::exception& error) {
      failure = std::current_exception();
      tell(submission->after_failure, error.what());
    }
    {
      std::lock_guard lock(submission->mutex);
      if (!submission->failure) submission->failure = std::move(failure);
      if (collective.blocks_) submission->waited += seconds_now() - since;
    }
    collective.done_.set();  // the device goes on after a failure too: whoever waits for the submission is told
  };
  background_.start(*collective.step_.line, {}, std::move(work), collective.step_.agrees);
}

void CollectiveLines::throw_late_failure(const Submission& submission) {
  if (std::exception_ptr late = background_.take_late_failure(submission.groups)) std::rethrow_exception(late);
}

}  // namespace bonfire::cuda
