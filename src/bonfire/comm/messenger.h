#pragma once
// Messages between ranks: all that a MessageGroup wants of a network (comm/gloo, comm/mpi).

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace bonfire::comm {

// A message under way. Its memory must stay until wait() has returned or the transfer is gone.
class Transfer {
 public:
  virtual ~Transfer() = default;
  // Ends when the memory may be used again. CommError when the peer is gone or the group was stopped, TimeoutError
  // behind the deadline.
  virtual void wait(std::chrono::steady_clock::time_point deadline) = 0;
};

class Messenger {
 public:
  virtual ~Messenger() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;

  // From any thread. Messages of one pair of ranks with one tag (0, 1 or 2) arrive in the order in which they were
  // begun. Never empty.
  virtual std::unique_ptr<Transfer> send(std::span<const std::byte> message, int to, int tag) = 0;
  virtual std::unique_ptr<Transfer> receive(std::span<std::byte> message, int from, int tag) = 0;

  // From any thread: ends all transfers here with this reason, and lets the peers know it. The first reason stays.
  virtual void stop(const std::string& reason) = 0;
  virtual std::string stop_reason() = 0;  // of a peer too; "": none

  // Behind a timeout: those who do not say within half a second that they wait too. Empty where it cannot be told.
  virtual std::vector<int> silent_ranks() = 0;

  // Called by all ranks, which keep their names: one of `members`, this rank among them, in their order. `key` is
  // another one for each split of a group and each of its parts. TimeoutError after the deadline.
  virtual std::unique_ptr<Messenger> split(std::span<const int> members, const std::string& key,
                                           std::chrono::steady_clock::time_point deadline) = 0;
  virtual std::string name(int rank) const = 0;  // "rank 1 (host, process 4711)"
};

}  // namespace bonfire::comm
