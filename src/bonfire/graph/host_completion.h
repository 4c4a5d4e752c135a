#pragma once
// HostCompletion: of work that a thread of the host does; that thread says when it is done, or has failed.

#include <condition_variable>
#include <exception>
#include <mutex>
#include <utility>

#include "bonfire/graph/node.h"

namespace bonfire {

class HostCompletion final : public Completion {
 public:
  explicit HostCompletion(Device where) { device = where; }
  void wait() override {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return done_; });
    if (error_) std::rethrow_exception(error_);
  }
  bool done() override {
    std::lock_guard lock(mutex_);
    return done_;
  }
  void finish(std::exception_ptr error) {  // null: it is done
    {
      std::lock_guard lock(mutex_);
      done_ = true;
      error_ = std::move(error);
    }
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool done_ = false;
  std::exception_ptr error_;
};

}  // namespace bonfire
