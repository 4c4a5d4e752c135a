#pragma once

#include <sys/eventfd.h>
#include <unistd.h>

#include <deque>
#include <mutex>
#include <optional>
#include <utility>

#include "bonfire/launch/nodes.h"

namespace bonfire::launch {

// Events on their way from threads to the loop.
class EventQueue {
 public:
  EventQueue() : descriptor_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK | EFD_SEMAPHORE)) {}
  EventQueue(const EventQueue&) = delete;
  EventQueue& operator=(const EventQueue&) = delete;
  ~EventQueue() { ::close(descriptor_); }

  int descriptor() const { return descriptor_; }
  void put(Event event) {
    std::lock_guard lock(mutex_);
    events_.push_back(std::move(event));
    ::eventfd_write(descriptor_, 1);
  }
  std::optional<Event> take() {
    std::lock_guard lock(mutex_);
    if (events_.empty()) return std::nullopt;
    eventfd_t count;
    ::eventfd_read(descriptor_, &count);
    Event event = std::move(events_.front());
    events_.pop_front();
    return event;
  }

 private:
  int descriptor_;
  std::mutex mutex_;
  std::deque<Event> events_;
};

}  // namespace bonfire::launch
