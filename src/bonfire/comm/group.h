#pragma once
// Group: ranks 0 .. size-1 of one job (processes, or threads of one process) that move and reduce numbers together.
//
//   comm::GroupBuffer gradients = group->buffer(bytes);                    // where reducing costs least
//   group->all_reduce({gradients.get(), count, DType::f32}, comm::Reduce::mean);
//
// The contract, which tests/comm/conformance_test.cpp holds every backend to:
// - Every rank calls the same collectives in the same order with the same dtype and count. Any count from 0 is right.
// - Only one thread of a rank calls at a time (but see for_messages()). A call returns when this rank's part of the
// result is there.
// - The order of summation is fixed by backend and size: all ranks get the same bits, on every run.
// - bf16 and f16 are summed in f32 and rounded once. Reduce::mean of integers is a ConfigError.
// - Every wait ends: by the peers, by CommError when a peer is known to be gone (it names the rank, its host and what
//   it last did), or by TimeoutError after the timeout that the group was made with. After an error or abort() the
//   group is dead, and each later call fails with the first reason.

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>
#include <utility>

#include "bonfire/comm/progress.h"
#include "bonfire/comm/store.h"
#include "bonfire/tensor/dtype.h"

namespace bonfire::comm {

enum class Reduce { sum, mean, max };

// Elements of one dtype in memory that somebody else owns.
struct Values {
  void* data = nullptr;
  size_t count = 0;
  DType dtype = DType::f32;

  size_t bytes() const { return count * size_of(dtype); }
};

struct ConstValues {
  const void* data = nullptr;
  size_t count = 0;
  DType dtype = DType::f32;

  ConstValues() = default;
  ConstValues(const void* data, size_t count, DType dtype) : data(data), count(count), dtype(dtype) {}
  ConstValues(const Values& values) : data(values.data), count(values.count), dtype(values.dtype) {}
  size_t bytes() const { return count * size_of(dtype); }
};

// Memory made by Group::buffer(); zeros at first.
using GroupBuffer = std::shared_ptr<std::byte[]>;

// How a process joins a group of processes: who it is, and the store where it finds its peers.
struct Membership {
  int rank = 0, size = 1;
  std::shared_ptr<Store> store;
  std::string name;  // the same on all ranks, and no other group's: the keys in the store begin with it
  std::chrono::milliseconds timeout{300'000};
};

class Group {
 public:
  virtual ~Group() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;

  virtual void all_reduce(Values values, Reduce reduce) = 0;  // in place
  virtual void broadcast(Values values, int root) = 0;        // in place
  virtual void all_gather(ConstValues mine, Values all) = 0;  // all: [size, mine.count]
  virtual void reduce_scatter(ConstValues all, Values mine, Reduce reduce) = 0;
  virtual void all_to_all(ConstValues to, Values from) = 0;  // both [size, count / size]
  // Messages of a pair of ranks arrive in order. A send may wait until its message is received.
  virtual void send(ConstValues values, int to) = 0;
  virtual void receive(Values values, int from) = 0;
  virtual void barrier() = 0;

  // A collective call: memory that lives as long as the handle. What lies in it is reduced without being copied where
  // the backend can (shared memory inside a host).
  virtual GroupBuffer buffer(size_t bytes) = 0;
  // A collective call: ranks that give the same colour become a group, ordered by their rank here. It knows the buffers
  // of this one, and may be used by another thread meanwhile, but for buffer() and split().
  virtual std::shared_ptr<Group> split(int colour) = 0;
  // No collective call: the same ranks for another thread, which only sends to one of them, or only receives from one,
  // while other threads call what they like. The messages of a pair of ranks have one order in each direction,
  // whichever of these groups they go through.
  virtual std::shared_ptr<Group> for_messages() = 0;
  // From any thread: this rank's calls in progress and later ones fail with `reason`, and so do its peers' soon after.
  virtual void abort(const std::string& reason) = 0;

  // How far this rank has come. Calls are noted by the group, steps by whoever makes them.
  const std::shared_ptr<Progress>& progress() const { return progress_; }

 protected:
  Group() : Group(std::make_shared<Progress>()) {}
  explicit Group(std::shared_ptr<Progress> progress) : progress_(std::move(progress)) {}

 private:
  std::shared_ptr<Progress> progress_;
};

}  // namespace bonfire::comm
