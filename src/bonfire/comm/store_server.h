#pragma once
// The server that holds a job's store, over gRPC; whoever owns the object owns the values.
//
//   auto server = comm::serve_store({.address = "10.0.0.1", .port = 29500, .token = token});
//   server->begin_generation(1);    // a restart: what the ranks before it had set is gone, and so are they
//
// Keys of ranks belong to a generation, the number of restarts so far. A rank of an earlier one that is still about is
// refused with a CommError that says so. Keys of launchers, which have no generation, stay until the server goes.
// It also hears the ranks' heartbeats and notices who is frozen (comm/heartbeat_monitor.h).
// Whoever calls proves first that it knows the token (comm/gate.h). Without TLS nothing is encrypted: the token keeps
// strangers from joining, not from listening.

#include <chrono>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <string>

#include "bonfire/comm/heartbeat_monitor.h"
#include "bonfire/comm/store.h"
#include "bonfire/comm/tls.h"

namespace bonfire::comm {

struct StoreServerOptions {
  std::string address = "127.0.0.1";  // the one address to listen on: a name or literal of this host
  int port = 0;                       // 0: one that is free
  std::string token = {};             // what callers must know; empty: everyone may call
  Tls tls = {};
  int ranks = std::numeric_limits<int>::max();  // of the job: heartbeats of others are not heard
  // A rank whose heartbeat is silent for so long is frozen; 0: none ever is. Then this is called, from a thread of the
  // server's, once for each rank of a generation.
  std::chrono::milliseconds silence{8'000};
  std::function<void(const LifeSign& rank, int64_t generation)> on_frozen = {};
};

class StoreServer {
 public:
  virtual ~StoreServer() = default;  // callers that wait get a CommError
  virtual int port() const = 0;
  virtual void begin_generation(int64_t generation) = 0;  // 0 has begun with the server
  virtual std::map<int, HostSign> hosts() const = 0;      // whose launchers have given a sign of life
  virtual void expect_ranks(int ranks) = 0;               // where it was not known before
};

// CommError when it cannot listen: the port is taken, the address is not this host's. ConfigError for a
// certificate that cannot be used, and where Bonfire was built without gRPC.
std::unique_ptr<StoreServer> serve_store(const StoreServerOptions& options);

}  // namespace bonfire::comm
