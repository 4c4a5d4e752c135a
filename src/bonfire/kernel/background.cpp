#include "bonfire/kernel/background.h"

#include <algorithm>
#include <utility>

#include "bonfire/base/error.h"

namespace bonfire {

namespace {

bool is_same(const std::weak_ptr<StepGroups>& one, const std::weak_ptr<StepGroups>& other) {
  return !one.owner_before(other) && !other.owner_before(one);
}

}  // namespace

Background::~Background() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  for (auto& [line, thread] : threads_) thread.join();
}

void Background::start(const Line& line, Accesses accesses, std::function<void()> body, bool agrees) {
  add({.line = line, .accesses = std::move(accesses), .body = std::move(body), .agrees = agrees});
}

void Background::post(const Line& line, std::function<void()> body, const std::shared_ptr<StepGroups>& of) {
  add({.line = line, .accesses = {}, .body = std::move(body), .posted = true, .of = of});
}

void Background::add(Work work) {
  {
    std::lock_guard lock(mutex_);
    std::thread& thread = threads_[work.line];
    if (!thread.joinable()) thread = std::thread([this, line = work.line] { serve(line); });
    if (!error_ || work.posted) work_.push_back(std::move(work));
  }
  changed_.notify_all();
}

bool Background::all_done() const {
  return std::all_of(work_.begin(), work_.end(), [](const Work& work) { return work.posted; });
}

bool Background::idle() {
  std::lock_guard lock(mutex_);
  return all_done() && !error_;
}

// What the line's thread may begin now, if there is something.
Background::Work* Background::next_in(const Line& line) {
  for (Work& work : work_) {
    if (work.line == line) return work.running ? nullptr : &work;
    if (work.agrees && work.line.axis == line.axis && line.kind == Line::Kind::collective) return nullptr;
  }
  return nullptr;
}

void Background::serve(const Line& line) {
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
    work->body = {};  // what it keeps goes without the lock
    lock.lock();
    const bool ends_others = error && !work->posted;
    if (error && work->posted) {
      if (!late_.error || !is_same(late_.of, work->of)) late_ = {std::move(error), work->of};
    } else if (error && !error_) {
      error_ = std::move(error);
    }
    work_.remove_if([&](const Work& one) { return &one == work || (ends_others && !one.running && !one.posted); });
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
  wait_until([&] { return all_done(); });
}

void Background::finish_after_failure() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return all_done(); });
  error_ = nullptr;
}

void StepOutbox::post(const Line& line, std::function<void()> work) {
  auto body = [work = std::move(work), where = where_, after_failure = after_failure_] {
    try {
      work();
    } catch (const std::exception& error) {
      tell(after_failure, error.what());
      std::throw_with_nested(DeviceError(where + ", after its program: " + error.what()));
    }
  };
  background_.post(line, std::move(body), groups_);
}

std::exception_ptr Background::take_late_failure(const std::shared_ptr<StepGroups>& of) {
  std::lock_guard lock(mutex_);
  return is_same(late_.of, of) ? std::exchange(late_.error, nullptr) : nullptr;
}

}  // namespace bonfire
