// CPU devices: cpu:0, cpu:1, … each with its own worker thread (the queue), threads inside kernels, and arena.

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <deque>
#include <mutex>
#include <thread>

#include "bonfire/backend/cpu/device/threads.h"
#include "bonfire/base/error.h"
#include "bonfire/base/inline_vector.h"
#include "bonfire/base/machine.h"
#include "bonfire/graph/host_completion.h"
#include "bonfire/kernel/background.h"
#include "bonfire/kernel/queue.h"

namespace bonfire::cpu {

namespace {

constexpr int kMostDevices = 16;
constexpr size_t kAlignment = 64;
constexpr size_t kArenaReserve = size_t{1} << 38;  // address space, not memory
constexpr size_t kLargePage = size_t{2} << 20;     // bytes, of x86-64 and of aarch64 with small pages of 4 KiB
constexpr int kMostInFlight = 2;

size_t round_up(size_t bytes, size_t multiple) { return (bytes + multiple - 1) / multiple * multiple; }

// Asks for large pages where whole ones fit: matrices are read across their rows, and each row is often a page of its
// own. Only advice: systems without them go on with small ones. `data` stands at a multiple of kLargePage.
void ask_for_large_pages(void* data, size_t bytes) {
  if (bytes >= kLargePage) madvise(data, bytes / kLargePage * kLargePage, MADV_HUGEPAGE);
}

[[noreturn]] void fail_memory(const char* what, size_t bytes) {
  constexpr double kGigabyte = 1e9;
  throw_error<DeviceError>(
      "[cpu] no memory for {} of {:.3f} GB, this machine has {:.3f} GB; a smaller batch_size or image_size needs less",
      what, static_cast<double>(bytes) / kGigabyte, static_cast<double>(base::memory_bytes()) / kGigabyte);
}

class CpuMemory final : public DeviceMemory {
 public:
  void* allocate(size_t bytes) override {
    if (bytes > base::memory_bytes()) fail_memory("a tensor", bytes);
    const size_t alignment = bytes >= kLargePage ? kLargePage : kAlignment;
    void* data = std::aligned_alloc(alignment, round_up(std::max<size_t>(bytes, 1), alignment));
    if (data == nullptr) fail_memory("a tensor", bytes);
    ask_for_large_pages(data, bytes);
    return data;
  }
  void deallocate(void* data, size_t) noexcept override { std::free(data); }
  void copy_from_host(void* target, const void* source, size_t bytes) override {
    if (bytes > 0) std::memcpy(target, source, bytes);  // an empty tensor may have no address
  }
  void copy_to_host(void* target, const void* source, size_t bytes) override {
    if (bytes > 0) std::memcpy(target, source, bytes);  // an empty tensor may have no address
  }
  void fill_zero(void* target, size_t bytes) override {
    if (bytes > 0) std::memset(target, 0, bytes);
  }
  void* allocate_staged(void* host, size_t) override { return host; }
  void deallocate_staged(void*, size_t) noexcept override {}
};

// Seconds on a clock that counts processor time of this thread where it works alone, which a busy machine does not
// disturb, and real time elsewhere.
double seconds_now(bool alone) {
  timespec time{};
  clock_gettime(alone ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

std::atomic<int> threads_setting{0}, ops_setting{0};
std::atomic<int> threads_in_use{0};  // of the devices that exist: all have as many, and workspaces are made for them

void require_possible(const char* what, int64_t number) {
  if (number < 1 || number > base::most_tasks())
    throw_error<ConfigError>("[cpu] {} is {}, expected 1 to {} on this machine", what, number, base::most_tasks());
}

// 0: nothing is said.
int number_from(const char* variable) {
  const char* text = std::getenv(variable);
  if (text == nullptr || *text == '\0') return 0;
  char* end = nullptr;
  const int64_t number = std::strtoll(text, &end, 10);
  if (*end != '\0') throw_error<ConfigError>("[cpu] {} is '{}', expected a whole number", variable, text);
  require_possible(variable, number);
  return static_cast<int>(number);
}

class CpuQueue final : public Queue {
 public:
  explicit CpuQueue(int index)
      : device_{DeviceType::cpu, static_cast<int16_t>(index)}, threads_(cpu_threads()), in_flight_(ops_in_flight()) {
    threads_in_use = threads_.size();
    worker_ = std::thread([this] { serve(); });
  }
  ~CpuQueue() override {
    {
      std::lock_guard lock(mutex_);
      stop_ = true;
    }
    changed_.notify_all();
    worker_.join();
    if (reserved_ != nullptr) munmap(reserved_, reserved_bytes_);
  }

  std::shared_ptr<Completion> submit(Submission submission) override {
    auto completion = std::make_shared<HostCompletion>(device_);
    {
      std::unique_lock lock(mutex_);
      if (!submission.continues) changed_.wait(lock, [&] { return steps_queued() + (busy_ ? 1 : 0) < kMostInFlight; });
      jobs_.push_back({std::move(submission), completion, {}});
    }
    changed_.notify_all();
    return completion;
  }

  void synchronize() override {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return jobs_.empty() && !busy_; });
  }

  uint64_t memory_bytes() const override { return base::memory_bytes(); }

  void* arena(size_t bytes) override {
    if (bytes > base::memory_bytes()) fail_memory("the temporaries of a step", bytes);
    std::lock_guard lock(arena_mutex_);
    if (reserved_ == nullptr) reserve_arena(bytes);
    if (bytes > arena_bytes_) {
      if (bytes > reserved_bytes_ - kLargePage || mprotect(arena_, bytes, PROT_READ | PROT_WRITE) != 0)
        fail_memory("the temporaries of a step", bytes);
      ask_for_large_pages(arena_, bytes);
      arena_bytes_ = bytes;
    }
    return arena_;
  }

  void release_scratch(size_t keep) override {
    {
      std::lock_guard lock(mutex_);
      jobs_.push_back({{}, std::make_shared<HostCompletion>(device_), [this, keep](const Run&) { empty_arena(keep); }});
    }
    changed_.notify_all();
  }

  int steps_in_flight() const override { return in_flight_; }

  double seconds_computing() override {
    std::lock_guard lock(mutex_);
    return seconds_.computing;
  }

  double seconds_communicating() override {
    std::lock_guard lock(mutex_);
    return seconds_.communicating;
  }

  void run_now(const std::function<void(const Run&)>& body) override {
    auto completion = std::make_shared<HostCompletion>(device_);
    {
      std::lock_guard lock(mutex_);
      jobs_.push_back({{}, completion, body});
    }
    changed_.notify_all();
    completion->wait();
  }

 private:
  struct Seconds {
    double computing = 0, communicating = 0;
  };

  struct Job {
    Submission submission;
    std::shared_ptr<HostCompletion> completion;
    std::function<void(const Run&)> body;
  };

  size_t steps_queued() const {
    return static_cast<size_t>(
        std::count_if(jobs_.begin(), jobs_.end(), [](const Job& job) { return !job.submission.continues; }));
  }

  void serve() {
    while (true) {
      Job job;
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return stop_ || !jobs_.empty(); });
        if (jobs_.empty()) return;
        job = std::move(jobs_.front());
        jobs_.pop_front();
        busy_ = true;
      }
      std::exception_ptr error;
      Seconds taken;
      try {
        if (job.body) {
          job.body(Run{{}, {}, nullptr, &threads_, nullptr});
        } else {
          taken = run(job.submission);
        }
      } catch (...) {
        error = std::current_exception();
      }
      auto completion = std::move(job.completion);
      job = {};  // storages go before anyone is told
      {
        std::lock_guard lock(mutex_);
        busy_ = false;
        seconds_.computing += taken.computing;
        seconds_.communicating += taken.communicating;
      }
      completion->finish(std::move(error));
      changed_.notify_all();
    }
  }

  // What fails is told first: a collective in the background may be waiting for peers who wait for this rank.
  Seconds run(Submission& submission) {
    try {
      if (std::exception_ptr late = background_.take_late_failure(submission.groups)) std::rethrow_exception(late);
      return run_program(submission);
    } catch (const std::exception& error) {
      tell(submission.after_failure, error.what());
      background_.finish_after_failure();
      throw;
    }
  }

  Seconds run_program(Submission& submission) {
    for (const auto& earlier : submission.after) earlier->wait();
    const Program& program = *submission.program;
    for (size_t i = 0; i < program.addresses.size(); ++i)
      if (program.addresses[i].kind == AddressKind::scalars)
        submission.addresses[i] = submission.scalars.data() + program.addresses[i].offset;
    StepTimes* times = program.times.get();
    if (times != nullptr) {
      times->begins.emplace_back(program.steps.size());
      times->seconds.emplace_back(program.steps.size());
    }
    return run_steps(submission, times);
  }

  Seconds run_steps(const Submission& submission, StepTimes* times) {
    const Program& program = *submission.program;
    const double begin = seconds_now(false);
    double waiting = 0;  // seconds, for what is beside the queue
    auto wait = [&](const auto& body) {
      const double since = seconds_now(false);
      body();
      waiting += seconds_now(false) - since;
    };
    for (size_t first = 0; first < program.steps.size();) {
      const std::optional<Line>& line = program.steps[first].line;
      const size_t count = line ? 1 : independent_steps(program, submission.addresses, first);
      if (line || !background_.idle()) {
        wait([&] {
          for (size_t i = first; i < first + count; ++i)
            background_.wait_for(accesses_of(program, program.steps[i], submission.addresses));
        });
      }
      if (line) {
        background_.start(
            *line, accesses_of(program, program.steps[first], submission.addresses),
            [this, &submission, first, times] { run_step(submission, first, times); }, program.steps[first].agrees);
      } else if (count == 1) {
        run_step(submission, first, times);
      } else {
        threads_.run(static_cast<int64_t>(count),
                     [&](int64_t i) { run_step(submission, first + static_cast<size_t>(i), times); });
      }
      first += count;
    }
    wait([&] { background_.wait_for_all(); });
    return {.computing = seconds_now(false) - begin - waiting, .communicating = waiting};
  }

  // Address space only; less than wanted where the process may not have so much (ulimit -v, valgrind).
  void reserve_arena(size_t bytes) {
    for (size_t reserve = kArenaReserve; reserve >= bytes + kLargePage; reserve /= 2) {
      void* place = mmap(nullptr, reserve, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      if (place == MAP_FAILED) continue;
      reserved_ = place;
      reserved_bytes_ = reserve;
      arena_ = reinterpret_cast<void*>(round_up(reinterpret_cast<uintptr_t>(place), kLargePage));
      return;
    }
    fail_memory("the temporaries of a step", bytes);
  }

  // Between two submissions nothing in the arena is needed: pages go, the addresses stay.
  void empty_arena(size_t keep) {
    std::lock_guard lock(arena_mutex_);
    const size_t from = round_up(keep, kLargePage);
    if (from < arena_bytes_) madvise(static_cast<std::byte*>(arena_) + from, arena_bytes_ - from, MADV_DONTNEED);
  }

  // How many steps from `first` on can run at the same time.
  size_t independent_steps(const Program& program, std::span<void* const> addresses, size_t first) const {
    if (in_flight_ == 1) return 1;
    std::vector<Accesses> group;
    for (size_t i = first; i < std::min(program.steps.size(), first + static_cast<size_t>(in_flight_)); ++i) {
      if (program.steps[i].line) break;
      Accesses next = accesses_of(program, program.steps[i], addresses);
      auto waits = [&](const Accesses& earlier) { return must_wait(next, earlier); };
      if (std::any_of(group.begin(), group.end(), waits)) break;
      group.push_back(std::move(next));
    }
    return group.size();
  }

  void run_step(const Submission& submission, size_t index, StepTimes* times) {
    const ProgramStep& step = submission.program->steps[index];
    base::InlineVector<void*, 16> operands;
    for (int position : step.inputs) operands.push_back(submission.addresses[position]);
    for (int position : step.outputs) operands.push_back(submission.addresses[position]);
    std::span<void* const> all(operands.begin(), operands.end());
    Run run{all.first(step.inputs.size()), all.subspan(step.inputs.size()),
            step.workspace < 0 ? nullptr : submission.addresses[step.workspace], &threads_, nullptr};
    std::optional<StepOutbox> outbox;
    if (step.line) {
      run.groups = submission.groups.get();
      run.outbox = &outbox.emplace(background_, submission.groups, step.label + " failed on " + to_string(device_),
                                   submission.after_failure);
    }
    const bool alone = threads_.size() == 1;
    if (times != nullptr) times->begins.back()[index] = seconds_now(false);
    const double begin = times == nullptr ? 0 : seconds_now(alone);
    try {
      step.kernel->run(run);
    } catch (const DataError& error) {  // the user's data, not the device
      throw DataError(step.label + " failed on " + to_string(device_) + ": " + error.what());
    } catch (const Error& error) {
      std::throw_with_nested(DeviceError(step.label + " failed on " + to_string(device_) + ": " + error.what()));
    }
    if (times != nullptr) times->seconds.back()[index] = seconds_now(alone) - begin;
  }

  Device device_;
  ThreadPool threads_;
  Background background_;
  int in_flight_;  // ops at a time
  std::mutex mutex_, arena_mutex_;
  std::condition_variable changed_;
  std::deque<Job> jobs_;
  bool busy_ = false, stop_ = false;
  Seconds seconds_;           // of all submissions
  void* reserved_ = nullptr;  // address space
  void* arena_ = nullptr;     // in it, at a multiple of kLargePage
  size_t arena_bytes_ = 0, reserved_bytes_ = 0;
  std::thread worker_;
};

