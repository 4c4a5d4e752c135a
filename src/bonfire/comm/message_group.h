#pragma once
// Group over messages: the collectives of comm/gloo and comm/mpi, so that both give the same bits.
//
// - An all-reduce of more than 128 KiB goes round the ring of ranks: in size - 1 steps each rank adds its values to the
//   partial sum of a share that its neighbour sends, then the finished shares go round once more. Each rank sends
//   2 (size - 1) / size of the bytes, the least there can be, and only neighbours talk: ranks of a host stand side by
//   side, so each link between hosts carries it once. Shares travel in segments, so that adding overlaps moving.
// - Small ones, and bf16 and f16 (whose partial sums would have to travel as f32), go straight: everyone sends
//   the r-th share to rank r, which adds them in rank order and sends the result to everyone. The same bytes, two
//   steps.
// - What is broadcast goes down a binomial tree; barriers meet at distances 1, 2, 4, ...

#include <atomic>
#include <chrono>
#include <exception>
#include <memory>
#include <string_view>
#include <vector>

#include "bonfire/comm/group.h"
#include "bonfire/comm/messenger.h"
#include "bonfire/comm/wait_notice.h"

namespace bonfire::comm {

class MessageGroup : public Group {
 public:
  struct Options {
    std::chrono::milliseconds timeout;
    std::shared_ptr<Store> store = nullptr;  // knows what ranks were last seen in; may be null
  };
  MessageGroup(std::shared_ptr<Messenger> messenger, Options options,
               std::shared_ptr<Progress> progress = std::make_shared<Progress>());

  int rank() const override { return messenger_->rank(); }
  int size() const override { return messenger_->size(); }
  void all_reduce(Values values, Reduce reduce) override;
  void broadcast(Values values, int root) override;
  void all_gather(ConstValues mine, Values all) override;
  void reduce_scatter(ConstValues all, Values mine, Reduce reduce) override;
  void all_to_all(ConstValues to, Values from) override;
  void send(ConstValues values, int to) override;
  void receive(Values values, int from) override;
  void barrier() override;
  GroupBuffer buffer(size_t bytes) override;
  std::shared_ptr<Group> split(int colour) override;
  std::shared_ptr<Group> for_messages() override;
  void abort(const std::string& reason) override;

 private:
  using Bytes = std::span<std::byte>;
  using ConstBytes = std::span<const std::byte>;
  class Transfers;
  struct Begun {
    std::unique_ptr<Transfer> transfer;  // null: nothing is left to wait for
    int peer;
  };

  template <class Body>
  void guarded(const char* where, const Body& body);
  void wait_for(Transfer& transfer, int peer);
  std::exception_ptr too_late(std::string_view where, const std::string& message);
  std::string late_ranks();
  void reduce_straight(Values values, Reduce reduce);
  void reduce_round_the_ring(Values values, Reduce reduce);
  void gather_round_the_ring(Values values);
  void exchange_parts(ConstBytes to, Bytes from, size_t part);
  void meet();

  std::shared_ptr<Messenger> messenger_;
  Options options_;
  std::chrono::steady_clock::time_point deadline_;
  WaitNotice notice_;               // only before the first step: later a rank may have its reasons
  std::vector<std::byte> arrived_;  // of a ring, until it is added
  uint64_t splits_ = 0;
  std::atomic<bool> aborted_ = false;
  std::exception_ptr error_;  // the first one
};

}  // namespace bonfire::comm
