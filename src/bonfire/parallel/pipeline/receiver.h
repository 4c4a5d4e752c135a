#pragma once
// Receiver: receives a pipeline's messages from one peer beside the device's queue, in a thread of its own. What is
// posted arrives in order; a program that reads it waits for its completion, as for another device's work.

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "bonfire/comm/messages.h"
#include "bonfire/graph/node.h"

namespace bonfire::pipeline {

class Receiver {
 public:
  struct Message {
    TensorSpec spec;
    int64_t tag;
    Buffer into;  // row-major
  };

  // Of the pipeline's axis. The groups are those of the steps of the thread that calls.
  explicit Receiver(int peer);
  // What is posted must have come, or the groups have been aborted.
  ~Receiver();
  Receiver(const Receiver&) = delete;
  Receiver& operator=(const Receiver&) = delete;

  // `free`: who still uses the memory; null: nobody. `what` begins the message of an error.
  std::shared_ptr<Completion> post(std::vector<Message> messages, std::shared_ptr<Completion> free, std::string what);

 private:
  struct Posted;
  void serve();
  void receive(Posted& posted);

  const Line line_;
  std::shared_ptr<comm::AxisGroups> groups_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Posted> posted_;
  bool stops_ = false;
  std::thread thread_;
};

}  // namespace bonfire::pipeline