DeviceMemory& memory(int) {
  static CpuMemory& instance = *new CpuMemory;  // never destroyed: storages of static objects go last
  return instance;
}

Queue& queue(int index) {
  static std::mutex mutex;
  static std::array<std::unique_ptr<CpuQueue>, kMostDevices> queues;
  std::lock_guard lock(mutex);
  if (!queues[index]) queues[index] = std::make_unique<CpuQueue>(index);
  return *queues[index];
}

const bool registered = [] {
  register_device_backend(DeviceType::cpu, {[] { return kMostDevices; }, memory});
  register_queues(DeviceType::cpu, queue);
  return true;
}();

}  // namespace

int cpu_threads() {
  if (threads_in_use > 0) return threads_in_use;
  if (threads_setting > 0) return threads_setting;
  const int asked = number_from("BONFIRE_CPU_THREADS");
  return asked > 0 ? asked : available_cores();
}

void set_cpu_threads(int threads) {
  require_possible("the number of threads", threads);
  if (threads_in_use > 0 && threads != threads_in_use)
    throw_error<ConfigError>("[cpu] {} threads are in use and cannot become {}; set them before a CPU device is used",
                             threads_in_use.load(), threads);
  threads_setting = threads;
}

void share_cpu_threads(int devices) {
  if (threads_in_use > 0 || threads_setting > 0 || number_from("BONFIRE_CPU_THREADS") > 0) return;
  threads_setting = std::max(1, available_cores() / devices);
}

int ops_in_flight() {
  const int chosen = ops_setting;
  return std::max(1, chosen > 0 ? chosen : number_from("BONFIRE_OPS_IN_FLIGHT"));
}

void set_ops_in_flight(int ops) {
  if (ops != 0) require_possible("the number of ops in flight", ops);
  ops_setting = ops;
}

}  // namespace bonfire::cpu
