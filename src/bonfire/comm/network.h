#pragma once
// Addresses of this host and of others, and which of ours reaches which of theirs.
//
//   Route route = comm::reach("node0.cluster", 29500, 60s);
//   route.remote   "10.0.0.1"
//   route.local    "10.0.0.7": what others can call us by

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "bonfire/comm/file_descriptor.h"

namespace bonfire::comm {

struct Interface {
  std::string name;     // "eth0"
  std::string address;  // "10.0.0.7", "fe80::1%eth0"
  bool loopback = false;
};

// Every address of every interface that is up, IPv4 first.
std::vector<Interface> interfaces();
// "lo 127.0.0.1, eth0 10.0.0.7": for messages
std::string list_of(const std::vector<Interface>& interfaces);

// The first address, as a literal, that a name or literal ("node0", "10.0.0.1", "::1", "[::1]") stands for. CommError
// when the name is not known.
std::string resolve(const std::string& host);
bool is_loopback(const std::string& literal);

std::string host_and_port(const std::string& host, int port);  // "10.0.0.1:29500", "[::1]:29500"

struct Route {
  std::string remote;  // literal that answered
  std::string local;   // this host's end
};
// Connects by TCP until somebody answers. CommError after the timeout: what the system said of each address. `from`:
// the literal of this host's own to come from; empty: whichever the system takes. `waiting` is called between tries
// with what the system said of the last one.
Route reach(const std::string& host, int port, std::chrono::milliseconds timeout, const std::string& from = {},
            const std::function<void(const std::string& reasons)>& waiting = {});

// Whether a host answers, within the time, that nobody listens there.
bool is_refused(const std::string& literal, int port, std::chrono::milliseconds timeout);

// The address of the interface that a choice as NCCL writes it names: "eth1", "=eth1" (exactly), "eth,ib" (beginning
// so),
// "^docker,lo" (none of these). ConfigError lists the interfaces when it names none.
std::string choose_address(const std::string& choice, const std::vector<Interface>& all);

// A socket that listens there, and whose calls never wait; port 0: one that is free. CommError says in words why there
// is none: port taken, not an address of this host, no right to it.
FileDescriptor listen_on(const std::string& literal, int port);
int port_of(const FileDescriptor& socket);  // this host's end

// A connection to a literal, whose calls never wait; an empty one where nobody answers until the deadline.
FileDescriptor call(const std::string& literal, int port, std::chrono::steady_clock::time_point deadline);

}  // namespace bonfire::comm
