#include "bonfire/backend/cpu/background.h"

#include <algorithm>
#include <utility>

namespace bonfire::cpu {

Background::~Background() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_)
    if (thread.joinable()) thread.join();
}

void Background::start(int line, Accesses accesses, std::function<void()> body) {
  {
    std::lock_guard lock(mutex_);
    const int served_by = std::max(line, 0);
    if (threads_.size() <= static_cast<size_t>(served_by)) threads_.resize(static_cast<size_t>(served_by) + 1);
    std::thread& thread = threads_[static_cast<size_t>(served_by)];
    if (!thread.joinable()) thread = std::thread([this, served_by] { serve(served_by); });
    if (!error_) work_.push_back({line, std::move(accesses), std::move(body)});
  }
  changed_.notify_all();
}

bool Background::idle() {
  std::lock_guard lock(mutex_);
  return work_.empty() && !error_;
}

// What the line's thread may begin now, if there is something.
Background::Work* Background::next_in(int line) {
  for (Work& work : work_) {
    const bool before_all = work.line == ProgramStep::kBeforeAllLines;
    if (before_all ? line == 0 : work.line == line) return work.running ? nullptr : &work;
    if (before_all) return nullptr;
  }
  return nullptr;
}

void Background::serve(int line) {
  std::unique_lock lock(mutex_);
  while (true) {
    Work* work = nullptr;
    changed_.wait(lock, [&] { return (work = next_in(line)) != nullptr || (stop_ && work_.empty()); });
    if (work == nullptr) return;
    work->running = true;
    lock.unlock();
    std::exception_ptr error;
    try {
      work->body();
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    work_.remove_if([&](const Work& one) { return &one == work || (error && !one.running); });
    if (error && !error_) error_ = std::move(error);
    changed_.notify_all();
  }
}

template <class Condition>
void Background::wait_until(Condition condition) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return error_ || condition(); });
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
}

void Background::wait_for(const Accesses& accesses) {
  wait_until([&] {
    return std::none_of(work_.begin(), work_.end(),
                        [&](const Work& work) { return must_wait(accesses, work.accesses); });
  });
}

void Background::wait_for_all() {
  wait_until([&] { return work_.empty(); });
}

void Background::finish_after_failure() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return work_.empty(); });
  error_ = nullptr;
}

}  // namespace bonfire::cpu
