#pragma once
// Gate: a port of this host's at which callers prove that they belong to the job, before anything is done for them.
//
//   comm::Gate gate({.address = "10.0.0.1", .pass = pass});
//   for (;;) {
//     ... poll gate.descriptor() ...
//     for (Gate::Caller& caller : gate.take()) serve(caller.name, std::move(caller.socket));
//   }
//
// A caller (knock, below) says who it is and shows a pass, in the words in which HTTP's clients ask a proxy for a
// connection, so that gRPC's can say them too:
//
//   CONNECT rank-3 HTTP/1.0
//   bonfire-pass: 9f86d081884c7d659a2feaa0c55ad015
//
// It is answered 200, and the connection is the owner's from then on; or 403, and is closed.
//
// Whoever has not come so far is a stranger. Strangers have a bounded number of descriptors, all together, and 1 KiB of
// memory each. Those who do not come to the point are dropped after some seconds, or before, when there is no room for
// a new one: then the oldest of the address that has most of them goes. So strangers cannot take what the job needs,
// and those of one host cannot keep out the ranks of another.

#include <netinet/in.h>

#include <chrono>
#include <list>
#include <string>
#include <vector>

#include "bonfire/comm/file_descriptor.h"

namespace bonfire::comm {

struct GateOptions {
  std::string address = "127.0.0.1";  // the one to listen on, a literal of this host's
  int port = 0;                       // 0: one that is free
  std::string pass = {};              // what callers must show
  std::string manner = "plain";       // how one speaks after it: told to callers
  size_t strangers = 64;              // at most, at a time
  std::chrono::milliseconds patience{5'000};
};

class Gate {
 public:
  explicit Gate(GateOptions options);  // CommError when it cannot listen

  int port() const;
  int descriptor() const { return events_.get(); }  // can be read when take() has something to do

  struct Caller {
    std::string name;       // as it says itself
    FileDescriptor socket;  // calls on it never wait
  };
  std::vector<Caller> take();  // who has come in since; never waits

 private:
  struct Stranger {
    FileDescriptor socket;
    in6_addr from;  // IPv4: as IPv6 has it
    std::chrono::steady_clock::time_point until;
    std::string said = {};
  };
  using Strangers = std::list<Stranger>;

  bool watch(int descriptor);
  void let_some_in_sight();
  void make_room();
  bool hear(Stranger& stranger);  // whether it may stay
  void drop_the_late();

  GateOptions options_;
  FileDescriptor listener_, events_, clock_;
  FileDescriptor spare_;  // given up to turn a caller away where there are no more descriptors
  Strangers strangers_;   // the oldest first
  std::vector<Caller> callers_;
};

// What a gate says to a caller.
struct Answer {
  enum class Kind {
    welcome,
    refused,  // the pass is another one
    none,     // nobody answers, or somebody who is no gate
  };
  Kind kind = Kind::none;
  FileDescriptor socket = {};  // when welcome; calls on it never wait
  std::string manner = {};
};

// `name` without blanks. A gate that turns the caller away without a word is asked again until the deadline; a port
// where nobody listens for some seconds is given up.
Answer knock(const std::string& literal, int port, const std::string& name, const std::string& pass,
             std::chrono::steady_clock::time_point deadline);

// The same without waiting for the answer, which comes before all else; an empty one where nobody listens.
FileDescriptor knock_only(const std::string& literal, int port, const std::string& name, const std::string& pass,
                          std::chrono::steady_clock::time_point deadline);

// The line that shows the pass, for gRPC: its name and what follows.
inline constexpr const char* kPassHeader = "bonfire-pass";

}  // namespace bonfire::comm
