#pragma once
// What the launchers of a job's hosts agree on: who has which ranks, that somebody failed, whether to start again.
//
// They talk through the store of node 0, whose launcher is the chief:
//
//   settings       what node 0 was told and holds for all: time-outs, restarts               (chief)
//   node/N         who node N is and what it has: ranks, version, program    (who claims it first; chief waits for all)
//   plan           first rank of each node and the world, or why it is refused               (chief)
//   G/verdict      how generation G ended: done, failed or stopped, and why  (who claims it first)
//   G/done/N       all ranks of N ended well                                 (each node; chief: the verdict done)
//   G/gone/N       after another verdict: no process of N is left            (each node; chief waits for all)
//   G/next         start generation G + 1, or end                            (chief)
//   left/N         N needs the store no more                                 (each node; node 0 waits for all)
//
// Each gives the store signs of life, and learns from its answers which ranks are frozen. A node whose launcher is
// silent for too long is lost, and so is one whose connection has broken off and that says nothing afterwards.
//
// The first verdict stands, so whoever may be somebody's victim waits for news of the others before it speaks: for
// news_delay(), which grows with the time that the store takes to answer.
//
// All of it happens in threads of Nodes; the launcher's loop reads events and never waits for the network. A job of one
// host has no such threads: there the events follow from each other at once.

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace bonfire::launch {

struct NodeOptions {
  int nodes = 1, node = 0;
  int ranks = 1;  // here
  std::string address = "127.0.0.1";
  int port = 0;  // 0: a free one (one host only)
  std::string token = {};
  std::string program = {};  // a file; hosts with the same processor must have the same
  int64_t max_restarts = 0;
  std::chrono::milliseconds timeout{300'000};     // for all nodes to come
  std::chrono::milliseconds silence{8'000};       // after which a node that says nothing is lost
  std::chrono::milliseconds rank_silence{8'000};  // and a rank is frozen; 0: never
};

struct Event {
  enum class Kind {
    start,     // the ranks of `generation`
    frozen,    // `rank` of any node, which is called `name`, gives no sign of life: `reason`
    failed,    // a rank failed here or elsewhere: end those here, then call ranks_gone()
    stopped,   // the user asked another node to stop: ask the ranks here, then call ranks_gone()
    finished,  // every rank of every node ended well
    over,      // there is no further start; `reason` is for the user, empty when he knows
  };
  Kind kind = Kind::start;
  int64_t generation = 0;
  int first_rank = 0, world = 1;  // at start
  int64_t max_restarts = 0;
  std::chrono::milliseconds node_timeout{0};
  int rank = 0;  // that is frozen
  std::string name = {};
  std::string reason = {};
};

class Nodes {
 public:
  virtual ~Nodes() = default;
  virtual int port() const = 0;              // of the store
  virtual int descriptor() const = 0;        // can be read while there are events
  virtual std::optional<Event> event() = 0;  // the next one
  // How long news of a failure elsewhere may take to come here.
  virtual std::chrono::milliseconds news_delay() const = 0;
  // How long nothing was heard of a node, whichever was silent longest: from it there may be news that nobody has
  // heard.
  virtual std::chrono::milliseconds silence() const = 0;
  // What happened here in this generation.
  virtual void ranks_done() = 0;
  virtual void rank_failed(const std::string& reason) = 0;
  virtual void asked_to_stop() = 0;
  virtual void ranks_gone() = 0;
};

// Node 0 begins to listen. CommError when it cannot.
std::unique_ptr<Nodes> join_nodes(const NodeOptions& options);

}  // namespace bonfire::launch
