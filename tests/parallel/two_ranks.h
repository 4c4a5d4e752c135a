#pragma once
// Two ranks as threads, whose all-reduces are counted.

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "bonfire/base/error.h"
#include "bonfire/comm/local/local_group.h"
#include "bonfire/parallel/fleet.h"

namespace bonfire::testing {

// A group that counts all-reduces, those of its splits too.
class Counting final : public comm::Group {
 public:
  Counting(std::shared_ptr<comm::Group> group, std::atomic<int>& reductions)
      : group_(std::move(group)), reductions_(reductions) {}
  int rank() const override { return group_->rank(); }
  int size() const override { return group_->size(); }
  void all_reduce(comm::Values values, comm::Reduce reduce) override {
    ++reductions_;
    group_->all_reduce(values, reduce);
  }
  void broadcast(comm::Values values, int root) override { group_->broadcast(values, root); }
  void all_gather(comm::ConstValues mine, comm::Values all) override { group_->all_gather(mine, all); }
  void reduce_scatter(comm::ConstValues all, comm::Values mine, comm::Reduce reduce) override {
    group_->reduce_scatter(all, mine, reduce);
  }
  void all_to_all(comm::ConstValues to, comm::Values from) override { group_->all_to_all(to, from); }
  void send(comm::ConstValues values, int to) override { group_->send(values, to); }
  void receive(comm::Values values, int from) override { group_->receive(values, from); }
  void barrier() override { group_->barrier(); }
  comm::GroupBuffer buffer(size_t bytes) override { return group_->buffer(bytes); }
  std::shared_ptr<comm::Group> split(int colour) override {
    return std::make_shared<Counting>(group_->split(colour), reductions_);
  }
  std::shared_ptr<comm::Group> for_messages() override { return group_->for_messages(); }
  void abort(const std::string& reason) override { group_->abort(reason); }

 private:
  std::shared_ptr<comm::Group> group_;
  std::atomic<int>& reductions_;
};

// Runs the body on two ranks, each a thread with a device of its own; how many all-reduces they made, and the first
// error of each.
struct Outcome {
  std::atomic<int> reductions{0};
  std::string errors[2];
};
inline void on_two_ranks(Outcome& outcome, const std::function<void(Device)>& body) {
  auto groups = comm::local_groups(2, {.timeout = std::chrono::seconds(60)});
  std::vector<std::thread> threads;
  for (size_t r = 0; r < 2; ++r)
    threads.emplace_back([&, r] {
      try {
        fleet::join(std::make_shared<Counting>(groups[r], outcome.reductions));
        body({DeviceType::cpu, static_cast<int16_t>(r)});
        fleet::leave();
      } catch (const Error& error) {
        outcome.errors[r] = error.what();
      }
    });
  for (std::thread& thread : threads) thread.join();
}

}  // namespace bonfire::testing
