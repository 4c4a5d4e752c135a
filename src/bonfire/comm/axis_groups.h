#pragma once
// AxisGroups: the groups that a mesh axis means to the collectives of a job's steps. Nodes and plans name an axis; each
// submission carries the AxisGroups of the job that it was made in, and kernels ask there (Run::groups).
//
//   auto groups = std::make_shared<comm::AxisGroups>();
//   groups->change(Axis::tensor, {.communicators = {group->split(0)}});
//   StepContext::current().groups = groups;
//
// The groups belong to the steps: only the threads of the queues' lines (kernel/kernel.h) call them. Collectives of one
// communicator run in order, those of two may run at the same time. Each peer and direction has a group of its own for
// messages (Group::for_messages), so that a message waits for none but those before it on its way.

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "bonfire/comm/group.h"
#include "bonfire/kernel/kernel.h"

namespace bonfire::comm {

// Names of values, for messages between ranks. It only grows.
class ValueNames {
 public:
  int64_t add(std::string name);         // its number, for attributes of nodes
  std::string at(int64_t number) const;  // "a value" where it is negative

 private:
  mutable std::mutex mutex_;
  std::vector<std::string> names_;
};

class AxisGroups final : public StepGroups {
 public:
  struct Memory {
    GroupBuffer buffer;  // of the group that the communicators were split from
    size_t bytes = 0;
  };
  // Of the ranks that differ along one axis alone.
  struct Along {
    std::vector<std::shared_ptr<Group>> communicators;
    // All-reduced values that lie side by side in one of them are reduced in one call, the bytes between them too.
    std::vector<Memory> memories = {};
    // Whether operands lie otherwise on other ranks: for the collectives after an agreement, which sets it.
    std::shared_ptr<std::atomic<bool>> layouts_differ = std::make_shared<std::atomic<bool>>(false);

    Group& group() const { return *communicators.front(); }
  };

  // Those of a submission. CommError where it was made after its job was left.
  static AxisGroups& of(const Run& run);

  // Nothing may be running along it. Queues of two devices run at the same time, so where a rank has several each but
  // the first has groups of its own.
  void change(Axis axis, Along other, std::optional<Device> device = {});
  // CommError where the job has no groups along it. Those of the first device where the one named has none.
  std::shared_ptr<const Along> along(Axis axis, std::optional<Device> device = {}) const;
  const std::shared_ptr<ValueNames>& names() const { return names_; }

  // For the messages of a line, which sends or receives.
  std::shared_ptr<Group> for_messages(const Line& line);
  // Posts what sends a message, which is under way until it returns.
  void post(Outbox& outbox, const Line& line, std::function<void(Group& group)> message);
  // From now on a message that fails fails no submission: give_up_messages() counts it.
  void begin_leaving();
  // How many messages nobody has received. Those that are still under way after that time are given up.
  int give_up_messages(std::chrono::milliseconds patience);

  void abort(const std::string& reason);  // from any thread

 private:
  struct UnderWay {
    std::mutex mutex;
    std::condition_variable changed;
    int messages = 0;
    int lost = 0;  // while this rank was leaving
    bool leaving = false;
  };

  mutable std::mutex mutex_;
  std::map<std::pair<Axis, std::optional<Device>>, std::shared_ptr<const Along>> axes_;  // no device: of the first
  std::map<Line, std::shared_ptr<Group>> for_messages_;
  std::shared_ptr<ValueNames> names_ = std::make_shared<ValueNames>();
  std::shared_ptr<UnderWay> under_way_ = std::make_shared<UnderWay>();
};

}  // namespace bonfire::comm
