#pragma once
// Agreement: before a step makes its first collective along an axis, its ranks compare which ones they are going to
// make.
//
// Values of the same size would otherwise be mixed up where ranks do different things, and messages between hosts
// carry no names. Ranks compile when they like (one has a batch of another size, another finds its plan), so the
// comparison belongs to every run of a plan, not to its making. It costs next to nothing there: 24 bytes go round on
// the axis's own thread while the forward pass computes. Only when they differ do the ranks tell each other the
// details, so that all of them say the same. How the operands lie in memory is compared too; ranks may differ in it.
//
// Messages are compared by their receiver, one by one (messages.cpp), since ranks may cut their programs as they like.
// Whoever makes a schedule for all ranks compares its messages once, before the first of them.

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "bonfire/comm/group.h"
#include "bonfire/graph/graph.h"
#include "bonfire/kernel/kernel.h"

namespace bonfire::comm {

// What one rank's collectives take part in, in order: an item for each operand. Nothing in it depends on a rank's
// batch, but for shapes that must be the same.
struct Sequence {
  struct Item {
    int call;          // operands of one collective share it
    std::string what;  // "mean of fc.weight (f32 [10, 144])"
    friend bool operator==(const Item&, const Item&) = default;
  };
  std::vector<Item> items;
  uint64_t layouts = 0;  // a hash of where each operand's elements are
};

// A collective call. CommError, the same on all ranks, says what the first rank that differs from rank 0 does
// otherwise. Returns whether the layouts are the same everywhere.
bool agree(Group& group, const Sequence& sequence);

// One message of a schedule, as the rank that sends or receives it sees it.
struct ScheduledMessage {
  bool sent;  // else received
  int peer;
  std::string what;  // "activations of micro-batch 3 (f32 [8, 64])"
};

// A collective call. CommError, the same on all ranks, names the first message that is not the same for its sender and
// its receiver: the i-th that one sends to the other must be the i-th that this one receives from it.
void agree_on_messages(Group& group, std::span<const ScheduledMessage> messages);

struct PlannedCollective {
  const GraphNode* node;
  std::span<const Layout> layouts;  // of its operands
};

struct Agreement {
  Line line;
  std::unique_ptr<Kernel> kernel;
};

// Steps to run before these collectives, which are those of one program in their order: one an axis. `first`: no
// program of the step before has any, so that these count it.
std::vector<Agreement> agreements(std::span<const PlannedCollective> collectives, bool first = true);

}  // namespace bonfire::comm
