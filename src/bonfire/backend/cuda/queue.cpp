#include "bonfire/backend/cuda/queue.h"

#include <algorithm>
#include <chrono>

#include "bonfire/base/error.h"

namespace bonfire::cuda {

namespace {

size_t count_collectives(const Program& program) {
  return static_cast<size_t>(std::count_if(program.steps.begin(), program.steps.end(),
                                           [](const ProgramStep& step) { return step.line.has_value(); }));
}

}  // namespace

EventCompletion::EventCompletion(int index, Event event, Submission submission,
                                 std::optional<CollectiveCount> collectives)
    : event_(std::move(event)),
      begins_step_(!submission.continues),
      collectives_(std::move(collectives)),
      submission_(std::move(submission)) {
  device = {DeviceType::cuda, static_cast<int16_t>(index)};
}

void EventCompletion::wait() {
  wait_quietly();
  std::lock_guard lock(mutex_);
  if (failure_) std::rethrow_exception(failure_);
}

void EventCompletion::wait_quietly() noexcept {
  {
    std::lock_guard lock(mutex_);
    if (finished_) return;
  }
  finish(cudaEventSynchronize(event_.get()));
}

bool EventCompletion::done() {
  {
    std::lock_guard lock(mutex_);
    if (finished_) return true;
  }
  cudaError_t status = cudaEventQuery(event_.get());
  if (status == cudaErrorNotReady) return false;
  finish(status);
  return true;
}

void EventCompletion::fail(std::exception_ptr failure) {
  std::lock_guard lock(mutex_);
  failure_ = std::move(failure);
}

void EventCompletion::finish(cudaError_t status) {
  Submission dropped;  // released outside the lock: it may free storages
  std::lock_guard lock(mutex_);
  if (finished_) return;
  finished_ = true;
  if (collectives_) count_collectives(status);
  if (status != cudaSuccess && !failure_) {
    const auto& steps = submission_.program->steps;
    failure_ = std::make_exception_ptr(DeviceError(fmt::format(
        "[{}] a step of {} kernels ({} ... {}) failed on the device: {}; set BONFIRE_CHECK_NUMBERS=1 to find the op",
        to_string(device), steps.size(), steps.empty() ? "" : steps.front().label,
        steps.empty() ? "" : steps.back().label, cudaGetErrorString(status))));
  }
  dropped = std::move(submission_);
}

void EventCompletion::count_collectives(cudaError_t status) {
  const CollectiveSubmission& submission = *collectives_->submission;
  if (!failure_) failure_ = submission.failure;
  if (status != cudaSuccess) tell(submission_.after_failure, cudaGetErrorString(status));
  float milliseconds = 0;
  if (status == cudaSuccess &&
      cudaEventElapsedTime(&milliseconds, collectives_->begin.get(), event_.get()) == cudaSuccess)
    collectives_->computing += std::max(0.0, 1e-3 * static_cast<double>(milliseconds) - submission.waited);
  collectives_->communicating += submission.waited;
}

CudaQueue::CudaQueue(int index) : index_(index), arena_(index) {
  DeviceScope device(index);
  stream_ = make_stream();
}

std::shared_ptr<Completion> CudaQueue::submit(Submission submission) {
  std::lock_guard lock(mutex_);
  DeviceScope device(index_);
  make_room(submission);
  std::optional<CollectiveCount> collectives;
  if (const size_t count = count_collectives(*submission.program); count > 0)
    collectives.emplace(
        CollectiveCount{collectives_.expect(submission, count), make_timing_event(), computing_, communicating_});
  std::exception_ptr failure;
  try {
    collectives_.throw_late_failure(submission);
    wait_for_others(submission);
    if (collectives) check(cudaEventRecord(collectives->begin.get(), stream_.get()), "cudaEventRecord");
    enqueue(submission);
  } catch (const std::exception& error) {
    failure = std::current_exception();
    if (collectives) give_up(submission, collectives->submission, error.what());
  }
  Event event = collectives ? make_timing_event() : make_event();
  check(cudaEventRecord(event.get(), stream_.get()), "cudaEventRecord");
  auto completion =
      std::make_shared<EventCompletion>(index_, std::move(event), std::move(submission), std::move(collectives));
  if (failure) completion->fail(failure);
  in_flight_.push_back(completion);
  return completion;
}

// Of a submission that could not be enqueued as a whole: its collectives will not all be made.
void CudaQueue::give_up(const Submission& submission, const std::shared_ptr<CollectiveSubmission>& collectives,
                        const std::string& why) {
  tell(submission.after_failure, why);  // also ends those that have begun
  cudaStreamSynchronize(stream_.get());
  collectives_.forget(collectives);
}

void CudaQueue::make_room(const Submission& submission) {
  constexpr int64_t kInFlight = 2;  // steps
  auto is_full = [&] {
    return !submission.continues && std::count_if(in_flight_.begin(), in_flight_.end(), [](const auto& completion) {
                                      return completion->begins_step();
                                    }) >= kInFlight;
  };
  while (!in_flight_.empty() && (is_full() || in_flight_.front()->done())) {
    in_flight_.front()->wait_quietly();
    in_flight_.pop_front();
  }
}

void CudaQueue::wait_for_others(const Submission& submission) {
  for (const auto& completion : submission.after) {
    if (auto* other = dynamic_cast<EventCompletion*>(completion.get())) {
      check(cudaStreamWaitEvent(stream_.get(), other->event(), 0), "cudaStreamWaitEvent");
    } else {
      completion->wait();
    }
  }
}

void CudaQueue::enqueue(const Submission& submission) {
  const Program* key = submission.program.get();
  auto found = known_.find(key);
  if (found != known_.end() && found->second.program.expired()) {  // another program had this address
    forget(found->second);
    known_.erase(found);
    found = known_.end();
  }
  if (found == known_.end()) {
    for (auto entry = known_.begin(); entry != known_.end();) {
      bool gone = entry->second.program.expired();
      if (gone) forget(entry->second);
      entry = gone ? known_.erase(entry) : std::next(entry);
    }
    Known& known = known_[key];
    known.program = submission.program;
    known.staged = stage_collectives(submission, collectives_);
    run_directly(known, submission);
    return;
  }
  Known& known = found->second;
  const bool timed = submission.program->times != nullptr;  // somebody asks for the time of each step
  const bool again = !timed && known.replay && known.replay->fits(submission);
  if (!again && !known.staged.empty()) check(cudaStreamSynchronize(stream_.get()), "cudaStreamSynchronize");
  if (timed) {
    run_directly(known, submission);
    return;
  }
  if (!again) {
    known.replay.reset();
    known.replay = std::make_unique<Replay>(submission, known.staged, index_, stream_.get());
  }
  known.replay->submit(submission, stream_.get());
}

// Step by step: the first time, so that libraries load their code and a failing step is named; and to time each.
void CudaQueue::run_directly(Known& known, const Submission& submission) {
  const Program& program = *submission.program;
  std::vector<void*> addresses = submission.addresses;
  if (!submission.scalars.empty()) {
    if (known.scalars == nullptr) {
      known.scalar_bytes = submission.scalars.size();
      known.scalars = memory_of_cuda(index_).allocate(known.scalar_bytes);
    }
    check(cudaMemcpyAsync(known.scalars, submission.scalars.data(), known.scalar_bytes, cudaMemcpyHostToDevice,
                          stream_.get()),
          "cudaMemcpyAsync");
  }
  for (size_t i = 0; i < addresses.size(); ++i)
    if (program.addresses[i].kind == AddressKind::scalars)
      addresses[i] = static_cast<std::byte*>(known.scalars) + program.addresses[i].offset;
  if (program.times != nullptr) {
    run_timed(program, addresses, known.staged);
  } else {
    for (size_t step = 0; step < program.steps.size(); ++step)
      run_step(program, step, addresses, known.staged, stream_.get());
  }
}

// Waits for the end: times are there when the submission is.
void CudaQueue::run_timed(const Program& program, const std::vector<void*>& addresses, const StagedSteps& staged) {
  std::vector<Event> events;  // before each step, and after the last
  auto mark = [&] {
    check(cudaEventRecord(events.emplace_back(make_timing_event()).get(), stream_.get()), "cudaEventRecord");
  };
  mark();
  for (size_t step = 0; step < program.steps.size(); ++step) {
    run_step(program, step, addresses, staged, stream_.get());
    mark();
  }
  check(cudaEventSynchronize(events.back().get()), "cudaEventSynchronize");
  const double end = std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
  auto seconds_between = [&](size_t first, size_t last) {
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, events[first].get(), events[last].get()), "cudaEventElapsedTime");
    return 1e-3 * static_cast<double>(milliseconds);
  };
  std::vector<double>& begins = program.times->begins.emplace_back();
  std::vector<double>& seconds = program.times->seconds.emplace_back();
  for (size_t step = 0; step < program.steps.size(); ++step) {
    begins.push_back(end - seconds_between(step, program.steps.size()));
    seconds.push_back(seconds_between(step, step + 1));
  }
}

