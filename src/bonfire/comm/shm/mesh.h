#pragma once
// A socket between each two processes of a host: memory is handed over it, and its end is the end of the peer.
//
// The sockets are Unix ones with names in the kernel (no files): whoever can reach them runs in the same network
// namespace of the same host. Both sides check that the other runs as the same user.

#include <chrono>
#include <cstdint>
#include <functional>
#include <vector>

#include "bonfire/comm/file_descriptor.h"
#include "bonfire/comm/group.h"
#include "bonfire/comm/wait_notice.h"

namespace bonfire::comm {

class Mesh {
 public:
  // Returns when this rank is connected with each peer; TimeoutError names the one that did not come.
  explicit Mesh(const Membership& membership);

  int rank() const { return rank_; }
  bool gone(int rank) const;  // its process has ended, or has let its end go

  // A memory file and a number that goes with it. `idle` is called every few milliseconds of waiting and may throw.
  void give(int rank, const FileDescriptor& memory, uint64_t number) const;
  FileDescriptor take(int rank, uint64_t& number, const std::function<void()>& idle) const;

 private:
  std::string address_in_store(int peer, const Membership& membership, WaitNotice& notice,
                               WaitNotice::Clock::time_point deadline) const;
  void connect_to(int peer, const std::string& name);
  void accept_all(const FileDescriptor& listener, const Membership& membership, WaitNotice& notice,
                  WaitNotice::Clock::time_point deadline);
  [[noreturn]] void never_came(int peer, const Membership& membership) const;

  int rank_;
  std::vector<FileDescriptor> sockets_;  // by rank; none to itself
};

}  // namespace bonfire::comm
