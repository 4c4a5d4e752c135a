#include "bonfire/parallel/pipeline/receiver.h"

#include <utility>

#include "bonfire/base/error.h"
#include "bonfire/graph/host_completion.h"
#include "bonfire/graph/step_context.h"

namespace bonfire::pipeline {

struct Receiver::Posted {
  std::vector<Message> messages;
  std::shared_ptr<Completion> free;
  std::string what;
  std::shared_ptr<HostCompletion> arrival;
};

Receiver::Receiver(int peer)
    : line_{.axis = Axis::pipeline, .kind = Line::Kind::receive, .number = peer},
      groups_(std::static_pointer_cast<comm::AxisGroups>(StepContext::current().groups)) {
  BONFIRE_CHECK(groups_ != nullptr);
  thread_ = std::thread([this] { serve(); });
}

Receiver::~Receiver() {
  {
    std::lock_guard lock(mutex_);
    stops_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

std::shared_ptr<Completion> Receiver::post(std::vector<Message> messages, std::shared_ptr<Completion> free,
                                           std::string what) {
  Device nobody;  // no queue's: every program waits for it
  nobody.index = -1;
  auto arrival = std::make_shared<HostCompletion>(nobody);
  {
    std::lock_guard lock(mutex_);
    posted_.push_back({std::move(messages), std::move(free), std::move(what), arrival});
  }
  changed_.notify_all();
  return arrival;
}

void Receiver::serve() {
  while (true) {
    Posted next;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return stops_ || !posted_.empty(); });
      if (posted_.empty()) return;
      next = std::move(posted_.front());
      posted_.pop_front();
    }
    std::exception_ptr error;
    try {
      if (next.free) next.free->wait();
      receive(next);
    } catch (const TimeoutError& late) {
      error = std::make_exception_ptr(TimeoutError(next.what + ": " + late.what()));
    } catch (const CommError& lost) {
      error = std::make_exception_ptr(CommError(next.what + ": " + lost.what()));
    } catch (...) {
      error = std::current_exception();
    }
    next.free = nullptr;
    next.messages.clear();
    next.arrival->finish(std::move(error));
  }
}

void Receiver::receive(Posted& posted) {
  for (const Message& message : posted.messages) {
    comm::MessageReceiver receiver(line_, message.spec, message.tag);
    if (message.spec.device.type == DeviceType::cpu) {
      receiver.receive(*groups_, static_cast<std::byte*>(message.into.data()));
      continue;
    }
    std::vector<std::byte> host(message.spec.bytes());
    receiver.receive(*groups_, host.data());
    memory_of(message.spec.device).copy_from_host(message.into.data(), host.data(), host.size());
  }
}

}  // namespace bonfire::pipeline
