#pragma once
// Group over memory that all ranks see: the collectives of comm/local (threads) and comm/shm (processes of a host).
//
// Ranks never send to each other; they read and write each other's memory between barriers (comm/control_block.h).
// - An all-reduce of values that all ranks see (a GroupBuffer of this group, or of the group it was split from) is done
// in
//   place: rank r combines the r-th share of everyone's values and writes the result back to everyone, so each byte is
//   read once and written once, and nothing is copied. One barrier before (all values are there), one after (all
//   shares are done: nobody writes a bucket that a peer still reads).
// - Other memory is staged in chunks: while chunk t is combined, chunk t-1 is copied out, so a chunk costs one barrier.
//   Three stages are enough: whoever fills chunk t has passed barrier t-1, which nobody reaches who still reads chunk
//   t-3.

#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "bonfire/comm/control_block.h"
#include "bonfire/comm/group.h"
#include "bonfire/comm/wait_notice.h"

namespace bonfire::comm {

class MemoryGroup;

// What differs between threads and processes. Ranks are those of the group that was made first, not of its splits.
class Neighbours {
 public:
  virtual ~Neighbours() = default;
  // The rank's process has ended.
  virtual bool gone(int rank) = 0;
  // Called by all ranks of `group`, each with the members it will share memory with: zeros, the same for all members.
  virtual std::shared_ptr<std::byte> share(size_t bytes, std::span<const int> members, MemoryGroup& group) = 0;
  // Where memory of `bytes` lies for the members; buffer 0 when not all of them can see it.
  virtual SharedAddress locate(const void* data, size_t bytes, std::span<const int> members) = 0;
  virtual std::byte* find(int rank, SharedAddress address) = 0;
  // Called by all ranks of `group`: one part of `bytes` for each.
  virtual GroupBuffer buffer(size_t bytes, MemoryGroup& group) = 0;
};

// How long a wait of `size` ranks on this host may spin: not at all where they must share cores.
std::chrono::nanoseconds spin_for(int size);

class MemoryGroup : public Group {
 public:
  struct Options {
    std::chrono::milliseconds timeout;
    std::chrono::nanoseconds spin;  // before a wait sleeps, at most
    bool only_messages = false;     // beside the group that the control block belongs to
  };
  MemoryGroup(ControlBlock block, std::shared_ptr<Neighbours> neighbours, std::vector<int> members, Options options,
              std::shared_ptr<Progress> progress = std::make_shared<Progress>());
  ~MemoryGroup() override;

  int rank() const override { return block_.rank(); }
  int size() const override { return block_.size(); }
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

  // For Neighbours::share and buffer.
  std::span<const int> members() const { return members_; }
  std::exception_ptr trouble();  // why waiting is in vain, if it is

 private:
  using Pieces = std::span<const std::byte* const>;                       // one for each rank
  using Visit = std::function<void(Pieces, size_t begin, size_t bytes)>;  // of bytes [begin, begin + bytes) of all

  template <class Body>
  void guarded(Operation operation, const Body& body);
  void begin(const Call& call, ConstValues mine);
  void meet();  // the barrier inside calls
  void show(const Call& call, ConstValues mine, const Visit& visit);
  void reduce_in_place(Values values, Reduce reduce);
  void reduce_staged(Values values, Reduce reduce);
  void put_message(Mailbox& box, const std::byte* data, size_t bytes);
  void take_message(Mailbox& box, std::byte* data, size_t bytes);
  bool all_located(const Call& call) const;
  const Call& call_of(int rank) const { return block_.state(rank).calls[number_ % 2]; }
  std::exception_ptr abort_error(Operation operation);
  std::string late_ranks() const;  // with what they last began

  ControlBlock block_;
  std::shared_ptr<Neighbours> neighbours_;
  std::vector<int> members_;  // by rank here: the rank that Neighbours knows
  Options options_;
  Watch watch_;
  Patience patience_;
  uint64_t number_ = 0;  // of the collective call in progress
  uint64_t chunk_ = 0;   // staged so far
  Operation operation_ = Operation::none;
  int partner_ = -1;  // of a message; -1: all ranks are waited for
  std::chrono::steady_clock::time_point deadline_;
  WaitNotice notice_;  // only before the first step: later a rank may have its reasons
  std::mutex mutex_;
  std::exception_ptr error_;  // the first one
};

}  // namespace bonfire::comm
