#pragma once
// all_reduce as an op: a node like any other, which passes see, merge and move.
//
//   int channel = comm::open_channel({.group = group});
//   gradient = comm::all_reduce(gradient, comm::Reduce::mean, channel);
//
// A node has any number of operands, of one dtype; each is replaced by its reduction over the ranks of the channel's
// group. Every rank must trace the same nodes in the same order; comm/agreement.h finds out when they do not.

#include <memory>
#include <string>
#include <vector>

#include "bonfire/comm/group.h"
#include "bonfire/graph/graph.h"

namespace bonfire::comm {

// A group that belongs to nodes: only the thread that runs them calls it. Operands that lie side by side in `memory`
// (from group->buffer) are reduced in one call, the bytes between them too.
struct Channel {
  std::shared_ptr<Group> group;
  Buffer memory = nullptr;
  size_t bytes = 0;                                                 // of the memory
  std::shared_ptr<const std::vector<std::string>> names = nullptr;  // of values, for messages; may grow
};

int open_channel(Channel channel);  // its number, for attributes of nodes
void close_channel(int number);     // nodes that still use it fail
Channel channel_at(int number);     // CommError when it is closed

// `name` is the value's place in the channel's names: ranks must reduce values of the same name.
Tensor all_reduce(const Tensor& value, Reduce reduce, int channel, int64_t name = -1);

const Op& all_reduce_op();  // attributes: reduce, channel, names [operands]

}  // namespace bonfire::comm
