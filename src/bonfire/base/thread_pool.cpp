#include "bonfire/base/thread_pool.h"

#include <sched.h>

#include <atomic>
#include <cmath>
#include <condition_variable>
#include <exception>
#include <fstream>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "bonfire/base/error.h"

namespace bonfire {

namespace {
thread_local bool inside_body = false;

// How often an idle worker looks for work before it sleeps: loops of one step follow each other within microseconds.
constexpr int kSpins = 4000;

void pause_briefly() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb" ::: "memory");
#endif
}
}  // namespace

struct ThreadPool::Team {
  std::mutex mutex;
  std::condition_variable wake, finished;
  std::atomic<uint64_t> generation{0};  // a new loop, or stop
  std::atomic<int64_t> next{0};
  std::atomic<int> running{0};  // workers still inside the current loop
  int64_t tasks = 0;
  Erased call = nullptr;
  const void* body = nullptr;
  std::exception_ptr error;  // first one, under mutex
  bool stop = false;
  std::mutex caller;  // held for a whole loop: threads that call at the same time take turns
  std::vector<std::thread> workers;

  ~Team() {
    {
      std::lock_guard lock(mutex);
      stop = true;
      generation.fetch_add(1);
    }
    wake.notify_all();
    for (std::thread& worker : workers) worker.join();
  }

  void work() {
    inside_body = true;
    for (int64_t task = next.fetch_add(1); task < tasks; task = next.fetch_add(1)) {
      try {
        call(body, task);
      } catch (...) {
        std::lock_guard lock(mutex);
        if (!error) error = std::current_exception();
        next.store(tasks);
      }
    }
    inside_body = false;
  }

  void serve() {
    uint64_t seen = 0;
    while (true) {
      for (int spin = 0; spin < kSpins && generation.load(std::memory_order_acquire) == seen; ++spin) pause_briefly();
      {
        std::unique_lock lock(mutex);
        wake.wait(lock, [&] { return generation.load() != seen; });
        seen = generation.load();
        if (stop) return;
      }
      work();
      if (running.fetch_sub(1) == 1) {
        std::lock_guard lock(mutex);
        finished.notify_one();
      }
    }
  }
};

ThreadPool::ThreadPool(int threads) : threads_(threads < 1 ? 1 : threads), team_(std::make_unique<Team>()) {
  try {
    for (int i = 1; i < threads_; ++i) team_->workers.emplace_back([team = team_.get()] { team->serve(); });
  } catch (const std::system_error& error) {
    throw_error<ConfigError>("[threads] {} threads were asked for, and the system gives {}: {}; ask for fewer",
                             threads_, team_->workers.size() + 1, error.what());
  }
}

ThreadPool::~ThreadPool() = default;

void ThreadPool::run_erased(int64_t tasks, Erased call, const void* body) {
  if (threads_ == 1 || tasks <= 1 || inside_body) {
    for (int64_t task = 0; task < tasks; ++task) call(body, task);
    return;
  }
  Team& team = *team_;
  std::lock_guard turn(team.caller);
  {
    std::lock_guard lock(team.mutex);
    team.tasks = tasks;
    team.call = call;
    team.body = body;
    team.error = nullptr;
    team.next.store(0);
    team.running.store(threads_ - 1);
    team.generation.fetch_add(1, std::memory_order_release);
  }
  team.wake.notify_all();
  team.work();
  for (int spin = 0; spin < kSpins && team.running.load(std::memory_order_acquire) != 0; ++spin) pause_briefly();
  std::unique_lock lock(team.mutex);
  team.finished.wait(lock, [&] { return team.running.load() == 0; });
  if (team.error) std::rethrow_exception(std::exchange(team.error, nullptr));
}

int available_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  int cores = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set)
                                                          : static_cast<int>(std::thread::hardware_concurrency());
  auto limit_by = [&](double quota, double period) {
    if (quota > 0 && period > 0 && quota / period < cores) cores = static_cast<int>(std::lround(quota / period));
  };
  std::string quota;
  double period = 0;
  if (std::ifstream v2("/sys/fs/cgroup/cpu.max"); v2 >> quota >> period && quota != "max")
    limit_by(std::stod(quota), period);
  double v1_quota = 0;
  std::ifstream quota_file("/sys/fs/cgroup/cpu/cpu.cfs_quota_us"), period_file("/sys/fs/cgroup/cpu/cpu.cfs_period_us");
  if (quota_file >> v1_quota && period_file >> period) limit_by(v1_quota, period);
  return cores < 1 ? 1 : cores;
}

}  // namespace bonfire
