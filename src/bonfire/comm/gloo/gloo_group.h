#pragma once
// Group of processes on one or many hosts, over Gloo's TCP connections. Nothing is encrypted.
//
//   auto group = comm::gloo_group({.rank = 0, .size = 8, .store = store, .name = "world"}, {.interface = "eth0"});
//
// A peer whose process ends is noticed at once. A host that falls silent is noticed by the timeout, or by whoever
// listens to its heartbeat (comm/heartbeat.h). Needs Debian's libgloo-dev where Bonfire is built.

#include <memory>
#include <string>

#include "bonfire/comm/group.h"

namespace bonfire::comm {

// Where this rank listens: one of the two. ConfigError lists this host's interfaces when it has none like that.
struct GlooOptions {
  std::string interface = {};  // "eth0"
  std::string address = {};    // of an interface, or a name for it: "10.0.0.7"
};

// A collective call. The process ignores SIGPIPE from then on, unless it handles it. ConfigError where Bonfire was
// built without Gloo.
std::shared_ptr<Group> gloo_group(const Membership& membership, const GlooOptions& options);
bool has_gloo();

}  // namespace bonfire::comm
