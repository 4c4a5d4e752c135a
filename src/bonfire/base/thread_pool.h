#pragma once
// A team of threads that runs one loop at a time. Work is cut the same way for the same thread count, so results that
// depend on the cut (sums) are the same bits on every run.

#include <cstdint>
#include <memory>
#include <type_traits>

namespace bonfire {

class ThreadPool {
 public:
  // `threads` includes the caller: 1 means no worker at all.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const { return threads_; }

  // Calls body(task) for task in [0, tasks), on all threads; returns when all are done. The first exception is
  // rethrown, and tasks that had not begun by then are left out. A call from inside a body runs the inner loop on the
  // calling thread alone; calls from several threads take turns.
  template <class Body>
  void run(int64_t tasks, const Body& body) {
    run_erased(
        tasks, [](const void* object, int64_t task) { (*static_cast<const Body*>(object))(task); }, &body);
  }

  // Calls body(begin, end) on ranges that cover [0, count). Ranges hold at least `grain` elements (but for the last)
  // and there are at most size() of them.
  template <class Body>
  void parallel_for(int64_t count, int64_t grain, const Body& body) {
    int64_t ranges = count / (grain > 0 ? grain : 1);
    if (ranges > threads_) ranges = threads_;
    if (ranges <= 1) {
      if (count > 0) body(int64_t{0}, count);
      return;
    }
    run(ranges, [&](int64_t range) { body(count * range / ranges, count * (range + 1) / ranges); });
  }

 private:
  using Erased = void (*)(const void*, int64_t);
  void run_erased(int64_t tasks, Erased call, const void* body);

  struct Team;
  int threads_;
  std::unique_ptr<Team> team_;
};

// Cores this process may use: affinity and cgroup quota considered, at least 1.
int available_cores();

}  // namespace bonfire
