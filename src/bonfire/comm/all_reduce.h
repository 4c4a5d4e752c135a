#pragma once
// all_reduce as an op: a node like any other, which passes see, merge and move.
//
//   int channel = comm::open_channel({.communicators = {group}});
//   gradient = comm::all_reduce(gradient, comm::Reduce::mean, channel);
//
// A node has any number of operands, of one dtype; each is replaced by its reduction over the ranks of the channel's
// group. Every rank must trace the same nodes in the same order; comm/agreement.h finds out when they do not. Operands
// are reduced as they lie; only where the ranks' lie in different ways (their processors differ, or the sizes of their
// first batches did) are they brought into row-major order and back.

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "bonfire/comm/group.h"
#include "bonfire/graph/graph.h"

namespace bonfire::comm {

// Groups of the same ranks that belong to nodes: only the threads that run them call them. A node uses one of these
// communicators, the first unless its attribute says otherwise; nodes of different ones may run at the same time.
// Operands that lie side by side in one of the `memories` are reduced in one call, the bytes between them too.
struct Channel {
  struct Memory {
    Buffer buffer;  // of the group that the communicators were split from
    size_t bytes = 0;
  };
  std::vector<std::shared_ptr<Group>> communicators;
  std::vector<Memory> memories = {};
  std::shared_ptr<const std::vector<std::string>> names = nullptr;  // of values, for messages; may grow
  // Whether operands lie otherwise on other ranks: for the collectives behind an agreement, which sets it.
  std::shared_ptr<std::atomic<bool>> layouts_differ = std::make_shared<std::atomic<bool>>(false);

  Group& group() const { return *communicators.front(); }
};

int open_channel(Channel channel);               // its number, for attributes of nodes
void change_channel(int number, Channel other);  // of an open one; nothing may be running in it
void close_channel(int number);                  // nodes that still use it fail
Channel channel_at(int number);                  // CommError when it is closed

// `name` is the value's place in the channel's names: ranks must reduce values of the same name.
Tensor all_reduce(const Tensor& value, Reduce reduce, int channel, int64_t name = -1);

const Op& all_reduce_op();  // attributes: reduce, channel, communicator, names [operands]

}  // namespace bonfire::comm
