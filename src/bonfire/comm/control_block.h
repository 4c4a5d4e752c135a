#pragma once
// The memory that the ranks of a host work through: who has come how far, why the group died, messages, staging.
//
//   ControlBlock (zeros at first)
//     header                       barrier, the reason of an abort
//     states    [size]             what each rank does; its name
//     mailboxes [size from][size to]   messages between two ranks, a ring of bytes each
//     staging   [size][3]          chunks of values that do not lie in shared memory themselves
//
// Untouched pages cost nothing, so mailboxes that nobody uses are free.

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "bonfire/comm/reduce.h"
#include "bonfire/comm/shared_word.h"

namespace bonfire::comm {

enum class Operation : uint32_t {
  none,
  all_reduce,
  broadcast,
  all_gather,
  reduce_scatter,
  all_to_all,
  send,
  receive,
  barrier,
  buffer,
  split
};
std::string_view name_of(Operation operation);

// Values in memory that peers can see: which buffer, and where in its owner's part. 0: not in shared memory.
struct SharedAddress {
  uint64_t buffer = 0;
  uint64_t offset = 0;  // bytes
};

// What a rank calls. All ranks must call the same, but for the address.
struct alignas(64) Call {
  Operation operation = Operation::none;
  DType dtype = DType::u8;
  Reduce reduce = Reduce::sum;
  int32_t root = 0;
  uint64_t count = 0;
  SharedAddress address = {};

  bool same_as(const Call& other) const {
    return operation == other.operation && dtype == other.dtype && reduce == other.reduce && root == other.root &&
           count == other.count;
  }
  std::string text() const;  // "all_reduce (sum) of 12 f32"
};

struct alignas(64) RankState {
  std::array<Call, 2> calls;   // by the call's number, so that a slow peer can still read the call before
  std::atomic<uint64_t> last;  // number of the last call << 8 | its operation
  std::atomic<int64_t> step;   // in which that was
  std::atomic<uint32_t> left;  // 1: this rank has gone its way in good order
  char name[160];              // "rank 1 (host, process 4711)"
};

struct Mailbox {
  static constexpr uint32_t kBytes = 64 << 10;
  SharedWord written, read;  // bytes so far, modulo 2^32
  std::byte ring[kBytes];
};

class ControlBlock {
 public:
  static constexpr size_t kChunk = 256 << 10;  // bytes
  static constexpr uint64_t kStages = 3;
  static size_t bytes(int size);

  ControlBlock(std::shared_ptr<std::byte> memory, int rank, int size, const std::string& name);

  int rank() const { return rank_; }
  int size() const { return size_; }
  RankState& state(int rank) const { return states_[rank]; }
  std::string name(int rank) const;
  std::string last_of(int rank, uint64_t number) const;  // "all_reduce in step 12 (its call 40, ours is `number`)"
  Mailbox& mailbox(int from, int to) const { return mailboxes_[from * size_ + to]; }
  std::byte* stage(int rank, uint64_t chunk) const {
    return staging_ + (static_cast<size_t>(rank) * kStages + chunk % kStages) * kChunk;
  }

  // Returns when all ranks have come; what they wrote before is seen after it.
  void barrier(Patience& patience, const Watch& watch);

  // The first reason stays. Any thread.
  void abort(const std::string& reason);
  bool aborting() const;  // or aborted
  bool aborted() const;   // the reason can be read
  std::string abort_reason() const;

 private:
  struct Header;

  int rank_, size_;
  std::shared_ptr<std::byte> memory_;
  Header* header_;
  RankState* states_;
  Mailbox* mailboxes_;
  std::byte* staging_;
};

}  // namespace bonfire::comm
