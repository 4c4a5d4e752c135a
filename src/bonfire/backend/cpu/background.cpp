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
  if (thread_.joinable()) thread_.join();
}

void Background::start(Accesses accesses, std::function<void()> body) {
  {
    std::lock_guard lock(mutex_);
    if (!thread_.joinable()) thread_ = std::thread([this] { serve(); });
    if (!error_) work_.push_back({std::move(accesses), std::move(body)});
  }
  changed_.notify_all();
}

bool Background::idle() {
  std::lock_guard lock(mutex_);
  return work_.empty() && !error_;
}

void Background::serve() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return stop_ || !work_.empty(); });
    if (work_.empty()) return;
    std::function<void()>& body = work_.front().body;  // stays where it is: others are only added behind
    lock.unlock();
    std::exception_ptr error;
    try {
      body();
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    if (error) {
      error_ = std::move(error);
      work_.clear();
    } else {
      work_.pop_front();
    }
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

}  // namespace bonfire::cpu