void CudaQueue::forget(Known& known) {
  if (known.scalars == nullptr && !known.replay && known.staged.empty()) return;
  cudaStreamSynchronize(stream_.get());
  if (known.scalars != nullptr) memory_of_cuda(index_).deallocate(known.scalars, known.scalar_bytes);
  known.scalars = nullptr;
  known.replay.reset();
  known.staged.clear();
}

void CudaQueue::synchronize() {
  std::deque<std::shared_ptr<EventCompletion>> waiting;
  {
    std::lock_guard lock(mutex_);
    waiting = in_flight_;
  }
  for (auto& completion : waiting) completion->wait_quietly();
}

double CudaQueue::seconds_computing() {
  std::lock_guard lock(mutex_);
  for (const auto& completion : in_flight_) completion->done();
  return computing_;
}

double CudaQueue::seconds_communicating() {
  std::lock_guard lock(mutex_);
  for (const auto& completion : in_flight_) completion->done();
  return communicating_;
}

void* CudaQueue::arena(size_t bytes) {
  std::lock_guard lock(mutex_);
  return arena_.require(bytes);
}

void CudaQueue::run_now(const std::function<void(const Run&)>& body) {
  std::lock_guard lock(mutex_);
  DeviceScope device(index_);
  body({{}, {}, nullptr, nullptr, stream_.get()});
  check(cudaStreamSynchronize(stream_.get()), "cudaStreamSynchronize");
}

CudaQueue& queue_of_cuda(int index) {
  // Never destroyed: submissions may be in flight while the program ends.
  static auto* all = [] {
    auto* queues = new std::vector<std::unique_ptr<CudaQueue>>();
    for (int i = 0; i < device_count(); ++i) queues->push_back(std::make_unique<CudaQueue>(i));
    return queues;
  }();
  return *all->at(static_cast<size_t>(index));
}

}  // namespace bonfire::cuda
