#pragma once
// Schedule: which stage of a pipeline does what, in which order, for the micro-batches of one step. It is a table, made
// by one function that knows nothing else; the simulator (simulator.h) checks it, `bonfire inspect schedule` prints it,
// and the executor (stage_runner.h) only follows it.
//
//   const pipeline::Schedule table = pipeline::make_schedule({.kind = Kind::one_f_one_b, .stages = 4, .micro_batches =
//   8});
//
// A stage cuts its step into programs: F computes what the next stages read, B what reaches the gradients that the
// stages before wait for, W the rest of the backward pass (only zero bubble has it apart; elsewhere B is all of it),
// and U the update. What F leaves for B and W of its micro-batch lies in a numbered slot, and the next micro-batch that
// has the slot must not begin before they are done.
//
//   GPipe        all F, then all B: as many slots as micro-batches.
//   1F1B         stage s of p begins with p − s F, then B and F take turns: p − s slots.
//   zero bubble  the order of 1F1B, but B leaves the gradients of weights to W, which comes s micro-batches later on
//                stage s and fills the time in which it would wait: p slots, and a third of the bubble.
//   interleaved  each rank has several chunks of the model, rank r the stages r, r + p, r + 2p …, so that the first
//                micro-batch is through sooner: of v chunks, an idle share as of v times as many micro-batches.
//
// RECEIVE stands one program before the one that reads what comes, so that it is under way meanwhile, or earlier: a
// rank receives what another sends in the order in which that one sends it.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "bonfire/graph/phase.h"

namespace bonfire::pipeline {

enum class ScheduleKind : uint8_t { gpipe, one_f_one_b, zero_bubble, interleaved };
const char* name_of(ScheduleKind kind);              // "gpipe", "1f1b", "zero_bubble", "interleaved"
ScheduleKind parse_schedule(std::string_view name);  // ConfigError that lists them

enum class Work : uint8_t { receive, forward, backward, weights, send, reduce, update };

struct Item {
  Work work;
  int micro_batch = -1;          // reduce and update: of none
  int chunk = 0;                 // of the rank's, where it has several
  Phase phase = Phase::forward;  // receive and send: of activations, or backward: of gradients
  int peer = -1;                 // receive and send: the rank
  int other = -1;                // receive and send: the stage that the message is from or for
  int slot = -1;                 // of the chunk, what F leaves; receive: what comes. Send, reduce and update: none

  friend bool operator==(const Item&, const Item&) = default;
};
// "F 3 in slot 1", "RECEIVE gradients of 2 from 1 in slot 0"; of a chunk but the first: "F 3 of chunk 1 in slot 1"
std::string to_string(const Item& item);

// Stage `from` computes in F what stage `to` reads, and gets a gradient for it.
struct Edge {
  int from, to;
  friend bool operator==(const Edge&, const Edge&) = default;
};

struct ScheduleOptions {
  ScheduleKind kind = ScheduleKind::one_f_one_b;
  int stages = 1;  // of one chunk: as many as there are ranks
  int micro_batches = 1;
  int chunks = 1;                // of a rank; more than one: interleaved only
  std::vector<Edge> edges = {};  // of stages, which are ranks · chunks; empty: each to the next
};

struct Schedule {
  ScheduleOptions options;                  // with its edges
  std::vector<std::vector<Item>> ranks;     // [ranks]: what each does, in order
  std::vector<int> slots;                   // [stages] of what F leaves
  std::vector<int> activations, gradients;  // [stages]: slots of what is received, one each in every slot for each edge
};

// ConfigError for numbers that cannot be: fewer than one.
Schedule make_schedule(const ScheduleOptions& options);

}  // namespace bonfire::pipeline
